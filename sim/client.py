"""Clients that retry with sessions and note down what they saw.

The one rule: a retry sends the same bytes, to whoever may lead now, until an answer comes or
patience ends; then the outcome is unknown and the client says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from shardnode.sim.history import Operation
from shardnode.sim.machine import pack_command
from shardnode.sim.network import Network
from shardnode.sim.node import Answer, Ask
from shardnode.sim.world import World

PATIENCE_MS = 4000
SESSION_NUMBERS = 100_000
"""Sessions of one client are numbered from its own thousand, so that ids never repeat."""


class SimClient:
    """One client, one request at a time."""

    def __init__(
        self, world: World, network: Network, number: int, members: Sequence[int], keys: int
    ) -> None:
        self.world = world
        self.network = network
        self.address = 1 << 62 | number
        self.name = f"client {number}"
        self.operations: list[Operation] = []
        self.succeeded = 0
        self.stopped = False
        self._members = list(members)
        self._keys = keys
        self._session = number * SESSION_NUMBERS
        self._opened = False
        self._sequence = 0
        self._current: Operation | None = None
        self._ask: Ask | None = None
        self._number = 0
        self._leader = 0
        self._versions: dict[bytes, int] = {}
        network.attach(self.address, self._arrive)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._ask is None

    def start(self) -> None:
        """Begin with the first request."""
        self.world.after(self.world.rng.randint(0, 50), self._next)

    def _next(self) -> None:
        if self.stopped or self._ask is not None:
            return
        self._number += 1
        if self._opened:
            self._begin_operation()
        else:
            self._session += 1
            self._sequence = 0
            self._current = None
            command = pack_command("open", self._session)
            self._ask = Ask(self.address, self._number, command)
            # A copy of it is held up on the way, perhaps until the session has ended.
            copy = Ask(self.address, 0, command)
            target = self.world.rng.choice(self._members)
            self.world.after(
                self.world.rng.choice((50, 2000, 6000)),
                lambda: self.network.send(self.address, target, copy),
            )
        deadline = self.world.now_ms + PATIENCE_MS
        self._attempt(self._number, deadline)

    def _begin_operation(self) -> None:
        rng = self.world.rng
        kind = rng.choice(("put", "put", "put", "cas", "delete", "get", "get", "get"))
        key = b"key-%d" % rng.randrange(self._keys)
        operation = Operation(
            self._session, 0, kind, key, b"", self._versions.get(key, 0), self.world.steps
        )
        self._current = operation
        self.operations.append(operation)
        if kind == "get":
            self._ask = Ask(self.address, self._number, key=key, lease=rng.random() < 0.5)
            return
        self._sequence += 1
        operation.sequence = self._sequence
        operation.value = b"" if kind == "delete" else b"%d/%d" % (self._session, self._sequence)
        operation.value += b"." * rng.choice((0, 0, 0, 40, 300))
        acked_below = max(0, self._sequence - rng.randint(0, 3))
        command = pack_command(
            kind,
            self._session,
            self._sequence,
            acked_below,
            key,
            operation.value,
            operation.expected,
        )
        self._ask = Ask(self.address, self._number, command)

    def _attempt(self, number: int, deadline_ms: int) -> None:
        if self._ask is None or self._ask.number != number:
            return
        if self.world.now_ms >= deadline_ms:
            self.world.counts["unknown"] += 1
            self._finish()
            return
        target = self._leader or self.world.rng.choice(self._members)
        self._leader = 0
        self.network.send(self.address, target, self._ask)
        self.world.after(
            self.world.rng.randint(100, 500), lambda: self._attempt(number, deadline_ms)
        )

    def _arrive(self, answer: Answer) -> None:
        if self._ask is None or answer.number != self._ask.number:
            return
        if answer.status == "refused":
            self._leader = answer.hint
        elif answer.status == "done":
            self._done(answer)

    def _done(self, answer: Answer) -> None:
        operation = self._current
        if operation is None:
            self._opened = msgpack.unpackb(answer.reply)[0] == "opened"
            self._finish()
            return
        if operation.kind == "get":
            operation.seen, operation.index = answer.value, answer.index
            self._versions[operation.key] = int(answer.reply)
        else:
            status, index = msgpack.unpackb(answer.reply)
            if status not in ("ok", "conflict"):
                # The session is gone: whether the request ran before that cannot be known.
                self.world.require(status == "expired", f"{self.name} was told {status}")
                self._opened = False
                self._finish()
                return
            operation.status, operation.index = status, index
            if status == "ok":
                self._versions[operation.key] = 0 if operation.kind == "delete" else index
        operation.ended = self.world.steps
        self.succeeded += 1
        self._finish()

    def _finish(self) -> None:
        self._ask = None
        self._current = None
        self.world.after(self.world.rng.choice((0, 1, 5, 20, 60)), self._next)
