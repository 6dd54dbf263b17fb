"""One stream partition as a state machine: what an entry does to it.

The one rule: its state is its mark, and what was applied is what the mark says; the log follows
with `write`. The same entries give the same marks and replies on every replica, also where files
are damaged or the disk is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from shardnode.raft import Entry
from shardnode.shard.entries import STREAM_TRIM, Command, accept, refuse
from shardnode.storage.partition_log import Batch, Mark, PartitionLog
from shardnode.wire.appends import view_append, view_append_many
from shardnode.wire.errors import Conflict, InvalidRequest, ShardnodeError
from shardnode.wire.kinds import Kind
from shardnode.wire.streams import Append, Appended, AppendMany

PRODUCERS_MAX = 1_000
"""Remembered in one partition; who appended longest ago is forgotten first."""


class Last(NamedTuple):
    """The last batch of one producer."""

    sequence: int
    offset: int
    stamp_ms: int


class Stream:
    """One partition."""

    def __init__(self, namespace: int, settings: Mapping[str, Any], mark: Mark) -> None:
        self.namespace = namespace
        self.settings = dict(settings)
        self.mark = mark
        """Where the partition stands; its log may be behind until `write`."""
        self.producers: dict[bytes, Last] = {}
        self.log: PartitionLog | None = None
        self.damage = ""
        """Why it is fenced; empty when it is not."""
        self.unwritten: list[Batch] = []
        """What the log does not have yet."""
        self.packed: bytes | None = None
        """What `encode` gave, until something changes: most partitions of many are quiet."""
        self.tail: deque[Batch] | None = None
        """The last batches, when the partition's policy asks for more than a majority."""

    def append(self, batches: Sequence[Batch]) -> None:
        """What one entry brought. The mark moves on; the log follows with `write`."""
        self.packed = None
        self.unwritten += batches
        if self.tail is not None:
            self.tail.extend(batch._replace(payload=b"") for batch in batches)
        last = batches[-1]
        self.mark = self.mark._replace(
            index=last.index,
            log_index=last.log_index,
            stamp_ms=max(last.stamp_ms, self.mark.stamp_ms),
            end_offset=last.offset + last.count,
        )

    def trim(self, offset: int) -> None:
        """The partition begins there, unless it begins later already; `write` tells the log."""
        offset = min(offset, self.mark.end_offset)
        if offset > self.mark.first_offset:
            self.packed = None
            self.mark = self.mark._replace(first_offset=offset)

    def write(self) -> None:
        """Bring the log up to the mark."""
        if self.log is None:
            self.unwritten.clear()
            return
        if self.unwritten:
            self.log.append(self.unwritten)
            self.unwritten.clear()
        self.log.trim(self.mark.first_offset)
        self.packed = None
        self.mark = self.log.mark

    def encode(self) -> bytes:
        """Its row in the state of all partitions."""
        if self.packed is None:
            producers = [[name, *last] for name, last in self.producers.items()]
            row = [self.namespace, self.settings, self.mark.encode(), producers]
            self.packed = bytes(msgpack.packb(row))
        return self.packed

    def end_before(self, log_index: int) -> int:
        """Behind the last message that an entry below `log_index` brought; of what is not below it
        all must be in `tail`."""
        while self.tail and self.tail[0].log_index < log_index:
            self.tail.popleft()
        return self.tail[0].offset if self.tail else self.mark.end_offset

    def fence(self, why: str) -> None:
        """Its files are of no use."""
        self.damage = why
        if self.log is not None:
            self.log.close()
            self.log = None


def run(stream: Stream, entry: Entry, command: Command) -> bytes:
    """One command; whatever is wrong with it is a reply."""
    try:
        if command.kind == STREAM_TRIM:
            stream.trim(_offset_of(command))
            return accept(b"")
        if command.kind == Kind.APPEND:
            done = _append(stream, entry, command, view_append(command.body))
        elif command.kind == Kind.APPEND_MANY:
            done = _append_many(stream, entry, command, view_append_many(command.body))
        else:
            raise InvalidRequest(f"expected a request of a stream, found kind {command.kind}")
        return accept(done.encode())
    except ShardnodeError as error:
        return refuse(error)


def _offset_of(command: Command) -> int:
    try:
        offset = msgpack.unpackb(command.body)
    except ValueError as problem:
        raise InvalidRequest("expected an offset, found another body") from problem
    if type(offset) is not int:
        raise InvalidRequest("expected an offset, found another body")
    return offset


def _append(stream: Stream, entry: Entry, command: Command, ask: Append) -> Appended:
    last = stream.producers.get(ask.producer) if ask.producer else None
    if last is not None and ask.producer_sequence <= last.sequence:
        if ask.producer_sequence == last.sequence:
            return Appended(last.offset, last.stamp_ms)
        raise Conflict(
            f"expected a sequence above {last.sequence} of producer {ask.producer!r}, found"
            f" {ask.producer_sequence}; number each batch once, upwards",
            version=last.sequence,
        )
    stamp_ms = max(command.stamp_ms, stream.mark.stamp_ms)
    offset = stream.mark.end_offset
    batch = Batch(entry.partition_index, entry.index, offset, ask.count, stamp_ms, ask.batch)
    stream.append((batch,))
    if ask.producer:
        stream.producers.pop(ask.producer, None)
        stream.producers[ask.producer] = Last(ask.producer_sequence, offset, stamp_ms)
        if len(stream.producers) > PRODUCERS_MAX:
            del stream.producers[next(iter(stream.producers))]
    return Appended(offset, stamp_ms)


def _append_many(stream: Stream, entry: Entry, command: Command, ask: AppendMany) -> Appended:
    stamp_ms = max(command.stamp_ms, stream.mark.stamp_ms)
    first = offset = stream.mark.end_offset
    batches: list[Batch] = []
    for count, payload in ask.each():
        batches.append(Batch(entry.partition_index, entry.index, offset, count, stamp_ms, payload))
        offset += count
    stream.append(batches)
    return Appended(first, stamp_ms)
