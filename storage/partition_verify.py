"""Owns the check of whole segments of a partition log, of one's own and of those just received.

The one rule: every byte counts. A sealed segment passes only when it is exactly what its batches
make, footer included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardnode.storage.errors import PartitionDamaged
from shardnode.storage.files import File, Files, join
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.partition_records import (
    BatchHeader,
    Cursor,
    Footer,
    SegmentHeader,
    SparseIndex,
    segment_checksum,
)
from shardnode.storage.partition_scan import scan
from shardnode.storage.partition_segment import (
    SealedSegment,
    Segment,
    entry_is_due,
    first_cursor,
    read_footer,
    read_segment_header,
)

_STEP_BYTES = 4 << 20
_DEFAULTS = PartitionOptions()

Look = Callable[[BatchHeader], None]
"""Shown the header of each sound batch."""


def verify_segment(
    segment: Segment, file: File, every: int, look: Look | None = None
) -> Iterator[int]:
    """Check what is written of an open log's segment by now. Yields the offset reached, about
    every 4 MiB and at the end."""
    path, end, size = segment.path, segment.end, segment.size
    header = read_segment_header(file, path)
    if header != segment.header:
        raise _damaged(path, 0, f"expected {segment.header}, found {header}")
    if not segment.is_sealed:
        yield from _verify(file, path, header, end, None, every, look)
        return
    footer, data = read_footer(file, path, size)
    if footer.end[1:] != end[1:]:
        raise _damaged(path, footer.end.position, f"expected the end {end}, found {footer.end}")
    yield from _verify(file, path, header, footer.end, data, every, look)
    if file.size() != size:
        raise _damaged(path, size, f"expected {size} bytes, found {file.size()}")


def check_sealed(
    files: Files, directory: str, sealed: SealedSegment, options: PartitionOptions = _DEFAULTS
) -> None:
    """Raise `PartitionDamaged` unless the file in `directory` is the segment that another replica
    listed so; for one that was just received."""
    path = join(directory, sealed.name)
    file = files.open(path)
    try:
        if file.size() != sealed.size_bytes:
            detail = f"expected {sealed.size_bytes} bytes, found {file.size()}"
            raise _damaged(path, file.size(), detail)
        header = read_segment_header(file, path)
        footer, data = read_footer(file, path, sealed.size_bytes)
        found = segment_checksum(header.encode(), data)
        if found != sealed.checksum:
            raise _damaged(path, 0, f"expected checksum {sealed.checksum:032x}, found {found:032x}")
        for _ in _verify(file, path, header, footer.end, data, options.index_every_bytes):
            pass
    finally:
        file.close()


def _verify(
    file: File,
    path: str,
    header: SegmentHeader,
    end: Cursor,
    footer: bytes | None,
    every: int,
    look: Look | None = None,
) -> Iterator[int]:
    """Check the batches of a segment, and that they make these bytes of a footer, if any."""
    index = SparseIndex()
    batches = previous = 0
    reached = first_cursor(header)
    step_end = _STEP_BYTES
    for cursor, batch in scan(file, path, reached, end.position):
        if entry_is_due(cursor.position, previous, every):
            index.add(cursor, batch.stamp_ms)
        batches += 1
        if look is not None:
            look(batch)
        previous = cursor.position
        reached = cursor.after(batch)
        if reached.position >= step_end:
            yield reached.offset
            step_end = reached.position + _STEP_BYTES
    if reached != end:
        raise _damaged(path, reached.position, f"expected the end {end}, found {reached}")
    if footer is not None and Footer(index, batches, end).encode() != footer:
        raise _damaged(path, end.position, "expected the footer of these batches, found another")
    yield reached.offset


def _damaged(path: str, position: int, detail: str) -> PartitionDamaged:
    return PartitionDamaged(detail, path=path, offset=position)
