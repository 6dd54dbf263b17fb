"""Directories of nodes, written without one: small, sound, and with files of every kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgpack

from shardnode.node.identity import IDENTITY, Identity, encode_identity
from shardnode.node.members import FILE as MEMBERS
from shardnode.node.members import encode_members
from shardnode.raft import RAFT_PARTITION, Entry, Membership
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.entries import PARTITIONS_SET, encode_entry
from shardnode.storage.files import RealFiles
from shardnode.storage.log import LogOptions, SegmentedLog
from shardnode.storage.snapshots import SnapshotStore
from shardnode.storage.superblock import Superblock, SuperblockState
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import CONTROL_PARTITION, KEY_VALUE_PARTITION
from shardnode.wire.requests import DeleteMany, PutMany
from shardnode.wire.streams import Append, MessageBatch

NAMESPACE = 5
SEGMENTS = LogOptions(segment_bytes=8 << 10, index_every_bytes=1 << 10, zero_ahead_bytes=0)
MEMBER = 1 << 48 | 1


class ShardWriter:
    """One shard, as a worker writes it when it is alone: log first, then effects."""

    def __init__(self, data: Path, name: str = "shard-1", options: LogOptions = SEGMENTS) -> None:
        self.data = data
        self.name = name
        files = RealFiles(data)
        self.superblock = Superblock.load(files, name)
        self.superblock.store(SuperblockState(7, MEMBER, 1, MEMBER, 0, 0, False))
        self.log = SegmentedLog.open(files, name, options)
        self.superblock.store(SuperblockState(7, MEMBER, 1, MEMBER, 0, 0, False))
        self.effects: Effects = open_effects(str(data / name), "lmdb", {})
        self.snapshots = SnapshotStore(files, name)
        self.numbers: dict[int, int] = {}
        self.index = 0
        self.membership = Membership.of([MEMBER]).encode()

    def add(self, partition: int, payload: bytes, *, apply: bool = True) -> int:
        """An entry: in the log, synced, and in effect."""
        self.index += 1
        number = self.index
        if partition != RAFT_PARTITION:
            number = self.numbers[partition] = self.numbers.get(partition, 0) + 1
        entry = Entry(self.index, 1, partition, number, payload)
        self.log.append_batch([entry], self.index - 1)
        self.log.sync()
        if apply:
            self.effects.apply([entry])
        return self.index

    def put(self, pairs: Mapping[bytes, bytes], ttl_ms: int = 0) -> int:
        body = PutMany(list(pairs), list(pairs.values()), ttl_ms).encode()
        return self.add(KEY_VALUE_PARTITION, encode_entry(self.index + 1, Kind.PUT_MANY, body))

    def delete(self, keys: Iterable[bytes]) -> int:
        body = DeleteMany(list(keys)).encode()
        return self.add(KEY_VALUE_PARTITION, encode_entry(self.index + 1, Kind.DELETE_MANY, body))

    def make_partition(self, namespace: int = NAMESPACE, segment_bytes: int = 4 << 10) -> None:
        settings = {"retention_ms": 0, "segment_bytes": segment_bytes}
        version = 1 + self.numbers.get(CONTROL_PARTITION, 0)
        body = bytes(msgpack.packb([version, [[namespace, settings]], True]))
        self.add(CONTROL_PARTITION, encode_entry(self.index + 1, PARTITIONS_SET, body))

    def append(self, *messages: bytes, namespace: int = NAMESPACE) -> int:
        body = Append(namespace, len(messages), MessageBatch(messages).encode()).encode()
        return self.add(namespace, encode_entry(self.index + 1, Kind.APPEND, body))

    def flush(self) -> None:
        self.effects.flush(self.membership)

    def snapshot(self) -> None:
        chain = self.log.chain(self.index)
        self.flush()
        self.snapshots.write(self.index, 1, chain, self.membership, self.effects.snapshot())

    def close(self, *, clean: bool = True) -> None:
        """Without `clean`, what was not flushed is in the log alone, as after a kill."""
        if clean:
            self.flush()
            state = SuperblockState(7, MEMBER, 1, MEMBER, self.index, 0, False)
            self.superblock.store(state)
        self.effects.close()
        self.log.close()

    def fill(self) -> None:
        """Something of everything."""
        self.add(RAFT_PARTITION, b"")
        self.make_partition()
        for number in range(12):
            self.put({b"key/%d/%d" % (number, each): b"v" * each * 9 for each in range(20)})
            self.put({b"brief/%d" % number: b"x"}, ttl_ms=60_000)
            self.put({b"large/%d" % number: b"l" * 9_000})
            self.append(b"message %d " % number * 30, b"another")
            if number % 4 == 3:
                self.delete([b"key/%d/%d" % (number, each) for each in range(0, 20, 3)])
                self.flush()
        self.snapshot()
        self.put({b"key/1/1": b"after the snapshot"})
        self.append(b"also after it")


def write_node(data: Path, shards: int = 2) -> Path:
    """A whole directory."""
    write_identity(data, shards)
    for number in range(shards):
        writer = ShardWriter(data, f"shard-{number}")
        writer.fill()
        writer.close()
    return data


def write_identity(data: Path, shards: int = 2) -> None:
    """The files beside the shards."""
    data.mkdir()
    (data / IDENTITY).write_bytes(encode_identity(Identity("main", 1, shards, 7)))
    (data / MEMBERS).write_bytes(encode_members(3, {"1": "tcp://127.0.0.1:7400"}))


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """One byte becomes another."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))
