"""Owns the segmented log: one file after another, appended in batches, never rewritten.

    open → append_batch → sync → read … → truncate_front / truncate_back / reset → close

One batch is one vectored write, one `sync` is one fdatasync. What counts is `durable_index`:
nothing above it may be acknowledged to anyone.

Truncation at the back is an append too. A batch whose first index is not above the last one
makes everything from there on void, in the same atomic write that brings the new records;
`truncate_back` is such a batch without records. So no crash can leave a log that has lost its
old records and does not have the new ones yet.

The one rule: memory changes after the write has succeeded, `durable_index` rises after the fsync
has. `NoSpace` leaves everything as it was. After any other failure nobody knows what is on the
disk, so the log refuses everything from then on: the process has to exit and open it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from shardnode.storage.errors import NoSpace, StorageError
from shardnode.storage.files import Buffer, File, Files, join
from shardnode.storage.mend import mend
from shardnode.storage.options import LogOptions, OpenReport
from shardnode.storage.publish import make_dir
from shardnode.storage.reader import Reader
from shardnode.storage.records import (
    BATCH_HEADER_BYTES,
    Anchor,
    Body,
    Record,
    RecordTuple,
    batch_header,
    empty_body,
    encode_batch_header,
    encode_body,
)
from shardnode.storage.replay import replay
from shardnode.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    create_segment,
    encode_sidecar,
    reuse_segment,
    segment_path,
    sequence_of,
    sidecar_path,
    write_sidecar,
)
from shardnode.storage.spares import Spares
from shardnode.storage.stretch import Stretch
from shardnode.storage.timeline import Timeline

__all__ = ["LOG_DIRECTORY", "Anchor", "LogOptions", "OpenReport", "SegmentedLog", "log_exists"]

LOG_DIRECTORY = "log"
_DEFAULTS = LogOptions()


def log_exists(files: Files, directory: str) -> bool:
    """Whether there is a log, in whatever state, in this shard's directory."""
    path = join(directory, LOG_DIRECTORY)
    return files.exists(path) and any(sequence_of(name) for name in files.listdir(path))


