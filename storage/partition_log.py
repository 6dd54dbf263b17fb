"""Owns the log of one stream partition: segments in one directory, appended and trimmed.

    open(mark) → append … → sync → (the caller records the mark) → trim … → release → close

Committed entries of the segmented log are applied here, so nothing waits for this log to be
written, or durable. Batches gather in memory (`partition_unwritten`). The owner calls `sync` now
and then, which brings them to the files, and keeps the mark that it returns in the transaction that
also holds the applied index. After a crash it opens the log with the mark it has, which cuts
everything above, and applies again what came after: each batch is in the log exactly once, and
the files are those of every other replica, byte for byte.

Retention takes two steps, since a crash may bring back an older mark:

1. `trim(offset)` moves the start of the log. It is a logged decision, part of the next mark.
2. `release(mark)` removes the files that lie wholly below the start. The caller passes a mark that
   no crash can undo any more; with LMDB that is the one of the transaction before the last one.

A follower that was sent the segments of another replica, and has synced them and their names, opens
them with that replica's mark; `check_sealed` tells whether a sealed one arrived whole.

The one rule: memory says what the files will have, and `durable` what they have for certain. A sync
that finds `NoSpace` goes on where it stopped when it is asked again. After any other failure nobody
knows what is on the disk, so the log refuses everything from then on: the process has to exit and
open it again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Self

from shardnode.storage.errors import (
    NoSpace,
    OffsetPastEnd,
    OffsetTrimmed,
    StorageError,
)
from shardnode.storage.files import Files
from shardnode.storage.partition_handles import Handles
from shardnode.storage.partition_lookup import Lookup
from shardnode.storage.partition_open import cut, look
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.partition_plan import Plan
from shardnode.storage.partition_records import NOTHING, Batch, Mark
from shardnode.storage.partition_scan import read_batches
from shardnode.storage.partition_segment import (
    SealedSegment,
    Segment,
    SegmentView,
)
from shardnode.storage.partition_unwritten import SyncWork, Unwritten
from shardnode.storage.partition_verify import check_sealed, verify_segment

__all__ = [
    "NOTHING",
    "Batch",
    "Handles",
    "Mark",
    "PartitionLog",
    "PartitionOptions",
    "SealedSegment",
    "SegmentView",
    "SyncWork",
    "check_sealed",
]

_DEFAULTS = PartitionOptions()
_BATCHES_MAX = 1 << 16
_NO_LIMIT = 1 << 62


class PartitionLog:
    """The log of one partition, in `directory`, which is made with the first batch."""

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        options: PartitionOptions = _DEFAULTS,
        *,
        durable: Mark = NOTHING,
        handles: Handles | None = None,
    ) -> Self:
        """Open the log as it was at the mark `durable`, which is what a `sync` returned.

        Whatever is above the mark is cut; with the default, that is everything. `PartitionDamaged`
        is raised, and nothing changed, when what the mark promises is not there. Only names,
        headers and the place of the last batch are looked at: damage inside is found by whoever
        reads it, and by `verify`. `handles` are the open files that all logs of a shard share.
        """
        found = look(files, directory, durable)
        cut(files, found, durable)
        handles = Handles(files) if handles is None else handles
        return cls(files, directory, options, handles, durable, found.segments, found.leftovers)

    @classmethod
    def view(cls, files: Files, directory: str, mark: Mark) -> Self:
        """The log as it was at a mark, for reading alone: what lies above it stays where it is.
        Raises `PartitionDamaged` as `open` does."""
        found = look(files, directory, mark)
        return cls(files, directory, _DEFAULTS, Handles(files), mark, found.segments, [])

    def __init__(
        self,
        files: Files,
        directory: str,
        options: PartitionOptions,
        handles: Handles,
        mark: Mark,
        segments: list[Segment],
        leftovers: list[str],
    ) -> None:
        """Use `open`, or `view`."""
        self.durable = mark
        """What the caller may record: the state that the last `sync` made durable."""
        self._files = files
        self._directory = directory
        self._options = options
        self._handles = handles
        self._mark = mark
        self._segments = segments
        self._bases = [segment.header.base_offset for segment in segments]
        self._leftovers = leftovers  # files below the start that open found
        self._leftovers_end = mark.first_offset
        self._unwritten = Unwritten(files, directory, mark)
        self._lookup = Lookup(handles, options)
        self._failed: StorageError | None = None
        if segments:
            self._lookup.remember(segments[-1], segments[-1].end)

    @property
    def first_offset(self) -> int:
        """Where the log starts; it may lie inside a batch."""
        return self._mark.first_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next message will have."""
        return self._mark.end_offset

    @property
    def mark(self) -> Mark:
        """Where the log stands, durable or not."""
        return self._mark

    @property
    def size_bytes(self) -> int:
        """What the segments hold together that have not been trimmed."""
        return sum(segment.size for segment in self._live())

    @property
    def segments(self) -> list[SegmentView]:
        """The segments that have not been trimmed, from memory."""
        live = self._live()
        stamps = [segment.header.stamp_ms for segment in live[1:]] + [self._mark.stamp_ms]
        return [
            SegmentView(each.header.base_offset, each.end.offset, each.size, stamp, each.is_sealed)
            for each, stamp in zip(live, stamps, strict=False)
        ]

    def append(self, batches: Sequence[Batch]) -> None:
        """Take batches that continue the log. Nothing is written before the next sync.

        Offsets are dense; index, log index and stamp do not fall. Batches with one log index came
        together: a mark that is kept is behind all of them or none.
        """
        self._check()
        assert batches, "nothing to append"
        last = self._segments[-1] if self._segments else None
        plan = Plan(self._directory, self._options, self._mark, last, self._lookup.index)
        plan.lay_out(batches)
        for piece in plan.pieces:
            piece.take_over()
            if piece.is_new:
                self._segments.append(piece.segment)
                self._bases.append(piece.segment.header.base_offset)
        self._unwritten.add(batches, plan.pieces)
        self._mark = plan.mark

    def sync(self) -> Mark:
        """Write everything and make it durable. Returns what the caller may record now."""
        self._check()
        while True:
            # One for which there was no room does not cover what came since.
            begun = self._unwritten.work
            work = begun or self.begin_sync()
            work.run()
            mark = self.end_sync(work)
            if begun is None:
                return mark

    def begin_sync(self) -> SyncWork:
        """For a caller that wants to wait elsewhere: `work.run()` may be called in another thread
        while this log is used on, then `end_sync` here. One at a time."""
        self._check()
        return self._unwritten.begin(self._mark, is_first=not self.durable.segment)

    def end_sync(self, work: SyncWork) -> Mark:
        """Take in that `work` was run; raises what it met. After `NoSpace` it is to be run again,
        when there may be room, and its end taken in again."""
        written = self._unwritten.mark
        try:
            self._unwritten.end(work)
        except NoSpace:
            raise
        except StorageError as error:
            self._failed = error
            raise
        self.durable = work.mark
        for segment in self._segments:
            if written.segment <= segment.header.number < work.mark.segment:
                self._lookup.keep(segment)
        return work.mark

    def read(
        self,
        offset: int,
        *,
        bytes_max: int,
        batches_max: int = _BATCHES_MAX,
        messages_max: int = _NO_LIMIT,
    ) -> list[Batch]:
        """Batches from the one that contains `offset` on; none when that is the end of the log.

        At least one, no more than have `bytes_max` of payload in all, and none behind the one that
        has the last of `messages_max` messages. They come from one segment and one read of the
        disk, or from memory, so there may be fewer: read on at the last one's `end_offset`.
        """
        self._check()
        if offset < self.first_offset:
            raise OffsetTrimmed(self._directory, offset, self.first_offset)
        if offset >= self.end_offset:
            if offset > self.end_offset:
                raise OffsetPastEnd(self._directory, offset, self.end_offset)
            return []
        bytes_max = min(bytes_max, self._options.read_bytes_max)
        if offset >= self._unwritten.mark.end_offset:
            return self._unwritten.read(
                offset, bytes_max=bytes_max, batches_max=batches_max, messages_max=messages_max
            )
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        start, lead_bytes = self._lookup.locate(segment, offset)
        bytes_max = min(bytes_max, segment.bytes_of(messages_max))
        found, after = read_batches(
            self._handles.read(segment.path),
            segment.path,
            start,
            self._written_to(segment) or segment.end.position,
            offset=offset,
            piece_bytes=lead_bytes + bytes_max + (bytes_max >> 6) + 4096,  # and some headers
            bytes_max=bytes_max,
            batches_max=batches_max,
            messages_max=messages_max,
        )
        self._lookup.remember(segment, after)
        return found

    def find(self, stamp_ms: int) -> int:
        """The first offset whose batch has this stamp or a later one; the end when none has."""
        self._check()
        if stamp_ms > self._mark.stamp_ms or not self._segments:
            return self.end_offset
        written = self._unwritten.mark
        if stamp_ms > written.stamp_ms or not written.segment:
            return max(self._unwritten.find(stamp_ms), self.first_offset)
        # A header has the last stamp before its segment: the last one below has the batch.
        position = bisect_left(self._segments, stamp_ms, key=lambda each: each.header.stamp_ms) - 1
        segment = self._segments[max(position, 0)]
        found = self._lookup.find(segment, stamp_ms, self._written_to(segment))
        return max(found, self.first_offset)

    def trim(self, offset: int) -> None:
        """Let the log start at `offset`, at most its end. The files stay: see `release`."""
        self._check()
        assert offset <= self.end_offset, f"{offset} is past the end {self.end_offset}"
        if offset > self.first_offset:
            self._mark = self._mark._replace(first_offset=offset)

    def release(self, mark: Mark) -> None:
        """Remove the segments that even a log opened with `mark` does not need, lowest first.

        No crash may undo the caller's record of `mark`. The segment with the mark's last batch
        stays. Not durable by itself: what a crash brings back is removed by the next release.
        """
        self._check()
        assert mark.first_offset <= self.durable.first_offset, "this start is not durable"
        assert mark.end_offset <= self.durable.end_offset, "this end is not durable"
        if mark.first_offset >= self._leftovers_end:
            while self._leftovers:
                self._remove(self._leftovers[0])
                del self._leftovers[0]
        while (
            self._segments
            and self._segments[0].header.number < mark.segment
            and self._segments[0].end.offset <= mark.first_offset
        ):
            segment = self._segments[0]
            self._remove(segment.path)
            self._lookup.forget(segment)
            del self._segments[0], self._bases[0]

    def sealed(self) -> list[SealedSegment]:
        """The sealed segments that have not been trimmed, the same on every replica."""
        self._check()
        found = []
        for segment in self._live():
            if not segment.is_sealed:
                continue
            if segment.checksum is None:
                self._lookup.index(segment)
            assert segment.checksum is not None
            base, end = segment.header.base_offset, segment.end.offset
            found.append(SealedSegment(segment.name, base, end, segment.size, segment.checksum))
        return found

    def verify(self) -> Iterator[int]:
        """Read everything and check every byte; a step of the iteration is a piece of work that
        the caller may put between others. Yields the offset up to which all is well, and raises
        `PartitionDamaged`. Everything must be written."""
        assert not self._unwritten, "sync first"
        for segment in self._live():
            if segment.header.number >= self._segments[0].header.number:  # not released since
                file = self._files.open(segment.path)  # the shared ones may be closed meanwhile
                try:
                    yield from verify_segment(segment, file, self._options.index_every_bytes)
                finally:
                    file.close()

    def rest(self) -> None:
        """Give back files and memory until the log is used again."""
        self._handles.close(segment.path for segment in self._segments)
        self._lookup.rest()

    def close(self) -> None:
        """Give the files back. What was not synced is not written."""
        self._handles.close(segment.path for segment in self._segments)

    def _check(self) -> None:
        if self._failed is not None:
            detail = f"refused after an earlier failure ({self._failed})"
            raise type(self._failed)(f"{self._directory}: {detail}: exit and open the log again")

    def _live(self) -> list[Segment]:
        """The segments that hold something from the start of the log on, or the last batch."""
        return [
            segment
            for segment in self._segments
            if segment.end.offset > self.first_offset or not segment.is_sealed
        ]

    def _written_to(self, segment: Segment) -> int:
        """The position up to which the file of a segment is written; 0 when that is all of it."""
        written = self._unwritten.mark
        return written.position if segment.header.number == written.segment else 0

    def _remove(self, path: str) -> None:
        self._handles.close([path])
        self._files.remove(path)
