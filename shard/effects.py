"""All effects of one shard's log: the state machine that a `Replica` drives.

The one rule: everything an entry does is in one engine, and one commit holds all of it with the
index of the log; so redo after a crash starts exactly where effects end.

    partition             goes to
    raft                  nothing: an empty reply
    key-value             `keyvalue.KeyValue`, neighbouring entries together
    control               `control.Control`
    groups                `coordination.Coordination`: consumer groups and their offsets
    of a stream           `streams.Streams`, one state machine for each
    any other             refused, without effect

A worker flushes in slices between its other work: when `wants_flush`, `begin_flush(membership)`,
then `flush_slice()` once per turn of its loop until it gives an index. `flush` does it all at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.shard.control import Control
from shardnode.shard.coordination import Coordination
from shardnode.shard.entries import (
    CHECK_STATE,
    PARTITIONS_SET,
    decode_entry,
    kind_of,
    refuse,
    stamp_of,
)
from shardnode.shard.keyvalue import Found, KeyValue
from shardnode.shard.keyvalue_reads import FOUND_BYTES_MAX
from shardnode.shard.machine import ReadPart
from shardnode.shard.once import run_once
from shardnode.shard.sessions import SessionTable
from shardnode.shard.streams import Streams
from shardnode.shard.streams_copy import STREAMS, is_stream_part, stream_parts, take_in
from shardnode.shard.topics import Topics
from shardnode.shard.watermarks import Watermark, Watermarks
from shardnode.storage.engine import Engine, EngineOptions, Item, open_engine
from shardnode.storage.errors import SnapshotCorrupt
from shardnode.storage.failpoints import working_files
from shardnode.storage.files import join
from shardnode.storage.keyfile import pack_keys, unpack_keys
from shardnode.wire.errors import InvalidRequest, NotFound
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    PlacementTable,
    slots_of_keys,
)
from shardnode.wire.replies import Changes, Page
from shardnode.wire.requests import Scan, Watch

SLICE_KEYS = 2_000
"""Keys that one slice of a flush writes: about 5 ms."""

REDO_BYTES_MAX = 64 << 20
"""What a restart applies again at most, of payload."""

FLUSH_BYTES = REDO_BYTES_MAX // 3
"""Applied between two flushes: one may be under way, and a power loss may undo the one before."""

BEHIND_FACTOR = 8
"""How much larger slices are when two memory tables are full."""

_KEYS = "keys"
_EFFECTS = "effects"
_PARTS = ("control", _EFFECTS, "groups", _KEYS, "keyvalue", "leases", "sessions", "topics")
_PARTITION = attrgetter("partition")


class Effects:
    """What has been applied, over one engine."""

    def __init__(self, engine: Engine, path: str = "", streams: Streams | None = None) -> None:
        """`path`: where the engine has its files, if it has any; `streams`: the partitions that
        have logs of their own, if there can be any."""
        self.engine = engine
        self.path = path
        self.streams = streams
        self.keyvalue = KeyValue(engine)
        self.control = Control()
        self.coordination = Coordination(self._end_of)
        self.applied_index = 0
        self.membership = b""
        self.partition_indexes: Mapping[int, int] = {}
        self.digest = 0
        """A hash over all entries and replies so far: equal on all replicas at one index."""
        self.checks: list[tuple[int, int]] = []
        """(index, digest) at each CHECK_STATE applied; whoever compares them empties it."""
        self._partitions: dict[int, int] = {}
        self._marks = Watermarks(self._partitions)
        self._flushed: tuple[int, bytes] = (0, b"")
        self._unflushed_bytes = 0
        self._written = False
        self._stamp_ms = 0
        self._load()

    @property
    def durable_index(self) -> int:
        """The last entry that even the loss of the last commit leaves."""
        return self.engine.durable_index

    def watermarks(
        self, pending: Mapping[int, int], only: Collection[int] | None = None
    ) -> list[Watermark]:
        """How far each partition is, or those that are asked for; `pending`: where one waits for
        acknowledgements in the log."""
        self._marks.durable(self.engine.durable_index)
        if only is None:
            return self._marks.all(pending)
        known = (n for n in only if n in self._partitions or n in pending)
        return [self._marks.of(partition, pending.get(partition, 0)) for partition in known]

    # -- applying -----------------------------------------------------------------------------

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Each entry once, in order. An exception is a failure of this replica, not of an entry:
        it must not go on."""
        replies: list[bytes] = []
        for partition, group in groupby(entries, _PARTITION):
            run = list(group)
            self._check(partition, run)
            self._marks.applying(partition, run[0].index)
            if partition == KEY_VALUE_PARTITION:
                answers = self.keyvalue.apply(run)
            elif partition == CONTROL_PARTITION:
                answers = [self._control(entry.payload) for entry in run]
            elif partition == RAFT_PARTITION:
                answers = [b""] * len(run)
            elif partition == GROUP_PARTITION:
                answers = self.coordination.apply(run, self.keyvalue.sessions)
            elif self.streams is not None:
                answers = self.streams.apply(run, self.keyvalue.sessions)
            else:
                answers = [_NO_SUCH_PARTITION] * len(run)
            self._count(partition, run, answers)
            replies += answers
        if self.streams is not None:
            self.streams.write()
        return replies

    def _control(self, payload: bytes) -> bytes:
        if self.streams is not None and kind_of(payload) == PARTITIONS_SET:
            reply = self.streams.set(decode_entry(payload).body)
            self.coordination.partitions_left(self.streams.settings)
            return reply
        command = decode_entry(payload)
        if command.client_id == NO_CLIENT:
            return self.control.apply([payload])[0]
        sessions = self.keyvalue.sessions
        return run_once(sessions, command, lambda: self.control.apply([payload])[0])

    def _check(self, partition: int, run: Sequence[Entry]) -> None:
        for index, entry in enumerate(run, self.applied_index + 1):
            assert entry.index == index, "an entry was skipped or applied twice"
        if partition != RAFT_PARTITION:
            before = self._partitions.get(partition, 0)
            for number, entry in enumerate(run, before + 1):
                assert entry.partition_index == number, "a partition's numbers are dense"

    def _count(self, partition: int, run: Sequence[Entry], answers: Sequence[bytes]) -> None:
        digest, size = self.digest, 0
        for entry, answer in zip(run, answers, strict=True):
            size += len(entry.payload)
            digest = xxh3_64_intdigest(answer, xxh3_64_intdigest(entry.payload, digest))
            if partition == CONTROL_PARTITION and kind_of(entry.payload) == CHECK_STATE:
                self.checks.append((entry.index, digest))
        self.digest = digest
        self._unflushed_bytes += size
        self.applied_index = run[-1].index
        if partition != RAFT_PARTITION:
            self._partitions[partition] = run[-1].partition_index
            self._stamp_ms = max(self._stamp_ms, stamp_of(run[-1].payload))

    # -- reading ------------------------------------------------------------------------------

    def get(self, key: bytes) -> Found | None:
        """Value, version and expiry of a key; None when it does not exist."""
        return self.keyvalue.get(key)

    def get_many(
        self, keys: Sequence[bytes], bytes_max: int = FOUND_BYTES_MAX
    ) -> list[bytes | None]:
        """The values of the first keys: all, unless they have more than `bytes_max`."""
        return self.keyvalue.get_many(keys, bytes_max)

    def scan(self, ask: Scan) -> Page:
        """One page of keys in order."""
        return self.keyvalue.scan(ask)

    def changes(self, ask: Watch) -> Changes:
        """What changed behind a position; raises `wire.errors.Compacted`."""
        return self.keyvalue.changes(ask, self.applied_index)

    def due(self, stamp_ms: int, limit: int) -> tuple[list[bytes], list[int]]:
        """Keys and versions for EXPIRE_KEYS. The same ones until that has been applied."""
        return self.keyvalue.due(stamp_ms, limit)

    def _end_of(self, namespace: int) -> int:
        if self.streams is None:
            raise NotFound("expected a partition of this shard, which keeps no streams")
        return self.streams.mark_of(namespace).end_offset

    @property
    def sessions(self) -> SessionTable:
        """Who is known here; to be read, never changed."""
        return self.keyvalue.sessions

    @property
    def stamp(self) -> int:
        """The highest stamp applied: a leader's stamps go on from here."""
        return max(self._stamp_ms, self.keyvalue.stamp_ms)

    @property
    def table(self) -> PlacementTable | None:
        """The control plane's placement table."""
        return self.control.table

    # -- flushing -----------------------------------------------------------------------------

    @property
    def wants_flush(self) -> bool:
        """Enough was applied, and nothing is being flushed."""
        return self._is_full and not self.engine.flushing

    @property
    def _is_full(self) -> bool:
        return self.engine.wants_flush or self._unflushed_bytes >= FLUSH_BYTES

    @property
    def flushing(self) -> bool:
        """A sliced flush is under way: call `flush_slice`."""
        return self.engine.flushing

    def begin_flush(self, membership: bytes) -> None:
        """What is applied now is to become durable, with the membership at `applied_index`."""
        self.membership = membership
        self._flushed = (self.applied_index, membership)
        self._unflushed_bytes = 0
        self._marks.flushing(self.applied_index)
        if self.streams is not None:
            self.streams.begin_flush()
        self.engine.begin_flush(self.applied_index, self._blobs(membership))

    @property
    def committing(self) -> bool:
        """All is written and the fsync is under way: nothing to do but to ask now and then."""
        return self._written

    def flush_slice(self, keys_max: int = SLICE_KEYS, *, wait: bool = False) -> int | None:
        """Go on with it; once it is durable the log index it reflects, until then None. The last
        calls only ask whether the fsync is done; with `wait` the call stays until it is.

        `NoSpace` loses nothing: the next call begins again, or goes on.

        When the next table is full already, slices are larger and the fsync is waited for:
        writers must not be faster than the disk for long, because memory is bounded.
        """
        behind = self._is_full
        if not self._written:
            self._written = self.engine.flush_slice(keys_max * (BEHIND_FACTOR if behind else 1))
            return None
        wait = wait or behind
        if self.streams is not None and not self.streams.synced(wait=wait):
            return None
        try:
            done = self.engine.commit_flush(wait=wait)
        except BaseException:
            self._written = False
            raise
        self._written = not done
        if done and self.streams is not None:
            self.streams.committed(self.engine.index, self.engine.durable_index)
        return self.engine.index if done else None

    def flush(self, membership: bytes) -> None:
        """Make all effects so far, the applied index and the membership durable together."""
        self._finish_flush()
        if self._flushed != (self.applied_index, membership):
            self.begin_flush(membership)
            self._finish_flush()

    def _finish_flush(self) -> None:
        while self.engine.flushing:
            self.flush_slice(wait=True)

    def close(self) -> None:
        """Let go of files; what was not flushed comes again from the log."""
        if self.streams is not None:
            self.streams.close()
        self.engine.close()

    # -- snapshots ----------------------------------------------------------------------------

    def snapshot(self) -> Mapping[str, Iterable[bytes]]:
        """The state at `applied_index`: the same bytes on every replica. The keys are read from
        a pinned commit, so applying may go on while the pieces are taken."""
        self.flush(self.membership)
        streams = self.streams
        parts: Mapping[str, Iterable[bytes]] = {}
        if streams is not None:
            parts = stream_parts(streams.files, streams.shard, self.engine.blob)
        return snapshot_parts(self.engine.blob, self.engine.pin(), parts)[2]

    def restore(self, index: int, membership: bytes, names: Sequence[str], part: ReadPart) -> None:
        """Replace everything, durably and at once; until then the old state stays."""
        assert index > self.applied_index, "a snapshot never lowers what is applied"
        own = sorted(name for name in names if name != STREAMS and not is_stream_part(name))
        if own != sorted(_PARTS):
            raise SnapshotCorrupt(f"expected the parts {_PARTS}, found {own}")
        blobs = {name: b"".join(part(name)) for name in _PARTS if name != _KEYS}
        found, _, *rest = msgpack.unpackb(blobs[_EFFECTS])
        if found != index:
            raise SnapshotCorrupt(f"expected the state at index {index}, found that at {found}")
        blobs[_EFFECTS] = bytes(msgpack.packb([index, membership, *rest]))
        if self.streams is not None and STREAMS in names:
            blobs[STREAMS] = take_in(self.streams, b"".join(part(STREAMS)), names, part)
        self.engine.replace(index, blobs, unpack_keys(part(_KEYS)))
        self.keyvalue.load(self.engine.blob, index)
        self._load()

    def _blobs(self, membership: bytes) -> dict[str, bytes]:
        partitions = sorted(self._partitions.items())
        effects = [self.applied_index, membership, partitions, self.digest, self.stamp]
        return {
            _EFFECTS: bytes(msgpack.packb(effects)),
            "control": self.control.encode(),
            "topics": self.control.topics.encode(),
            "groups": self.coordination.encode(),
            **({} if self.streams is None else {STREAMS: self.streams.encode()}),
            **self.keyvalue.blobs(),
        }

    def _load(self) -> None:
        """Take over what the engine holds."""
        self._written = False
        self.applied_index, self.membership, self.digest, self._stamp_ms = 0, b"", 0, 0
        self._partitions = {}
        if packed := self.engine.blob(_EFFECTS):
            self.applied_index, self.membership, pairs, self.digest, *more = msgpack.unpackb(packed)
            self._partitions = dict(pairs)
            self._stamp_ms = max(more, default=0)
        assert self.applied_index == self.engine.index, "one commit holds both"
        self.partition_indexes = self._partitions
        self._marks = Watermarks(self._partitions)
        self._flushed = (self.applied_index, self.membership)
        self.control.load(self.engine.blob("control"))
        self.control.topics = Topics.decode(self.engine.blob("topics"))
        self.coordination.load(self.engine.blob("groups"))
        if self.streams is not None:
            self.streams.load(self.engine.blob(STREAMS))


