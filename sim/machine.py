"""A small key-value state machine that keeps the contract of `shard.machine`.

The one rule: its durable form is what an LMDB with `metasync=False` would have: the last flush,
or, after a power loss, the one before it. Sessions are the production table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgpack
import xxhash

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.shard.machine import ReadPart
from shardnode.shard.sessions import SessionTable, Verdict

KV_PARTITION = (1 << 63) | 1

Observer = Callable[[Entry, bytes, int], None]


def pack_command(
    op: str,
    client: int = 0,
    sequence: int = 0,
    acked_below: int = 0,
    key: bytes = b"",
    value: bytes = b"",
    expected: int = 0,
) -> bytes:
    """What a client sends; a retry sends the same bytes."""
    return bytes(msgpack.packb([op, client, sequence, acked_below, key, value, expected]))


def pack_entry(stamp: int, command: bytes) -> bytes:
    """What the leader proposes: the client's bytes behind the stamp of the log."""
    return bytes(msgpack.packb([stamp, command]))


class SimMachine:
    """Keys, versions and sessions of one replica."""

    def __init__(self, observe: Observer) -> None:
        self.observe = observe
        self.applied_index = 0
        self.membership = b""
        self.digest = 0
        self.data: dict[bytes, tuple[bytes, int]] = {}
        self.sessions = SessionTable()
        self.partition_indexes: dict[int, int] = {}
        self._durable: list[tuple[int, bytes]] = [(0, b"")]

    @property
    def durable_index(self) -> int:
        """What even the loss of the last transaction leaves."""
        return self._durable[0][0]

    def crash(self, rng: random.Random) -> None:
        """Back to the last transaction, or to the one before it."""
        keep = rng.randint(1, len(self._durable))
        self._durable = self._durable[:keep]
        index, image = self._durable[-1]
        if image:
            self._load(msgpack.unpackb(image, use_list=False, strict_map_key=False))
        else:
            self.__init__(self.observe)  # type: ignore[misc]  # as on first boot
        assert self.applied_index == index

    def flush(self, membership: bytes) -> None:
        """One transaction with everything in it."""
        self.membership = membership
        self._durable = [self._durable[-1], (self.applied_index, msgpack.packb(self._image()))]

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Each entry once, in order."""
        replies = []
        for entry in entries:
            assert entry.index == self.applied_index + 1, "an entry was skipped or applied twice"
            reply = b"" if entry.partition == RAFT_PARTITION else self._execute(entry)
            self.applied_index = entry.index
            self.digest = xxhash.xxh3_64_intdigest(entry.payload + reply, self.digest)
            self.observe(entry, reply, self.digest)
            replies.append(reply)
        return replies

    def _execute(self, entry: Entry) -> bytes:
        before = self.partition_indexes.get(entry.partition, 0)
        assert entry.partition_index == before + 1, "a partition's numbers are dense"
        self.partition_indexes[entry.partition] = entry.partition_index
        stamp, packed = msgpack.unpackb(entry.payload)
        op, client, sequence, acked_below, key, value, expected = msgpack.unpackb(packed)
        if op == "open":
            opened = self.sessions.open(client, stamp)
            return _reply("opened" if opened else Verdict.EXPIRED.value, entry.index)
        if op == "expire":
            return _reply("ended", self.sessions.expire(expected, forget_before=0))
        verdict = self.sessions.judge(client, sequence)
        if verdict is Verdict.REPEAT:
            return self.sessions.reply(client, sequence)
        if verdict is not Verdict.FRESH:
            return _reply(verdict.value, 0)
        reply = self._write(op, key, value, expected, entry.index)
        self.sessions.record(client, sequence, reply, acked_below, stamp)
        return reply

    def _write(self, op: str, key: bytes, value: bytes, expected: int, index: int) -> bytes:
        version = self.data[key][1] if key in self.data else 0
        if op == "cas" and version != expected:
            return _reply("conflict", index)
        if op == "delete":
            self.data.pop(key, None)
        else:
            self.data[key] = (value, index)
        return _reply("ok", index)

    def get(self, key: bytes) -> tuple[bytes | None, int]:
        """Value and version; (None, 0) when the key is not there."""
        return self.data.get(key, (None, 0))

    def state(self) -> bytes:
        """Everything that replicas must agree on at one index."""
        return bytes(msgpack.packb(self._image()[:5]))

    def snapshot(self) -> Mapping[str, Iterable[bytes]]:
        """Two files, the first in several pieces, as larger state machines would have."""
        image = self._image()
        keys = msgpack.packb(image[:4])
        half = len(keys) // 2
        return {"keys": [keys[:half], keys[half:]], "sessions": [image[4]]}

    def restore(self, index: int, membership: bytes, names: Sequence[str], part: ReadPart) -> None:
        """Replace everything, durably at once."""
        assert index > self.applied_index, "a snapshot never lowers what is applied"
        assert sorted(names) == ["keys", "sessions"]
        keys = msgpack.unpackb(b"".join(part("keys")), use_list=False, strict_map_key=False)
        self._load((*keys, b"".join(part("sessions")), membership))
        assert self.applied_index == index
        self._durable = [(index, msgpack.packb(self._image()))]

    def _image(self) -> list[Any]:
        return [
            self.applied_index,
            self.digest,
            sorted(self.data.items()),
            sorted(self.partition_indexes.items()),
            self.sessions.encode(),
            self.membership,
        ]

    def _load(self, image: Sequence[Any]) -> None:
        self.applied_index, self.digest, data, partitions, sessions, self.membership = image
        self.data = dict(data)
        self.partition_indexes = dict(partitions)
        self.sessions = SessionTable.decode(sessions)


def _reply(status: str, number: int) -> bytes:
    return bytes(msgpack.packb([status, number]))
