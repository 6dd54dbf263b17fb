"""Owns one file of a partition log: its name, what is known of it in memory, and its footer.

    partitions/<name>/0000000007-00000000000000012345.seg     its number and its first offset

A segment is begun by the first batch inside and sealed by the first one that goes to the next: a
footer with the sparse index is appended, and it never changes again.

The one rule: names come and go without a sync, and nothing is renamed. What a crash may leave of
them lies above the mark, where everything is cut, or below the start of the log, where nothing is
read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from shardnode.storage.errors import Corrupt, PartitionDamaged
from shardnode.storage.files import File, join
from shardnode.storage.partition_records import (
    FOOTER_TAIL_BYTES,
    SEGMENT_HEADER_BYTES,
    Cursor,
    Footer,
    SegmentHeader,
    SparseIndex,
    decode_footer,
    decode_segment_header,
    footer_bytes,
    segment_checksum,
)
from shardnode.storage.partition_scan import damaged, walk

_SPARE_BYTES = 64 << 10
"""Messages are not all of one size."""

_NAME = re.compile(r"(\d{10})-(\d{20})\.seg")


class SegmentName(NamedTuple):
    """A segment as the directory lists it."""

    number: int
    base_offset: int
    path: str


class SealedSegment(NamedTuple):
    """A segment that never changes again. Equal checksums mean equal files, on any replica."""

    name: str
    base_offset: int
    end_offset: int
    size_bytes: int
    checksum: int  # 128 bits


class SegmentView(NamedTuple):
    """What memory knows of a segment, for those who decide about retention."""

    base_offset: int
    end_offset: int
    size_bytes: int
    last_stamp_ms: int
    is_sealed: bool


@dataclass(slots=True)
class Segment:
    """One file. Of the last segment the index may begin late, namely where the log was opened; of
    a sealed one it is read from the footer when somebody needs it."""

    path: str
    header: SegmentHeader
    size: int  # of the file
    end: Cursor  # of its batches; the position is unknown (0) until a sealed one's footer is read
    is_sealed: bool = False
    index: SparseIndex = field(default_factory=SparseIndex)
    is_indexed: bool = False  # from its first batch on
    opened: Cursor | None = None  # where the log was opened, of the last one
    checksum: int | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def bytes_of(self, messages: int) -> int:
        """About what so many of its messages take, and somewhat more."""
        count = max(self.end.offset - self.header.base_offset, 1)
        return messages * self.size // count * 5 // 4 + _SPARE_BYTES


def segment_path(directory: str, number: int, base_offset: int) -> str:
    return join(directory, f"{number:010}-{base_offset:020}.seg")


def name_of(directory: str, name: str) -> SegmentName | None:
    """A name in the directory of a partition, or None when it is no segment's."""
    match = _NAME.fullmatch(name)
    return SegmentName(int(match[1]), int(match[2]), join(directory, name)) if match else None


def read_segment_header(file: File, path: str) -> SegmentHeader:
    try:
        return decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0))
    except Corrupt as error:
        raise damaged(error, path, 0) from None


def first_cursor(header: SegmentHeader) -> Cursor:
    """Where the first batch of a segment begins."""
    return Cursor(SEGMENT_HEADER_BYTES, header.base_offset, header.seed)


def entry_is_due(position: int, previous: int, every: int) -> bool:
    """Whether the batch at `position` is the first that begins in its window; `previous` is where
    the one before it begins, 0 for the first of a segment."""
    return not previous or position // every != previous // every


def complete_index(segment: Segment, file: File, every: int) -> None:
    """Make the index of the last segment begin with its first batch, by a walk over headers."""
    known, end = segment.index, segment.opened
    assert end is not None, "an index that begins late begins where the log was opened"
    index = SparseIndex()
    previous = 0
    reached = first_cursor(segment.header)
    for cursor, header in walk(file, segment.path, reached, end.position):
        if entry_is_due(cursor.position, previous, every):
            index.add(cursor, header.stamp_ms)
        previous = cursor.position
        reached = cursor.after(header)
    if reached != end:
        raise PartitionDamaged(
            f"the batches before it should lead to offset {end.offset} chain {end.chain:016x}, "
            f"but lead to offset {reached.offset} chain {reached.chain:016x}",
            path=segment.path,
            offset=end.position,
        )
    index.extend(known)
    segment.index, segment.is_indexed = index, True


def read_footer(file: File, path: str, size: int) -> tuple[Footer, bytes]:
    """The footer of a sealed segment of this size, and its bytes."""
    start = max(size - FOOTER_TAIL_BYTES, 0)
    try:
        length = footer_bytes(file.pread(FOOTER_TAIL_BYTES, start), size)
        start = size - length
        data = file.pread(length, start)
        footer = decode_footer(data)
    except Corrupt as error:
        raise damaged(error, path, start) from None
    if footer.end.position != start:
        detail = f"the footer says that the batches end at byte {footer.end.position}, not here"
        raise PartitionDamaged(detail, path=path, offset=start)
    return footer, data


def load_footer(segment: Segment, file: File) -> None:
    """Take the index of a sealed segment from its footer."""
    footer, data = read_footer(file, segment.path, segment.size)
    if footer.end[1:] != segment.end[1:]:
        raise PartitionDamaged(
            f"the next segment continues offset {segment.end.offset} chain "
            f"{segment.end.chain:016x}, but this one ends with offset {footer.end.offset} chain "
            f"{footer.end.chain:016x}",
            path=segment.path,
            offset=footer.end.position,
        )
    segment.checksum = segment_checksum(segment.header.encode(), data)
    segment.index, segment.end, segment.is_indexed = footer.index, footer.end, True
