"""Links between processes and what happens to messages on them.

The one rule: a message that arrives is the one that was sent; everything else may go wrong. In
most worlds messages cross as bytes through the production codec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardnode.raft import Message, codec
from shardnode.sim.world import World


@dataclass(slots=True)
class Weather:
    """How bad the network is at the moment."""

    delay_ms_max: int = 5
    loss_percent: float = 0.0
    double_percent: float = 0.0


class Network:
    """Carries messages between addresses (member ids and client numbers)."""

    def __init__(self, world: World, *, as_bytes: bool) -> None:
        self.world = world
        self.weather = Weather()
        self.cut: set[tuple[int, int]] = set()
        """Links (from, to) that carry nothing: one direction each."""
        self.clogged: dict[tuple[int, int], int] = {}
        """Links on which everything takes that much longer."""
        self._as_bytes = as_bytes
        self._receivers: dict[int, Callable[[Any], None]] = {}

    def attach(self, address: int, receive: Callable[[Any], None]) -> None:
        """Messages to `address` go there."""
        self._receivers[address] = receive

    @property
    def troubled(self) -> bool:
        """Whether any link is worse than usual."""
        return bool(self.cut or self.clogged or self.weather != Weather())

    def heal(self) -> None:
        """All links work again."""
        self.cut.clear()
        self.clogged.clear()
        self.weather = Weather()

    def send(self, source: int, target: int, message: Any) -> None:
        """Let a message leave; what becomes of it is up to the weather."""
        world = self.world
        world.counts["sent"] += 1
        if target not in self._receivers or (source, target) in self.cut:
            world.counts["cut"] += 1
            return
        if self._as_bytes and isinstance(message, Message):
            message = codec.decode(codec.encode(message))
        if world.chance(self.weather.loss_percent):
            world.counts["lost"] += 1
            return
        copies = 2 if world.chance(self.weather.double_percent) else 1
        for _ in range(copies):
            delay = world.rng.randint(0, self.weather.delay_ms_max)
            delay += self.clogged.get((source, target), 0)
            world.after(delay, lambda: self._arrive(source, target, message))

    def _arrive(self, source: int, target: int, message: Any) -> None:
        if (source, target) in self.cut:
            self.world.counts["cut"] += 1
            return
        self._receivers[target](message)
