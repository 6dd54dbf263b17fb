"""The segmented log as people read it: a segment as it lies in its file, or the log that all of
them amount to.

The one rule: a file is shown as it is, batches that were overridden later included; a shard's log
as a start would read it. Memory is bounded by one batch, or a piece of the log.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardnode.offline.rows import Row, hexadecimal
from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.files import File, Files, join
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.options import LogOptions
from shardnode.storage.reader import Reader
from shardnode.storage.records import BatchHeader, Record, check_body, decode_records
from shardnode.storage.replay import Replayed, replay
from shardnode.storage.scan import Batch, scan, search
from shardnode.storage.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    decode_sidecar,
)

_PIECE_BYTES = 4 << 20


def segment_rows(files: Files, path: str) -> Iterator[Row | Record]:
    """One file: its header, and each batch with its records."""
    file = files.open(path)
    try:
        header = _header(file.pread(SEGMENT_HEADER_BYTES, 0), path)
        size = file.size()
        yield segment_row(header, path, size)
        for batch in _batches(file, path, header, size):
            yield batch_row(batch.header, batch.offset)
            try:
                check_body(batch.header, batch.body)
                for record, _ in decode_records(batch.header, batch.body):
                    yield record
            except Corrupt as error:
                raise Corrupt(error.detail, path=path, offset=batch.offset) from None
    finally:
        file.close()


def _batches(file: File, path: str, header: SegmentHeader, size: int) -> Iterator[Batch]:
    """In a recycled file, up to where no batch of its present life begins or follows."""
    end = SEGMENT_HEADER_BYTES
    try:
        for batch in scan(file, path, header.salt, end, size):
            yield batch
            end = batch.end
    except Corrupt:
        if not header.recycled or any(search(file, header.salt, end, size)):
            raise


def _header(data: bytes, path: str) -> SegmentHeader:
    try:
        return decode_segment_header(data)
    except Corrupt as error:
        raise Corrupt(error.detail, path=path, offset=0) from None


def segment_row(header: SegmentHeader, path: str, size: int) -> Row:
    return {
        "row": "segment",
        "file": path,
        "sequence": header.sequence,
        "after_index": header.anchor.index,
        "after_term": header.anchor.term,
        "after_chain": hexadecimal(header.anchor.chain),
        "reset": header.reset,
        "bytes": size,
    }


def batch_row(header: BatchHeader, offset: int) -> Row:
    return {
        "row": "batch",
        "offset": offset,
        "first": header.first,
        "last": header.last,
        "terms": [header.first_term, header.last_term],
        "bytes": header.total,
        "commit": header.commit,
        "durable_before": header.durable_before,
        "last_chain": hexadecimal(header.last_chain),
    }


def sidecar_rows(files: Files, path: str) -> Iterator[Row]:
    """The sparse index of a sealed segment."""
    segment, sidecar = files.open(path.removesuffix(".idx") + ".seg"), files.open(path)
    try:
        header = _header(segment.pread(SEGMENT_HEADER_BYTES, 0), path)
        index = decode_sidecar(sidecar.pread(sidecar.size(), 0), header)
    except Corrupt as error:
        raise Corrupt(error.detail, path=path, offset=0) from None
    finally:
        segment.close()
        sidecar.close()
    for number, offset in zip(index.indexes, index.offsets, strict=True):
        yield {"row": "entry", "index": number, "offset": offset}


class ShardLog:
    """What the segments of a shard amount to."""

    def __init__(self, files: Files, shard: str) -> None:
        self._files = files
        path = join(shard, LOG_DIRECTORY)
        self._is_there = files.exists(path) and bool(files.listdir(path))
        if self._is_there:
            found = self._found = replay(files, path, LogOptions().index_every_bytes, 0)
            self.first, self.last = found.timeline.anchor.index + 1, found.timeline.last.index

    def rows(self) -> Iterator[Row]:
        """One for each segment, and one for all."""
        if not self._is_there:
            return
        timeline = self._found.timeline
        for segment in timeline.segments:
            yield segment_row(segment.header, segment.path, segment.end)
        row: Row = {"row": "log", "first": self.first, "last": self.last}
        row |= {"last_term": timeline.last.term, "last_chain": hexadecimal(timeline.last.chain)}
        yield row | {"commit": timeline.commit, "segments": len(timeline.segments)}

    def records(self, first: int | None, last: int | None) -> Iterator[Record]:
        """Those from `first` to `last`; where the log cannot be read any more, `Corrupt`."""
        if not self._is_there:
            return
        reader = Reader(self._files, self._found.timeline)
        begin = max(first or 1, self.first)
        end = min(self.last, self.last if last is None else last)
        try:
            while begin <= end:
                for record in reader.records(begin, end, _PIECE_BYTES):
                    yield record
                    begin = record.index + 1
        finally:
            reader.close()
        if last is None or last > self.last:
            self.complain()

    def complain(self) -> None:
        """Raise what is wrong with the log, if anything is."""
        found: Replayed = self._found
        stop = found.stop if self._is_there else None
        if stop is not None and stop.proven:
            raise LogDamaged(
                stop.detail,
                path=stop.path,
                offset=stop.offset,
                first_bad_index=stop.first_bad_index,
                durable_mark=stop.durable_mark,
                valid_through=self.last,
            )
