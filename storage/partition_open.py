"""Owns what is believed of the files of a partition log when it is opened with a mark.

The mark says where the log was durable to. What lies above it, sound or not, is cut, because redo
brings it again; what lies below the start of the log waits for `release`. Between the two every
segment must be there, whole, and fit to the next one, and the last batch must be the mark's.
Content is not read: the chain tells when somebody does.

The one rule: first look at everything, then change. When something is missing or damaged, nothing
has been changed.
"""

from __future__ import annotations

from typing import NamedTuple

from shardnode.storage.errors import PartitionDamaged
from shardnode.storage.files import Files
from shardnode.storage.partition_records import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Cursor,
    Mark,
    SegmentHeader,
    claimed,
)
from shardnode.storage.partition_segment import (
    Segment,
    SegmentName,
    name_of,
    read_segment_header,
    segment_path,
)


class Found(NamedTuple):
    """The files of a partition, sorted by what becomes of them."""

    segments: list[Segment]  # from the start of the log to the mark
    leftovers: list[str]  # below the start
    surplus: list[str]  # above the mark
    is_longer: bool  # whether the last segment goes on after the mark


def look(files: Files, directory: str, mark: Mark) -> Found:
    """Judge what there is; `PartitionDamaged` when it is not all that the mark promises."""
    names = files.listdir(directory) if files.exists(directory) else []
    present = sorted(filter(None, (name_of(directory, name) for name in names)))
    surplus = [each.path for each in present if each.number > mark.segment]
    kept = [each for each in present if each.number <= mark.segment]
    if not mark.segment:
        return Found([], [], surplus, is_longer=False)
    if mark.first_offset > mark.end_offset:
        detail = f"a log that starts at {mark.first_offset} cannot end at {mark.end_offset}"
        raise PartitionDamaged(detail, path=directory, offset=0)
    start = max(
        (n for n, each in enumerate(kept) if each.base_offset <= mark.first_offset), default=-1
    )
    if start < 0:
        lowest = f"the lowest begins at {kept[0].base_offset}" if kept else "there is none"
        detail = f"a segment with offset {mark.first_offset} is missing, {lowest}"
        raise PartitionDamaged(detail, path=directory, offset=0)
    needed = kept[start:]
    _check_numbers(directory, needed, mark)
    segments: list[Segment] = []
    for name in needed:
        segment = _read(files, name)
        if segments:
            _join(segments[-1], segment.header)
        segments.append(segment)
    is_longer = _check_end(files, segments[-1], mark)
    return Found(segments, [each.path for each in kept[:start]], surplus, is_longer)


def cut(files: Files, found: Found, mark: Mark) -> None:
    """Remove what lies above the mark."""
    for path in reversed(found.surplus):
        files.remove(path)
    if found.is_longer:
        file = files.open(found.segments[-1].path)
        try:
            file.truncate(mark.position)
        finally:
            file.close()


def _check_numbers(directory: str, needed: list[SegmentName], mark: Mark) -> None:
    number = needed[0].number
    for name in needed:
        if name.number != number:
            break
        number += 1
    if number != mark.segment + 1 or len(needed) != number - needed[0].number:
        raise PartitionDamaged(
            f"segments {needed[0].number} to {mark.segment} should be there, each once, "
            f"found {[each.number for each in needed][:100]}",
            path=directory,
            offset=0,
        )


def _read(files: Files, name: SegmentName) -> Segment:
    file = files.open(name.path)
    try:
        header = read_segment_header(file, name.path)
        size = file.size()
    finally:
        file.close()
    if (header.number, header.base_offset) != (name.number, name.base_offset):
        other = segment_path("", header.number, header.base_offset)
        raise PartitionDamaged(f"this is what {other} should hold", path=name.path, offset=0)
    return Segment(name.path, header, size, Cursor(0, 0, 0))


def _join(sealed: Segment, header: SegmentHeader) -> None:
    """The next segment says how this one ends."""
    if sealed.size != header.previous_bytes:
        detail = f"this sealed segment should have {header.previous_bytes} bytes, has {sealed.size}"
        raise PartitionDamaged(detail, path=sealed.path, offset=sealed.size)
    sealed.is_sealed = True
    sealed.end = Cursor(0, header.base_offset, header.chain)


def _check_end(files: Files, last: Segment, mark: Mark) -> bool:
    """Whether the last segment goes on after the mark, where it must have the mark's batch."""
    position = mark.position - mark.last_bytes
    if position < SEGMENT_HEADER_BYTES or last.size < mark.position:
        detail = f"{mark.position} bytes were durable, found {last.size}"
        raise PartitionDamaged(detail, path=last.path, offset=last.size)
    file = files.open(last.path)
    try:
        found = claimed(file.pread(BATCH_HEADER_BYTES, position))
    finally:
        file.close()
    length = mark.last_bytes - BATCH_HEADER_BYTES
    expected = (length, mark.index, mark.log_index, mark.end_offset, mark.stamp_ms, mark.chain)
    if found != expected:
        what = "length, index, log index, end offset, stamp and chain"
        detail = f"the last durable batch should have {what} {expected}, found {found}"
        raise PartitionDamaged(detail, path=last.path, offset=position)
    is_longer = last.size > mark.position
    last.size = mark.position
    last.end = last.opened = Cursor(mark.position, mark.end_offset, mark.chain)
    return is_longer
