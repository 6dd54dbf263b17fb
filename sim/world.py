"""The clock and the queue of events: what happens next, and nothing at the same time.

The one rule: events run one after another in the order of (time, number), and time moves only
between them.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable


class SimFailure(AssertionError):
    """A promise was broken. The message says which; the seed replays it."""


class PatienceLost(Exception):
    """The run went on for longer than whoever started it cares to wait. Nothing is broken."""


class World:
    """Simulated time in milliseconds, a source of randomness, and a trace for people."""

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.steps = 0
        self.patience = sys.maxsize
        """Steps after which the run is given up, for a hunt that knows a shorter one."""
        self.counts: Counter[str] = Counter()
        self._say = say
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    @property
    def tracing(self) -> bool:
        """Whether anybody reads the trace; ask before building an expensive line."""
        return self._say is not None

    def say(self, who: str, what: str) -> None:
        """One line of the trace."""
        if self._say is not None:
            self._say(f"{self.steps:6d} {self.now_ms / 1000:9.3f}s {who:>8}  {what}")

    def after(self, delay_ms: int, event: Callable[[], None]) -> None:
        """Let `event` happen `delay_ms` from now."""
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._number, event))

    def step(self) -> None:
        """Let the next event happen."""
        assert self._queue, "a world without events is dead"
        if self.steps >= self.patience:
            raise PatienceLost
        self.now_ms, _, event = heapq.heappop(self._queue)
        self.steps += 1
        event()

    def chance(self, percent: float) -> bool:
        """True in that many of a hundred cases."""
        return self.rng.random() * 100 < percent

    def require(self, condition: bool, promise: str) -> None:
        """A promise that must hold now."""
        if not condition:
            self.say("check", f"BROKEN: {promise}")
            raise SimFailure(
                f"seed {self.seed}, step {self.steps}, {self.now_ms} ms: {promise}\n"
                f"replay it with: scripts/sim {self.seed}"
            )
