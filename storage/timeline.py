"""Owns the picture of the log in memory: which records there are and where their batches lie.

It is built from batch headers alone, in the order in which they stand in the segments, by the
same `apply` whether a batch was just written or is found again at open.

The one rule: a batch makes everything from its first index on void, and is what follows. The
lowest segment's anchor begins the log; when the segments before it were dropped, a batch in it
may reach below that anchor, and the log then begins where that batch does.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from shardnode.storage.errors import Compacted
from shardnode.storage.records import Anchor, BatchHeader, TermRuns
from shardnode.storage.segment import Segment


class Extent(NamedTuple):
    """Where to look for an index: batches of one segment, between two offsets."""

    segment: Segment
    start: int
    end: int
    limit: int  # records at and above this index that are found here are void


class Timeline:
    """What a sequence of segments and batches amounts to."""

    def __init__(self, index_every_bytes: int) -> None:
        self.segments: list[Segment] = []
        self.anchor = Anchor(0, 0, 0)  # the position before the first record
        self.last = self.anchor  # the position of the last record
        self._index_every_bytes = index_every_bytes
        self._commit = 0
        # Terms as runs: the first index of each run, and its term; the anchor begins the first.
        self._run_starts = [0]
        self._run_terms = [0]

    @property
    def commit(self) -> int:
        """The highest known lower bound of the commit index. What lies before the first record
        was committed too, since nothing else is ever dropped."""
        return min(max(self._commit, self.anchor.index), self.last.index)

    def begin(self, segment: Segment) -> None:
        """Make `segment` all there is: the log is empty after its anchor."""
        self.segments = [segment]
        self.last = segment.header.anchor
        self._commit = 0
        self._restart(segment.header.anchor)

    def roll(self, segment: Segment) -> None:
        """Continue in `segment`, which was begun where the log stands."""
        assert segment.header.anchor == self.last, "a segment must continue the log"
        self.segments.append(segment)

    def apply(self, offset: int, batch: BatchHeader, runs: TermRuns) -> None:
        """Take in the batch that was written at `offset` of the last segment."""
        segment = self.segments[-1]
        previous = batch.previous
        continues = previous.index == self.last.index
        if not continues:
            self._void(previous)
        if previous.index < segment.low.index:
            segment.low = previous
        if not continues or batch.records == 0 or self._entry_is_due(segment, offset):
            segment.index.cut(batch.first)  # the entry of an empty batch gives way to the next
            segment.index.add(batch.first, offset)
        for start, term in runs:
            self._run_starts.append(start)
            self._run_terms.append(term)
        segment.end = offset + batch.total
        self.last = Anchor(batch.last, batch.last_term, batch.last_chain)
        self._commit = max(self._commit, batch.commit)

    def term(self, index: int) -> int:
        """The term of the record at `index`, or of the anchor."""
        if index < self.anchor.index:
            raise Compacted(index, self.anchor.index + 1)
        assert index <= self.last.index, f"{index} is past the last index {self.last.index}"
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def locate(self, index: int) -> Extent:
        """Where the record at `index`, which is in the log, has to be looked for."""
        if index <= self.anchor.index:
            raise Compacted(index, self.anchor.index + 1)
        assert index <= self.last.index, f"{index} is past the last index {self.last.index}"
        limit = self.last.index + 1
        for segment in reversed(self.segments):
            entries = segment.index
            if not entries:
                continue
            slot = entries.slot(index)
            if slot < 0:
                limit = entries.indexes[0]
            elif slot + 1 < len(entries):
                end = entries.offsets[slot + 1]
                return Extent(segment, entries.offsets[slot], end, entries.indexes[slot + 1])
            else:
                return Extent(segment, entries.offsets[slot], segment.end, limit)
        raise AssertionError(f"index {index} lies in no segment")

    def bytes_after(self, index: int) -> int:
        """About how much of the segments lies behind the record at `index`, or the anchor."""
        if index >= self.last.index:
            return 0
        segment, start, _, _ = self.locate(index + 1)
        later = self.segments[self.segments.index(segment) + 1 :]
        return segment.end - start + sum(each.end for each in later)

    def droppable(self, index: int) -> int:
        """How many of the lowest segments hold no record above `index`. Never the last one.

        The segment that then begins the log must not have been begun in a history that was
        overridden later: should that override be damaged one day, its anchor would be taken for
        a position that was committed.
        """
        base = self.segments[-1].low.index
        for position in range(len(self.segments) - 1, 0, -1):
            segment = self.segments[position]
            base = min(base, segment.low.index)
            if base <= index and base == segment.header.anchor.index:
                return position
        return 0

    def drop_first(self) -> None:
        """Forget the lowest segment, whose file is gone."""
        del self.segments[0]
        anchor = min((segment.low for segment in self.segments), key=lambda low: low.index)
        assert anchor.index <= self.last.index
        if anchor.index > self.anchor.index:
            run = bisect_right(self._run_starts, anchor.index) - 1
            del self._run_starts[:run]
            del self._run_terms[:run]
            self._run_starts[0] = anchor.index
            self.anchor = anchor

    def _void(self, previous: Anchor) -> None:
        """Forget every record after `previous`."""
        assert previous.index < self.last.index, "a batch must not leave a gap"
        if previous.index < self.anchor.index:
            self._restart(previous)
        while self._run_starts[-1] > previous.index and len(self._run_starts) > 1:
            self._run_starts.pop()
            self._run_terms.pop()
        for segment in reversed(self.segments):
            segment.index.cut(previous.index + 1)
            if segment.index:
                break

    def _restart(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._run_starts = [anchor.index]
        self._run_terms = [anchor.term]

    def _entry_is_due(self, segment: Segment, offset: int) -> bool:
        offsets = segment.index.offsets
        return not offsets or offset - offsets[-1] >= self._index_every_bytes
