"""Machines, entries and what can be asked of them in a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

from shardnode.raft import Entry
from shardnode.shard.effects import Effects
from shardnode.shard.entries import (
    EXPIRE_KEYS,
    EXPIRE_SESSIONS,
    encode_entry,
    split_reply,
)
from shardnode.storage.engine import Engine, EngineOptions, LmdbEngine, MemoryEngine
from shardnode.wire.codec import Body
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import KEY_VALUE_PARTITION
from shardnode.wire.replies import REPLIES, decode_error
from shardnode.wire.requests import REQUESTS

ALICE, BOB = b"a" * 16, b"b" * 16
SMALL = EngineOptions(table_bytes=2_000, slice_keys=3, map_bytes=1 << 20, map_bytes_max=1 << 30)
KINDS = {cls: kind for kind, cls in REQUESTS.items()}


def make_engine(kind: str, directory: Path, options: EngineOptions = SMALL) -> Engine:
    return MemoryEngine(options) if kind == "memory" else LmdbEngine(str(directory), options)


def reopen(engine: Engine, directory: Path, options: EngineOptions = SMALL) -> Engine:
    """What a process finds that starts after another was killed."""
    if isinstance(engine, MemoryEngine):
        engine.crash()
        return engine
    engine.close()
    return LmdbEngine(str(directory), options)


def parts_of(effects: Effects) -> dict[str, bytes]:
    """A snapshot as bytes."""
    return {name: b"".join(chunks) for name, chunks in effects.snapshot().items()}


def restore(effects: Effects, index: int, parts: Mapping[str, bytes], piece: int = 7) -> None:
    """Restore from pieces whose ends mean nothing."""

    def read(name: str) -> Iterable[bytes]:
        data = parts[name]
        return (data[start : start + piece] for start in range(0, len(data), piece))

    effects.restore(index, b"members", list(parts), read)


class Log:
    """Entries as a leader would number them, and machines that follow."""

    def __init__(self, *machines: Effects) -> None:
        self.machines = list(machines)
        self.entries: list[Entry] = []
        self.stamp_ms = 1_000

    @property
    def machine(self) -> Effects:
        return self.machines[0]

    def append(self, payload: bytes, partition: int = KEY_VALUE_PARTITION) -> Entry:
        index = len(self.entries) + 1
        number = sum(1 for entry in self.entries if entry.partition == partition) + 1
        entry = Entry(index, 1, partition, number, payload)
        self.entries.append(entry)
        return entry

    def send(self, kind: int, body: bytes, client: bytes = NO_CLIENT, **header: int) -> bytes:
        """Propose a request; the reply, the same of all machines."""
        payload = encode_entry(self.stamp_ms, kind, body, client_id=client, **header)
        return self.apply(self.append(payload))

    def apply(self, entry: Entry) -> bytes:
        replies = {bytes(machine.apply([entry])[0]) for machine in self.machines}
        assert len(replies) == 1, "replicas disagree"
        return replies.pop()

    def do(self, ask: Body, client: bytes = NO_CLIENT, **header: int) -> Any:
        """Propose a request; its answer, or its error raised."""
        kind = KINDS[type(ask)]
        code, body = split_reply(self.send(kind, ask.encode(), client, **header))
        if code:
            error = decode_error(body)
            assert error.number == code
            raise error
        return REPLIES[Kind(kind)].decode(body)

    def expire_keys(self, limit: int = 100) -> int:
        """What the leader does now and then; how many keys were due."""
        keys, versions = self.machine.due(self.stamp_ms, limit)
        self.send(EXPIRE_KEYS, msgpack.packb([keys, versions]))
        return len(keys)

    def expire_sessions(self, forget_before: int = 0) -> None:
        self.send(EXPIRE_SESSIONS, msgpack.packb([self.stamp_ms, forget_before]))


def redo(machine: Effects, entries: Sequence[Entry]) -> None:
    """What a replica does after a crash: hand over what is not applied yet."""
    machine.apply([entry for entry in entries if entry.index > machine.applied_index])
