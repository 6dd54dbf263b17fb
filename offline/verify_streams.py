"""The entries of a shard's log against the logs of its partitions.

A batch is stored twice as long as the log holds its entry: in the entry, and in the log of the
partition. Both have checksums, so this finds no flipped bit; it finds what was written wrong.

The one rule: only what is in a partition's log is looked up in the shard's, never the other way. An
entry may have been refused, or repeated one that was there already, and only applying everything
again would tell.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgpack
from xxhash import xxh3_64_intdigest

from shardnode.shard.entries import HEADER_BYTES, kind_of
from shardnode.shard.streams import directory_of
from shardnode.storage.partition_records import BatchHeader as PartitionBatch
from shardnode.storage.partition_records import Mark
from shardnode.storage.records import BatchHeader, RecordView
from shardnode.wire.appends import view_append, view_append_many
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import RAFT_PARTITION as FIRST_INTERNAL


class MarkedPartition(NamedTuple):
    """A partition, where its files are, and how far they must be."""

    namespace: int
    directory: str
    mark: Mark


def marked_partitions(packed: bytes, shard: str) -> list[MarkedPartition]:
    """What the blob of streams says of the partitions of a shard; `ValueError` or `Corrupt` when it
    is none."""
    if not packed:
        return []
    try:
        generation, _, rows = msgpack.unpackb(packed)
        return [
            MarkedPartition(space, directory_of(shard, generation, space), Mark.decode(mark))
            for space, _, mark, _ in rows
        ]
    except TypeError as error:
        raise ValueError(f"other contents ({error})") from error


class StreamEntries:
    """What the log holds of stream partitions; numbers alone, for there may be millions."""

    def __init__(self) -> None:
        self._indexes = array("Q")
        self._partitions = array("Q")
        self._numbers = array("Q")
        self._counts = array("Q")
        self._checksums = array("Q")
        self._first = 0
        self._last = 0
        """The indexes that were seen; of others nothing is known."""

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._indexes, self._partitions, self._numbers, self._counts, self._checksums

    def visit(self, header: BatchHeader, records: Iterator[RecordView]) -> None:
        """Take a batch of the log; it may override the end of what was seen."""
        self._first = min(self._first, header.first) if self._first else header.first
        self._last = header.last
        self._forget_from(header.first)
        for index, partition, number, payload in records:
            if partition >= FIRST_INTERNAL:
                continue
            try:
                batches = _batches_of(kind_of(bytes(payload[:10])), payload[HEADER_BYTES:])
            except InvalidRequest:
                continue  # it was refused, when it was applied
            for count, batch in batches:
                row = (index, partition, number, count, xxh3_64_intdigest(batch))
                for column, value in zip(self._columns, row, strict=True):
                    column.append(value)

    def compare(self, partition: int, batch: PartitionBatch) -> str:
        """What is wrong with a batch of a partition's log; empty when nothing is, or nothing is
        known of its entry."""
        if not self._first <= batch.log_index <= self._last:
            return ""
        begin = bisect_left(self._indexes, batch.log_index)
        end = bisect_right(self._indexes, batch.log_index, lo=begin)
        expected = (partition, batch.index, batch.count, batch.payload_checksum)
        found = [tuple(column[at] for column in self._columns[1:]) for at in range(begin, end)]
        if expected in found:
            return ""
        return (
            f"the batch of offset {batch.offset} was made by entry {batch.log_index} of the shard's"
            f" log: expected partition, number, count and checksum {expected} there, found"
            f" {', '.join(map(str, found)) or 'no append'}"
        )

    def _forget_from(self, index: int) -> None:
        keep = bisect_left(self._indexes, index)
        if keep < len(self._indexes):
            for column in self._columns:
                del column[keep:]


def _batches_of(kind: int, body: memoryview) -> Sequence[tuple[int, bytes]]:
    """The count of each batch that an entry brings, and its bytes; raises `InvalidRequest`."""
    if kind == Kind.APPEND:
        ask = view_append(body)
        return [(ask.count, ask.batch)]
    return [*view_append_many(body).each()] if kind == Kind.APPEND_MANY else []
