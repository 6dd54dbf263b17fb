"""What the log behind a snapshot does to its keys, for readers outside of the shard.

The one rule: the state machine of the shard decides, from the same entries and the same sessions.
So a write that was refused then is refused here, and a repeat is one here.

Only keys are made: what entries of other partitions do does not concern them, but that a session
was heard of, which may keep keys alive that were leased in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Protocol, cast

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.shard.entries import decode_entry
from shardnode.shard.keyvalue import KeyValue
from shardnode.shard.once import run_once
from shardnode.storage.engine import Engine
from shardnode.storage.engine_values import DELETED
from shardnode.storage.records import Record
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.placement import KEY_VALUE_PARTITION

PARTS = ("keyvalue", "leases", "sessions")
"""The files of a snapshot that tell what else the keys depend on."""


class Base(Protocol):
    """The keys that a log goes on from."""

    def get(self, key: bytes) -> bytes | None:
        """What is kept of a key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept of each key."""


def changes_behind(
    base: Base, index: int, part: Callable[[str], bytes], records: Iterable[Record]
) -> Mapping[bytes, bytes]:
    """What is kept of every key that these records changed; empty: nothing, it was deleted. `base`
    and its `PARTS` are the state at `index`, which the records continue."""
    table = _Table(base, index, part)
    keyvalue = KeyValue(cast(Engine, table), recent_bytes_max=0)
    for record in records:
        entry = Entry._make(record)
        if entry.partition == KEY_VALUE_PARTITION:
            keyvalue.apply([entry])
        elif entry.partition != RAFT_PARTITION:
            _hear(keyvalue, entry)
    return table.changes


def keyvalue_without_keys(index: int, part: Callable[[str], bytes]) -> KeyValue:
    """Sessions and leases as of an index; of keys only what is written from then on."""
    return KeyValue(cast(Engine, _Table(_Nothing(), index, part)), recent_bytes_max=0)


def _hear(keyvalue: KeyValue, entry: Entry) -> None:
    """A request to another partition: its session lives."""
    try:
        command = decode_entry(entry.payload)
    except ShardnodeError:
        return  # it was refused
    if command.client_id != NO_CLIENT:
        run_once(keyvalue.sessions, command, lambda: b"")


class _Table:
    """What `KeyValue` uses of an engine: changes in front of a base."""

    def __init__(self, base: Base, index: int, part: Callable[[str], bytes]) -> None:
        self.index = index
        self.changes: dict[bytes, bytes] = {}
        self._base = base
        self.blob = part

    def get(self, key: bytes) -> bytes | None:
        found = self.changes.get(key)
        return self._base.get(key) if found is None else found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def put_many(self, keys: Sequence[bytes], kept: Iterable[bytes], _size_bytes: int) -> None:
        self.changes.update(zip(keys, kept, strict=True))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        self.changes.update(zip(keys, repeat(DELETED)))

    def expire_later(self, _expires_ms: int, _version: int, _keys: Sequence[bytes]) -> None:
        """Only a leader asks what is due."""


class _Nothing:
    """No keys."""

    def get(self, _key: bytes) -> bytes | None:
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)
