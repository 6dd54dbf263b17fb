"""The logs of stream partitions as people read them.

The one rule: a file is shown as far as its chain goes; where the mark of the keys says less, what
lies above it is cut at the next start, and the rows of the shard say up to where that is.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardnode.offline.rows import Row, hexadecimal, partition_name, time_of
from shardnode.offline.verify_streams import MarkedPartition
from shardnode.storage.errors import Corrupt
from shardnode.storage.files import Files
from shardnode.storage.partition_open import look
from shardnode.storage.partition_records import (
    BATCH_HEADER_BYTES,
    FOOTER_TAIL_BYTES,
    Batch,
    Footer,
)
from shardnode.storage.partition_scan import read_batches
from shardnode.storage.partition_segment import (
    first_cursor,
    read_footer,
    read_segment_header,
)
from shardnode.wire.batches import unpack_batch
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.streams import MessageBatch

_PIECE_BYTES = 4 << 20


def partition_row(marked: MarkedPartition) -> Row:
    """How far a partition is, as the keys say."""
    mark = marked.mark
    return {
        "row": "partition",
        "partition": partition_name(marked.namespace),
        "directory": marked.directory,
        "first_offset": mark.first_offset,
        "end_offset": mark.end_offset,
        "last_number": mark.index,
        "last_index": mark.log_index,
        "last_time": time_of(mark.stamp_ms),
        "segment": mark.segment,
        "position": mark.position,
    }


def partition_rows(files: Files, marked: MarkedPartition) -> Iterator[Row]:
    """Its batches, up to the mark."""
    for segment in look(files, marked.directory, marked.mark).segments:
        end = segment.size if segment.is_sealed else segment.end.position
        for row in segment_file_rows(files, segment.path, end):
            if row["row"] == "batch":
                yield row


def segment_file_rows(files: Files, path: str, end: int | None = None) -> Iterator[Row]:
    """One file: its header, its batches, and its footer when it is sealed."""
    file = files.open(path)
    try:
        size = file.size() if end is None else end
        header = read_segment_header(file, path)
        footer = _footer(files, path, size)
        yield {
            "row": "segment",
            "file": path,
            "number": header.number,
            "base_offset": header.base_offset,
            "after_index": header.log_index,
            "after_chain": hexadecimal(header.chain),
            "bytes": size,
            "sealed": footer is not None,
        }
        cursor = first_cursor(header)
        stop = footer.end.position if footer is not None else size
        while cursor.position + BATCH_HEADER_BYTES <= stop:
            batches, cursor = read_batches(
                file,
                path,
                cursor,
                stop,
                offset=cursor.offset,
                piece_bytes=_PIECE_BYTES,
                bytes_max=_PIECE_BYTES,
                batches_max=1_000,
                messages_max=1 << 62,
            )
            for batch in batches:
                yield batch_row(batch)
        if footer is not None:
            row: Row = {"row": "footer", "batches": footer.batches, "entries": len(footer.index)}
            yield row | {"end_offset": footer.end.offset, "chain": hexadecimal(footer.end.chain)}
    finally:
        file.close()


def _footer(files: Files, path: str, size: int) -> Footer | None:
    file = files.open(path)
    try:
        return read_footer(file, path, size)[0] if size > FOOTER_TAIL_BYTES else None
    except Corrupt:
        return None  # not sealed; or damaged, which the batches before it will tell
    finally:
        file.close()


def batch_row(batch: Batch) -> Row:
    """One batch, with what its first message begins with."""
    row: Row = {
        "row": "batch",
        "offset": batch.offset,
        "messages": batch.count,
        "time": time_of(batch.stamp_ms),
        "number": batch.index,
        "index": batch.log_index,
        "bytes": len(batch.payload),
    }
    try:
        messages = MessageBatch.decode(unpack_batch(batch.payload))
    except InvalidRequest:
        return row | {"first_value": "unreadable"}
    return row | {"first_value": messages.values[0]}
