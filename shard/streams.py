"""The stream partitions of one shard: a state machine for each, over an append-only log of its own.

    PARTITIONS_SET          partitions exist from now on, or no more
    APPEND                  its batch goes to the partition's log, as the bytes that came
    STREAM_TRIM             the partition begins at a later offset: retention

The one rule: a partition's state is its mark, and what was applied is what the mark says. Files are
written behind it, by a thread, and synced before a transaction of the engine keeps the mark; after
a crash they are cut back to the mark that is kept, and the entries after it are applied again.

A partition whose files are damaged is fenced: nobody reads or appends there, and it is named. Its
mark goes on with the log, so that this replica agrees with the others, but its files do not: they
are whole again when a snapshot replaces them. The other partitions know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgpack

from shardnode.raft import Entry
from shardnode.shard.entries import accept, decode_entry, refuse
from shardnode.shard.once import run_once
from shardnode.shard.sessions import SessionTable
from shardnode.shard.stream import Last, Stream, run
from shardnode.storage.errors import Corrupt as Corrupted
from shardnode.storage.errors import OffsetPastEnd, OffsetTrimmed
from shardnode.storage.files import Files, join
from shardnode.storage.partition_log import (
    NOTHING,
    Batch,
    Handles,
    Mark,
    PartitionLog,
    PartitionOptions,
    SyncWork,
)
from shardnode.wire.errors import (
    Compacted,
    Corrupt,
    InvalidRequest,
    NotFound,
    ShardnodeError,
)
from shardnode.wire.frames import NO_CLIENT

PARTITIONS_DIRECTORY = "partitions"


class Streams:
    """All stream partitions of one shard."""

    def __init__(self, files: Files, directory: str) -> None:
        """`directory`: the shard's."""
        self.files = files
        self.shard = directory
        self._directory = join(directory, PARTITIONS_DIRECTORY)
        self.version = 0
        """Of the topics that these partitions are made of."""
        self._generation = 0
        self._handles = Handles(files)
        self._streams: dict[int, Stream] = {}
        self._dirty: set[int] = set()
        self._behind: set[int] = set()
        """Partitions that were applied to since the last `write`."""
        self._works: list[tuple[PartitionLog, SyncWork]] = []
        """Of the flush that is under way."""
        self._syncing: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self.damage = ""
        """What is wrong with the first partition that was fenced; empty when none is."""
        self.grown: set[int] = set()
        """Partitions that were appended to; whoever wakes their readers empties it."""
        self._marks: list[tuple[int, dict[int, Mark]]] = []
        """(index, marks) of transactions that are kept and may still be undone."""

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def settings(self) -> dict[int, dict[str, Any]]:
        """Partition → what it was set to."""
        return {stream.namespace: stream.settings for stream in self}

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def path(self, namespace: int) -> str:
        """Where a partition has its files."""
        return directory_of(self.shard, self._generation, namespace)

    # -- applying -----------------------------------------------------------------------------

    def set(self, body: bytes | memoryview) -> bytes:
        """PARTITIONS_SET; its reply. A leader that has not heard of the newest topics changes
        nothing: what was dropped stays dropped."""
        try:
            version, changes, is_last = msgpack.unpackb(body)
            numbers = [version, *(namespace for namespace, _ in changes)]
            settings = [each for _, each in changes if each is not None]
            if {*map(type, numbers)} != {int} or not {*map(type, settings)} <= {dict}:
                raise TypeError("numbers and settings")
        except (ValueError, TypeError):
            return refuse(InvalidRequest("expected [version, changes, last], found another body"))
        if version > self.version:
            for namespace, wanted in changes:
                self._set(namespace, wanted)
            self.version = version if is_last else self.version
        return accept(b"")

    def _set(self, namespace: int, settings: dict[str, Any] | None) -> None:
        if settings is None:
            self._drop(namespace)
        elif namespace in self._streams:
            self._streams[namespace].settings = settings
            self._streams[namespace].packed = None
        else:
            self._streams[namespace] = self._open(Stream(namespace, settings, NOTHING))

    def _drop(self, namespace: int) -> None:
        stream = self._streams.pop(namespace, None)
        self._dirty.discard(namespace)
        if stream is not None and stream.log is not None:
            stream.log.close()

    def apply(self, entries: Sequence[Entry], sessions: SessionTable) -> list[bytes]:
        """Entries of one partition take effect, in order; a reply for each. Readers find them after
        `write`."""
        stream = self._streams.get(entries[0].partition)
        if stream is None:
            return [_NO_SUCH_PARTITION] * len(entries)
        before = stream.mark
        replies = [self._apply(stream, entry, sessions) for entry in entries]
        if stream.mark is not before:
            self._behind.add(stream.namespace)
            self._dirty.add(stream.namespace)
            self.grown.add(stream.namespace)
        return replies

    def write(self) -> None:
        """Bring the logs up to what was applied: one step for each partition, however the entries
        of one drain alternate between them."""
        for namespace in self._behind:
            if stream := self._streams.get(namespace):
                stream.write()
        self._behind.clear()

    def _apply(self, stream: Stream, entry: Entry, sessions: SessionTable) -> bytes:
        try:
            command = decode_entry(entry.payload)
        except ShardnodeError as error:
            return refuse(error)
        if command.client_id == NO_CLIENT:
            return run(stream, entry, command)
        return run_once(sessions, command, lambda: run(stream, entry, command))

    # -- reading ------------------------------------------------------------------------------

    def of(self, namespace: int) -> Stream:
        """A partition that may be used; raises `NotFound` or `Corrupt`."""
        stream = self._streams.get(namespace)
        if stream is None:
            raise NotFound(f"expected a partition of this shard, found namespace {namespace:#x}")
        if stream.damage:
            raise Corrupt(f"partition {namespace:#x} is fenced: {stream.damage}")
        return stream

    def get(self, namespace: int) -> Stream | None:
        """A partition, damaged or not."""
        return self._streams.get(namespace)

    def mark_of(self, namespace: int) -> Mark:
        """Where a partition stands, damaged or not: the same on every replica."""
        stream = self._streams.get(namespace)
        if stream is None:
            raise NotFound(f"expected a partition of this shard, found namespace {namespace:#x}")
        return stream.mark

    def read(
        self, namespace: int, offset: int, *, end: int, bytes_max: int, messages_max: int = 1 << 62
    ) -> list[Batch]:
        """Batches from the one that holds `offset`, of those that end at or below `end`, up to the
        one that has the last of `messages_max`. Damage that is found on the way fences the
        partition."""
        stream = self.of(namespace)
        assert stream.log is not None
        try:
            found = stream.log.read(offset, bytes_max=bytes_max, messages_max=messages_max)
        except OffsetTrimmed as error:
            raise Compacted(str(error), first_available=error.first_available) from error
        except OffsetPastEnd as error:
            raise InvalidRequest(str(error)) from error
        except Corrupted as error:
            self.fence(stream, str(error))
            raise Corrupt(f"partition {namespace:#x} is fenced: {error}") from error
        return [batch for batch in found if batch.offset + batch.count <= end]

    # -- flushing -----------------------------------------------------------------------------

    def begin_flush(self) -> None:
        """What is applied now is to become durable; its marks are in `encode`. Files are written
        and synced in a thread; see `synced`."""
        assert not self._works, "one at a time"
        for namespace in sorted(self._dirty):
            stream = self._streams[namespace]
            if stream.log is not None:
                self._works.append((stream.log, stream.log.begin_sync()))
        self._dirty.clear()
        if self._works:
            self._submit()

    def synced(self, *, wait: bool) -> bool:
        """Whether the files of the flush are durable, so that its transaction may be committed.
        After `NoSpace` the next call goes on."""
        if not self._works:
            return True
        syncing = self._syncing or self._submit()
        if not wait and not syncing.done():
            return False
        self._syncing = None
        syncing.result()
        while self._works:
            log, work = self._works[0]
            log.end_sync(work)
            del self._works[0]
        return True

    def _submit(self) -> Future[None]:
        self._pool = self._pool or ThreadPoolExecutor(1, "partitions")
        self._syncing = self._pool.submit(_sync, [work for _, work in self._works])
        return self._syncing

    def committed(self, index: int, durable_index: int) -> None:
        """A transaction with the marks at `index` was committed; the one at `durable_index` is what
        no crash can undo: files that it does not need are removed."""
        self._marks.append((index, {s.namespace: s.log.durable for s in self if s.log is not None}))
        kept = [marks for at, marks in self._marks if at <= durable_index]
        if not kept:
            return
        self._marks = [(at, marks) for at, marks in self._marks if at > durable_index]
        for namespace, mark in kept[-1].items():
            stream = self._streams.get(namespace)
            if stream is not None and stream.log is not None:
                stream.log.release(mark)

    # -- generations --------------------------------------------------------------------------

    def next_generation(self) -> int:
        """A number for the files of a snapshot; what an earlier attempt left there is removed."""
        number = self._generation + 1
        path = join(self._directory, f"{number:08}")
        if self.files.exists(path):
            self.files.remove_tree(path)
        return number

    def sync_generation(self, number: int) -> None:
        """Make the names of a generation durable."""
        path = join(self._directory, f"{number:08}")
        if self.files.exists(path):
            self.files.sync_dir(path)
            self.files.sync_dir(self._directory)
            self.files.sync_dir(self.shard)

    # -- the whole state ----------------------------------------------------------------------

    def encode(self) -> bytes:
        """For the transaction of a flush, and for a snapshot."""
        if not self.version:
            return b""
        header = msgpack.Packer().pack_array_header
        rows = [stream.encode() for _, stream in sorted(self._streams.items())]
        numbers = map(msgpack.packb, (self._generation, self.version))
        return b"".join((header(3), *numbers, header(len(rows)), *rows))

    def load(self, data: bytes) -> None:
        """The inverse: open every partition at its mark; one that is damaged is fenced."""
        self.close()
        self._generation, self.version, rows = msgpack.unpackb(data) if data else (0, 0, [])
        for namespace, settings, mark, producers in rows:
            stream = Stream(namespace, settings, Mark.decode(mark))
            stream.producers = {name: Last(*last) for name, *last in producers}
            self._streams[namespace] = self._open(stream)
        self._sweep()

    def _open(self, stream: Stream) -> Stream:
        path, options = self.path(stream.namespace), _options(stream.settings)
        try:
            stream.log = PartitionLog.open(
                self.files, path, options, durable=stream.mark, handles=self._handles
            )
        except Corrupted as error:
            self.fence(stream, f"{type(error).__name__}: {error}")
        return stream

    def fence(self, stream: Stream, why: str) -> None:
        """Nobody uses this partition any more; it is named."""
        stream.fence(why)
        self.damage = self.damage or f"partition {stream.namespace:#x} is fenced: {why}"

    def _sweep(self) -> None:
        """Remove what is not in force: other generations, and partitions that were dropped."""
        if not self.files.exists(self._directory):
            return
        current = f"{self._generation:08}"
        for name in self.files.listdir(self._directory):
            path = join(self._directory, name)
            if name != current:
                self.files.remove_tree(path)
                continue
            known = {f"{namespace:016x}" for namespace in self._streams}
            for partition in set(self.files.listdir(path)) - known:
                self.files.remove_tree(join(path, partition))

    def close(self) -> None:
        """Give the files back; what was not synced is applied again."""
        if self._syncing is not None:
            self._syncing.exception()  # whatever came of it does not matter any more
            self._syncing = None
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for stream in self._streams.values():
            if stream.log is not None:
                stream.log.close()
        self._streams, self._marks, self._works, self.damage = {}, [], [], ""
        self._dirty.clear()
        self._behind.clear()


def directory_of(shard: str, generation: int, namespace: int) -> str:
    """Where a partition has its files. A snapshot brings a new generation of all of them."""
    path = join(join(shard, PARTITIONS_DIRECTORY), f"{generation:08}")
    return join(path, f"{namespace:016x}")


def _sync(works: Iterable[SyncWork]) -> None:
    """One after the other, up to one that cannot be done now."""
    for work in works:
        if not work.is_done:
            work.run()
            if work.error is not None:
                return


def _options(settings: Mapping[str, Any]) -> PartitionOptions:
    size = settings.get("segment_bytes")
    return PartitionOptions(segment_bytes=size) if size else PartitionOptions()


_NO_SUCH_PARTITION = refuse(
    NotFound("expected a partition of this shard, found one that is none, or none any more")
)