def snapshot_parts(
    blob: Callable[[str], bytes],
    items: Iterator[list[Item]],
    streams: Mapping[str, Iterable[bytes]],
) -> tuple[int, bytes, Mapping[str, Iterable[bytes]]]:
    """(index, membership, files) of a snapshot of what an engine has committed, with the files of
    `streams_copy.stream_parts`. The membership
    stands in the manifest, so the files are the same bytes on every replica."""
    index, membership, *rest = msgpack.unpackb(blob(_EFFECTS))
    parts: dict[str, Iterable[bytes]] = {
        name: [blob(name)] for name in _PARTS if name not in (_EFFECTS, _KEYS)
    }
    parts[_EFFECTS] = [bytes(msgpack.packb([index, b"", *rest]))]
    parts[_KEYS] = pack_keys(items, slots_of_keys)
    parts |= streams
    return index, membership, dict(sorted(parts.items()))


def open_effects(directory: str, engine: str, storage: Mapping[str, Any]) -> Effects:
    """The effects of the shard in a directory; `storage` is the section of the configuration."""
    options = EngineOptions()
    if "table_bytes" in storage:
        options = replace(options, table_bytes=storage["table_bytes"])
    path = join(directory, "kv")
    opened = open_engine(engine, path, options)
    if engine != "lmdb":
        return Effects(opened)
    root, name = os.path.split(directory)
    return Effects(opened, path, Streams(working_files(root, name), name))


_NO_SUCH_PARTITION = refuse(InvalidRequest("expected a partition of this shard, found another"))
