"""Owns how batches become bytes at places: which segment each goes to, and when one is sealed.

The one rule: a plan changes nothing. It is worked out, and only then taken over, so that what is
refused on the way has nothing to undo. Where a segment ends follows from the batches and the
options alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shardnode.storage.errors import TooLarge
from shardnode.storage.files import Buffer
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.partition_records import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Batch,
    Cursor,
    Footer,
    Mark,
    SegmentHeader,
    SparseIndex,
    encode_batch_header,
    segment_checksum,
)
from shardnode.storage.partition_segment import Segment, entry_is_due, segment_path

_LARGE_PAYLOAD_BYTES = 16 << 10
"""From here on a payload gets a buffer of its own; joining smaller ones costs less (records.py)."""

_NOWHERE = Cursor(0, 0, 0)


@dataclass(slots=True)
class Piece:
    """What goes to one segment, with one write."""

    segment: Segment
    start: int  # position of its first byte
    is_new: bool
    buffers: list[Buffer] = field(default_factory=list)
    small: list[bytes] = field(default_factory=list)  # to be joined
    entries: SparseIndex = field(default_factory=SparseIndex)
    end: Cursor = _NOWHERE
    size: int = 0  # of the file afterwards
    checksum: int | None = None  # when this seals it

    def add(self, data: bytes) -> None:
        if len(data) < _LARGE_PAYLOAD_BYTES:
            self.small.append(data)
        else:
            self.join()
            self.buffers.append(data)

    def join(self) -> None:
        if self.small:
            self.buffers.append(b"".join(self.small))
            self.small = []

    def take_over(self) -> None:
        """Make memory say what will be written."""
        self.segment.index.extend(self.entries)
        self.segment.end, self.segment.size = self.end, self.size
        self.segment.is_sealed = self.checksum is not None
        self.segment.checksum = self.checksum


class Plan:
    """Batches laid out after `mark`, which is where `last` ends."""

    def __init__(
        self,
        directory: str,
        options: PartitionOptions,
        mark: Mark,
        last: Segment | None,
        indexed: Callable[[Segment], SparseIndex],
    ) -> None:
        """`indexed` gives the whole index of the last segment; it is asked when that is sealed."""
        self.pieces: list[Piece] = []
        self.mark = mark
        self._directory = directory
        self._options = options
        self._indexed = indexed
        if last is not None:
            self.pieces.append(Piece(last, mark.position, is_new=False))

    def lay_out(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._check(batch)
            total = BATCH_HEADER_BYTES + len(batch.payload)
            if self._rolls(total):
                self._roll(batch)
            self._add(batch, total)
        self._finish()

    def _check(self, batch: Batch) -> None:
        mark = self.mark
        size, limit = len(batch.payload), self._options.batch_bytes_max
        if size > limit:
            raise TooLarge(f"the batch of offset {batch.offset}", size, limit)
        assert batch.offset == mark.end_offset, f"{batch.offset} where {mark.end_offset} is next"
        assert batch.count > 0, "a batch without messages"
        assert batch.index >= mark.index, f"index {batch.index} after {mark.index}"
        assert batch.log_index >= mark.log_index, f"entry {batch.log_index} after {mark.log_index}"
        same = batch.index == mark.index, batch.log_index == mark.log_index
        assert same[0] == same[1], f"{batch} is of the entry before it by one number only"
        assert batch.stamp_ms >= mark.stamp_ms, f"stamp {batch.stamp_ms} after {mark.stamp_ms}"

    def _rolls(self, total: int) -> bool:
        mark, options = self.mark, self._options
        return (
            not mark.batches
            or mark.position + total > options.segment_bytes
            or mark.batches >= options.segment_batches
        )

    def _roll(self, batch: Batch) -> None:
        """Seal the segment, if there is one, and begin the next with `batch`."""
        size = self._seal() if self.pieces else 0
        mark = self.mark
        header = SegmentHeader(
            number=mark.segment + 1,
            base_offset=batch.offset,
            chain=mark.chain,
            index=mark.index,
            log_index=mark.log_index,
            stamp_ms=mark.stamp_ms,
            previous_bytes=size,
        )
        path = segment_path(self._directory, header.number, header.base_offset)
        segment = Segment(path, header, 0, Cursor(0, batch.offset, 0), is_indexed=True)
        piece = Piece(segment, 0, is_new=True)
        piece.add(header.encode())
        self.pieces.append(piece)
        self.mark = mark._replace(
            segment=header.number,
            position=SEGMENT_HEADER_BYTES,
            chain=header.seed,
            last_bytes=0,
            batches=0,
        )

    def _seal(self) -> int:
        """Append the footer. Returns the size of the file."""
        self._finish()
        piece = self.pieces[-1]
        index = SparseIndex()
        index.extend(self._indexed(piece.segment))
        index.extend(piece.entries)
        footer = Footer(index, self.mark.batches, piece.end).encode()
        piece.add(footer)
        piece.join()
        piece.size += len(footer)
        piece.checksum = segment_checksum(piece.segment.header.encode(), footer)
        return piece.size

    def _add(self, batch: Batch, total: int) -> None:
        piece, mark = self.pieces[-1], self.mark
        previous = mark.position - mark.last_bytes if mark.last_bytes else 0
        if entry_is_due(mark.position, previous, self._options.index_every_bytes):
            cursor = Cursor(mark.position, batch.offset, mark.chain)
            piece.entries.add(cursor, batch.stamp_ms)
        header, chain = encode_batch_header(batch, mark.chain)
        piece.small.append(header)
        piece.add(batch.payload)
        self.mark = Mark(
            batch.index,
            batch.log_index,
            batch.stamp_ms,
            batch.offset + batch.count,
            mark.first_offset,
            chain,
            mark.segment,
            mark.position + total,
            total,
            mark.batches + 1,
        )

    def _finish(self) -> None:
        piece, mark = self.pieces[-1], self.mark
        piece.join()
        piece.end = Cursor(mark.position, mark.end_offset, mark.chain)
        piece.size = mark.position