class SegmentedLog:
    """The log of one shard, in `<directory>/log/`. One process may have it open."""

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        options: LogOptions = _DEFAULTS,
        *,
        durable_mark: int = 0,
        salvage: bool = False,
    ) -> Self:
        """Open the log, or create it when there is none; everything in it is durable then.

        A torn end is cut. `LogDamaged` is raised, and nothing changed, when records that were
        durable are lost: what proves that is told in `replay.py`, and `durable_mark` is an
        index that the caller knows to have been durable. With `salvage` the intact part is
        opened all the same, the rest is kept in `<directory>/quarantine/`, and `recovery`
        says so: such a member must not vote before it has caught up.
        """
        path = join(directory, LOG_DIRECTORY)
        make_dir(files, path)
        found = replay(files, path, options.index_every_bytes, durable_mark)
        file, report = mend(files, path, found, options, salvage=salvage)
        return cls(files, path, options, found.timeline, file, report)

    def __init__(
        self,
        files: Files,
        path: str,
        options: LogOptions,
        timeline: Timeline,
        file: File,
        recovery: OpenReport,
    ) -> None:
        """Use `open`."""
        self.recovery = recovery
        self.durable_index = timeline.last.index
        self._files = files
        self._path = path
        self._options = options
        self._timeline = timeline
        self._reader = Reader(files, timeline)
        self._zeros = memoryview(bytes(options.zero_ahead_bytes))
        self._spares = Spares(files, path, options.spare_segments)
        self._lent_sequence = 0  # segments up to this one may be read by somebody else
        self._failed: StorageError | None = None
        self._room = self._durable_end = self._zeroed_to = 0
        self._write_to(file)

    @property
    def first_index(self) -> int:
        """The oldest record; one above the last when the log is empty."""
        return self._timeline.anchor.index + 1

    @property
    def last_index(self) -> int:
        return self._timeline.last.index

    @property
    def last_term(self) -> int:
        return self._timeline.last.term

    @property
    def anchor(self) -> Anchor:
        """The position before the first record: what a snapshot continues with (C4)."""
        return self._timeline.anchor

    @property
    def commit_watermark(self) -> int:
        """The highest lower bound of the commit index that is known from the log alone."""
        return self._timeline.commit

    @property
    def size_bytes(self) -> int:
        """What all segments hold together."""
        return sum(segment.end for segment in self._timeline.segments)

    def append_batch(self, records: Sequence[RecordTuple], commit: int = 0) -> None:
        """Write records that follow each other and continue the log, or override its end.

        They are in the log now, and durable after `sync`. `commit` is a lower bound of the
        commit index, stored on the way.
        """
        self._check()
        assert records, "an empty batch"
        previous = self._position(records[0][0] - 1)
        body = encode_body(
            records,
            previous,
            max_record_bytes=self._options.max_record_bytes,
            max_batch_bytes=self._options.max_batch_bytes,
        )
        self._write(previous, body, commit)

    def sync(self) -> None:
        """Make every record durable, with one fdatasync when there is anything to do."""
        self._check()
        if self._durable_end < self._timeline.segments[-1].end:
            try:
                self._file.datasync()
            except StorageError as error:
                self._failed = error
                raise
            self._durable_end = self._timeline.segments[-1].end
        self.durable_index = self._timeline.last.index

    def read(self, first: int, last: int, max_bytes: int | None = None) -> list[Record]:
        """The records from `first` to `last`, or as many as have `max_bytes` of payload in all,
        but always one. `Compacted` when `first` was truncated at the front."""
        self._check()
        assert first <= last <= self.last_index, f"{first}..{last} of {self.last_index}"
        return self._reader.records(first, last, max_bytes)

    def term(self, index: int) -> int:
        """The term of a record, or of the anchor. From memory."""
        self._check()
        return self._timeline.term(index)

    def chain(self, index: int) -> int:
        """The chained checksum of a record, or of the anchor. May read a batch."""
        self._check()
        return self._position(index).chain

    def bytes_after(self, index: int) -> int:
        """About how much there is behind `index`, which is in the log or its anchor."""
        return self._timeline.bytes_after(index)

    def stretch(self, last: int) -> Stretch:
        """The records through `last`, which must be committed, as bytes for somebody else. They can
        be read for as long as they are not truncated at the front."""
        self._check()
        assert last <= self.durable_index, f"{last} is not durable yet"
        self._lent_sequence = self._timeline.segments[-1].header.sequence
        return Stretch(Reader(self._files, self._timeline), last)

    def truncate_front(self, index: int) -> None:
        """Drop what holds only records up to `index`, which must be committed and not needed.

        Whole segments go, never the last one, so `first_index` may stay below `index`. The
        anchor moves to the position that the next segment continues.
        """
        self._check()
        assert index <= self.durable_index, f"{index} is not durable yet"
        dropped = self._timeline.segments[: self._timeline.droppable(index)]
        if dropped:
            # An override may be all that makes their records void: it must outlive them.
            self.sync()
        for segment in dropped:
            self._reader.close()
            # One by one, lowest first: a gap would be taken for a lost segment.
            self._remove(segment, keep=segment.header.sequence > self._lent_sequence)
            self._timeline.drop_first()

    def truncate_back(self, index: int) -> None:
        """Make the records above `index` void; durable after `sync`."""
        self._check()
        if index != self.last_index:
            previous = self._position(index)
            self._write(previous, empty_body(previous), 0)

    def reset(self, anchor: Anchor) -> None:
        """Make everything void and continue after `anchor`; durable at return.

        After a crash the log is the old one, whole, or the new one.
        """
        self._check()
        self._reader.close()
        old = self._timeline.segments
        sequence = old[-1].header.sequence + 1
        header = SegmentHeader(sequence, self._files.token(), anchor, reset=True)
        file, segment = self._create(header, self._options.segment_bytes)
        self._timeline.begin(segment)
        self.durable_index = anchor.index
        self._file.close()
        self._write_to(file, reused=segment.header.recycled)
        for dead in old:  # what a crash leaves of them is removed at the next open
            self._remove(dead)

    def close(self) -> None:
        """Give the files back. What was not synced stays not synced."""
        self._reader.close()
        self._file.close()

    def _check(self) -> None:
        if self._failed is not None:
            raise type(self._failed)(
                f"{self._path}: refused after an earlier failure ({self._failed}): "
                "exit and open the log again"
            )

    def _position(self, index: int) -> Anchor:
        """The position of `index`, from the anchor to the last record."""
        timeline = self._timeline
        if index == timeline.last.index:
            return timeline.last
        term = timeline.term(index)
        if index == timeline.anchor.index:
            return timeline.anchor
        return Anchor(index, term, self._reader.chain(index))

    def _write(self, previous: Anchor, body: Body, commit: int) -> None:
        """One batch, one write."""
        timeline = self._timeline
        overrides = previous.index < timeline.last.index
        assert previous.index >= timeline.commit or not overrides, (
            f"index {previous.index + 1} would override committed records"
        )
        total = BATCH_HEADER_BYTES + body.size
        if timeline.segments[-1].end + total > self._room:
            self._roll(SEGMENT_HEADER_BYTES + total)
        segment = timeline.segments[-1]
        header = batch_header(
            body,
            previous,
            durable_before=min(self.durable_index, previous.index),
            durable_end=self._durable_end,
            commit=min(max(commit, timeline.commit), body.last.index),
        )
        buffers: list[Buffer] = [
            encode_batch_header(header, segment.header.salt, segment.end),
            *body.buffers,
        ]
        if ahead := self._zeros_after(segment.end + total, total):
            buffers.append(ahead)
        try:
            self._file.pwritev(buffers, segment.end)
        except NoSpace:
            self._drop_partial(segment.end)
            self._spares.drop()
            raise
        except StorageError as error:
            self._failed = error
            raise
        timeline.apply(segment.end, header, body.runs)
        self._zeroed_to = max(self._zeroed_to, segment.end + len(ahead))
        self.durable_index = header.durable_before

    def _zeros_after(self, end: int, total: int) -> memoryview:
        """Zeros to write after a small batch that leaves the part already written."""
        if end <= self._zeroed_to or total * 16 > len(self._zeros):
            return self._zeros[:0]
        return self._zeros[: max(self._room - end, 0)]

    def _drop_partial(self, end: int) -> None:
        """Remove what a failed write left after `end`.

        Durably, because the next batch may be another one for the same indexes, and a crash
        must not bring this one back after its caller was told that it failed.
        """
        try:
            self._file.truncate(end)
            self._file.datasync()
        except StorageError as error:
            self._failed = error
            raise
        self._durable_end = end
        self.durable_index = self._timeline.last.index
        self._zeroed_to = end
        with suppress(NoSpace):
            self._file.allocate(self._room)

    def _roll(self, need: int) -> None:
        """Seal the last segment and begin the next, with room for `need` bytes at least."""
        self._seal()
        sealed = self._timeline.segments[-1]
        header = SegmentHeader(
            sealed.header.sequence + 1, self._files.token(), self._timeline.last, reset=False
        )
        file, segment = self._create(header, max(self._options.segment_bytes, need))
        content = encode_sidecar(sealed.header, sealed.index)
        self._timeline.roll(segment)
        self._file.close()
        self._write_to(file, reused=segment.header.recycled)
        write_sidecar(self._files, sidecar_path(sealed.path), content)

    def _seal(self) -> None:
        """Cut the last segment to what it holds, durably: only where the log ends may there be
        bytes that mean nothing."""
        end = self._timeline.segments[-1].end
        try:
            self._file.truncate(end)
            self._file.datasync()
        except StorageError as error:
            self._failed = error
            raise
        self.durable_index = self._timeline.last.index
        self._durable_end = self._zeroed_to = end

    def _create(self, header: SegmentHeader, size: int) -> tuple[File, Segment]:
        try:
            if spare := self._spares.take():
                header = header._replace(recycled=True)
                file = reuse_segment(self._files, self._path, header, size, *spare)
            else:
                file = create_segment(self._files, self._path, header, size)
        except NoSpace:
            raise
        except StorageError as error:
            self._failed = error
            raise
        return file, Segment(header, segment_path(self._path, header.sequence))

    def _write_to(self, file: File, *, reused: bool = False) -> None:
        """Append to the last segment, all of which is durable, through `file` from now on. One that
        is `reused` has been written to before, all of it."""
        self._file = file
        self._room = max(self._options.segment_bytes, file.size())
        self._durable_end = self._timeline.segments[-1].end
        self._zeroed_to = self._room if reused else self._durable_end

    def _remove(self, segment: Segment, *, keep: bool = False) -> None:
        """Durably remove a segment, and its sidecar first: alone it would mean nothing. With `keep`
        its file may be used again."""
        try:
            if self._files.exists(sidecar_path(segment.path)):
                self._files.remove(sidecar_path(segment.path))
            if keep and self._spares.keep(segment.path):
                return
            self._files.remove(segment.path)
            self._files.sync_dir(self._path)
        except StorageError as error:
            self._failed = error
            raise
