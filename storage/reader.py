"""Owns reading records back from the segments.

The one rule: a batch is checked every time it is read, because a disk may lose a bit at any
time; what fails is `LogDamaged` and never a wrong record.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.files import File, Files
from shardnode.storage.records import Record, check_body, decode_records, part_of
from shardnode.storage.scan import Batch, scan
from shardnode.storage.segment import Segment
from shardnode.storage.timeline import Extent, Timeline

_CHUNK_BYTES = 1 << 20


class Reader:
    """Reads what a timeline points at. It keeps one file open, since reads are mostly in order."""

    def __init__(self, files: Files, timeline: Timeline) -> None:
        self._files = files
        self._timeline = timeline
        self._file: File | None = None
        self._path = ""

    def records(self, first: int, last: int, max_bytes: int | None) -> list[Record]:
        """From `first` to `last` at most; always one, more only while within `max_bytes`."""
        found: list[Record] = []
        room = max_bytes
        while first <= last:
            extent = self._timeline.locate(first)
            stop = min(last, extent.limit - 1)
            for batch in self._batches(extent, first):
                for record, _ in self._decode(batch, extent, first, stop):
                    if room is not None:
                        room -= len(record.payload)
                        if room < 0 and found:
                            return found
                    found.append(record)
                first = min(batch.header.last, stop) + 1
                if first > stop:
                    break
            else:
                raise self._damaged(first, extent, "the batches end before this index")
        return found

    def bodies(self, first: int, last: int) -> Iterator[memoryview]:
        """The bytes of the records from `first` to `last`, batch by batch as they stand there."""
        while first <= last:
            extent = self._timeline.locate(first)
            stop = min(last, extent.limit - 1)
            for batch in self._batches(extent, first):
                if batch.header.first > first:
                    found = f"found index {batch.header.first} instead"
                    raise self._damaged(first, extent, found)
                yield self._part_of(batch, extent, first, stop)
                first = min(batch.header.last, stop) + 1
                if first > stop:
                    break
            else:
                raise self._damaged(first, extent, "the batches end before this index")

    def _part_of(self, batch: Batch, extent: Extent, first: int, last: int) -> memoryview:
        try:
            return part_of(batch.header, batch.body, first, last)
        except Corrupt as error:
            raise self._damaged(first, extent, error.detail) from error

    def chain(self, index: int) -> int:
        """The chained checksum of the record at `index`."""
        extent = self._timeline.locate(index)
        for batch in self._batches(extent, index):
            for _, chain in self._decode(batch, extent, index, index):
                return chain
        raise self._damaged(index, extent, "the batches end before this index")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._path = None, ""

    def _batches(self, extent: Extent, index: int) -> Iterator[Batch]:
        """The checked batches of `extent` from the one that holds `index` on."""
        segment, start, end, _ = extent
        chunk_bytes = min(_CHUNK_BYTES, end - start)
        file = self._open(segment)
        try:
            for batch in scan(file, segment.path, segment.header.salt, start, end, chunk_bytes):
                if batch.header.last >= index:
                    check_body(batch.header, batch.body)
                    yield batch
        except Corrupt as error:
            raise self._damaged(index, extent, error.detail) from error

    def _decode(
        self, batch: Batch, extent: Extent, first: int, last: int
    ) -> Iterator[tuple[Record, int]]:
        try:
            if batch.header.first > first:
                raise Corrupt(f"found index {batch.header.first} instead")
            yield from decode_records(batch.header, batch.body, first, last)
        except Corrupt as error:
            raise self._damaged(first, extent, error.detail) from error

    def _open(self, segment: Segment) -> File:
        if self._file is None or self._path != segment.path:
            self.close()
            self._file, self._path = self._files.open(segment.path), segment.path
        return self._file

    def _damaged(self, index: int, extent: Extent, detail: str) -> LogDamaged:
        return LogDamaged(
            detail,
            path=extent.segment.path,
            offset=extent.start,
            first_bad_index=index,
            durable_mark=0,
            valid_through=index - 1,
        )
