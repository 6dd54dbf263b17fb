"""Whether what clients saw fits what was committed.

The one rule: the judge has its own model and its own idea of "once". It replays the committed log
entry by entry and knows nothing of the production session table.

Checked: every acknowledged write is in the log, took effect once, and with the answer that the
client got; every read saw the model at the index it was served; and real-time order holds: what
began after another operation had ended comes after it in the log.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.sim.world import World


@dataclass(slots=True)
class Operation:
    """What one client asked and saw. Times are steps of the world."""

    client: int
    sequence: int
    kind: str
    key: bytes
    value: bytes
    expected: int
    begun: int
    ended: int | None = None
    """None while it runs, and for ever when its outcome is unknown."""
    status: str = ""
    index: int = 0
    seen: bytes | None = None


class Model:
    """The committed log, replayed."""

    def __init__(self, committed: Mapping[int, Entry]) -> None:
        self.last = max(committed, default=0)
        self.data: dict[bytes, tuple[bytes, int]] = {}
        self.effects: dict[tuple[int, int], tuple[str, int]] = {}
        """The one effect of each request: what it answered, and where in the log."""
        self._sessions: dict[int, int] = {}
        self._ended: set[int] = set()
        self._acked: dict[int, int] = {}
        self._versions: dict[bytes, tuple[list[int], list[bytes | None]]] = {}
        for index in range(1, self.last + 1):
            entry = committed[index]
            if entry.partition != RAFT_PARTITION:
                self._replay(entry)

    def _replay(self, entry: Entry) -> None:
        stamp, packed = msgpack.unpackb(entry.payload)
        op, client, sequence, acked_below, key, value, expected = msgpack.unpackb(packed)
        if op == "expire":
            self._ended |= {c for c, s in self._sessions.items() if s < expected}
            self._sessions = {c: s for c, s in self._sessions.items() if s >= expected}
        elif op == "open" and client not in self._ended:
            self._sessions[client] = max(stamp, self._sessions.get(client, 0))
        elif client in self._sessions and (client, sequence) not in self.effects:
            if sequence < self._acked.get(client, 0):
                return  # the client had seen a later one answered before this old one came
            self._acked[client] = max(acked_below, self._acked.get(client, 0))
            self._sessions[client] = max(stamp, self._sessions[client])
            status = self._write(op, key, value, expected, entry.index)
            self.effects[client, sequence] = (status, entry.index)

    def _write(self, op: str, key: bytes, value: bytes, expected: int, index: int) -> str:
        version = self.data[key][1] if key in self.data else 0
        if op == "cas" and version != expected:
            return "conflict"
        if op == "delete":
            self.data.pop(key, None)
        else:
            self.data[key] = (value, index)
        indexes, values = self._versions.setdefault(key, ([], []))
        indexes.append(index)
        values.append(None if op == "delete" else value)
        return "ok"

    @property
    def sessions(self) -> set[int]:
        """The sessions that are open at the end."""
        return set(self._sessions)

    def at(self, key: bytes, index: int) -> bytes | None:
        """The value of `key` once everything through `index` had taken effect."""
        indexes, values = self._versions.get(key, ([], []))
        position = bisect.bisect_right(indexes, index)
        return values[position - 1] if position else None


def check(world: World, operations: Sequence[Operation], committed: Mapping[int, Entry]) -> Model:
    """Hold what clients saw against the log."""
    model = Model(committed)
    for operation in operations:
        if operation.ended is not None:
            _check_one(world, model, operation)
    _check_order(world, operations)
    return model


def _check_one(world: World, model: Model, operation: Operation) -> None:
    what = f"{operation.kind} {operation.client}/{operation.sequence} of {operation.key!r}"
    if operation.kind == "get":
        expected = model.at(operation.key, operation.index)
        world.require(
            operation.seen == expected,
            f"{what} at {operation.index} saw {operation.seen!r}, the log says {expected!r}",
        )
        return
    effect = model.effects.get((operation.client, operation.sequence))
    world.require(effect is not None, f"{what} was acknowledged and is not in the log")
    world.require(
        effect == (operation.status, operation.index),
        f"{what} was answered {operation.status} at {operation.index}, the log says {effect}",
    )


def _check_order(world: World, operations: Sequence[Operation]) -> None:
    """Sweep over time: nothing that begins now may stand before what has ended already."""
    events = []
    for operation in operations:
        if operation.ended is not None:
            events.append((operation.begun, 0, operation))
            events.append((operation.ended, 1, operation))
    events.sort(key=lambda event: event[:2])
    highest = 0
    floors: dict[int, int] = {}
    for _, is_end, operation in events:
        if not is_end:
            floors[id(operation)] = highest
            continue
        floor = floors.pop(id(operation))
        low = operation.index if operation.kind == "get" else operation.index - 1
        world.require(
            low >= floor,
            f"{operation.kind} {operation.client}/{operation.sequence} took place at "
            f"{operation.index}, but something at {floor} had ended before it began",
        )
        highest = max(highest, operation.index)
