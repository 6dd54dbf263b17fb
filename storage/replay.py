"""Owns the judgement of what is found in a log's directory: intact, torn, or damaged.

Every batch is checked: its header, its body's checksum, its link to the record before it. Where
that ends before the files do, there are two cases:

    torn      the rest of a write that was never synced; it may be cut off, as may the bytes of an
              earlier life of the file, which are told apart only by what is not in them: a batch
              of this one
    damaged   something proves that what cannot be read had been durable; it must not be cut

These are the proofs of durability:

1. A later segment exists. One is begun only after all before it is synced, and its anchor says
   where the log then stood.
2. A later intact batch in the same segment says that the bytes before it were durable. This is
   a position and not an index, because an override may bring the same index back.
3. The caller's `durable_mark`, such as the commit watermark of the superblock.
4. A batch is sound but continues another history: no torn write produces that.

The one rule: it reads and judges, and changes nothing. `mend.py` acts on the judgement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.files import File, Files, join
from shardnode.storage.publish import TEMPORARY
from shardnode.storage.reader import Reader
from shardnode.storage.records import Anchor, BatchHeader, check_body, term_runs
from shardnode.storage.scan import Batch, scan, search, used_bytes
from shardnode.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    decode_segment_header,
    encode_sidecar,
    load_index,
    segment_path,
    sequence_of,
    sidecar_path,
)
from shardnode.storage.spares import SPARE
from shardnode.storage.timeline import Timeline

Look = Callable[[str, Batch], None]
"""Shown each sound batch, in order, with the path of its segment."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why and where the intact part of the log ends before its files do."""

    detail: str
    path: str
    offset: int
    first_bad_index: int
    durable_mark: int = 0  # an index known to have been durable; 0 when the proof has none
    proven: bool = True  # damaged, not just torn


@dataclass(slots=True)
class Replayed:
    """What the segments amount to, and what is left to do before the log may be used."""

    timeline: Timeline
    stop: Stop | None = None
    highest_sequence: int = 0
    proven_end: int = SEGMENT_HEADER_BYTES  # of the last segment: before here it is durable
    void: list[str] = field(default_factory=list)  # files that hold nothing any more
    unread: list[str] = field(default_factory=list)  # segments after the place that is damaged
    stale_sidecars: list[tuple[str, bytes]] = field(default_factory=list)  # and what they should be


def replay(
    files: Files,
    directory: str,
    index_every_bytes: int,
    durable_mark: int,
    look: Look | None = None,
) -> Replayed:
    """Read and judge all segments in `directory`."""
    names = files.listdir(directory)
    sequences = [sequence for sequence in map(sequence_of, names) if sequence is not None]
    result = Replayed(Timeline(index_every_bytes), highest_sequence=max(sequences, default=0))
    result.void = [join(directory, name) for name in names if name.endswith((TEMPORARY, SPARE))]
    if sequences and _is_blank(files, segment_path(directory, sequences[-1])):
        result.void.append(segment_path(directory, sequences.pop()))

    headers = {sequence: _read_header(files, directory, sequence) for sequence in sequences}
    sound = [header for header in headers.values() if isinstance(header, SegmentHeader)]
    begin = max((header.sequence for header in sound if header.reset), default=0)
    result.void += [segment_path(directory, s) for s in sequences if s < begin]
    kept = {sequence: header for sequence, header in headers.items() if sequence >= begin}

    replayer = _Replayer(files, directory, result, look)
    in_use = replayer.take_segments(kept)
    result.stop = _hold_against(durable_mark, directory, result)
    result.unread = [segment_path(directory, s) for s in list(kept)[in_use:]]
    sidecars = {sidecar_path(segment_path(directory, s)) for s in kept}
    lone = [join(directory, name) for name in names if name.endswith(".idx")]
    result.void += [path for path in lone if path not in sidecars]
    return result


def _is_blank(files: Files, path: str) -> bool:
    """Whether a file holds nothing at all, such as one whose creation never reached the disk."""
    file = files.open(path)
    try:
        return not any(file.pread(SEGMENT_HEADER_BYTES, 0)) and not used_bytes(file, 0, file.size())
    finally:
        file.close()


def _read_header(files: Files, directory: str, sequence: int) -> SegmentHeader | Corrupt:
    file = files.open(segment_path(directory, sequence))
    try:
        header = decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0))
    except Corrupt as error:
        return error
    finally:
        file.close()
    if header.sequence != sequence:
        return Corrupt(f"the header of segment {header.sequence} in the file of {sequence}")
    return header


def _hold_against(durable_mark: int, directory: str, result: Replayed) -> Stop | None:
    """The third proof: the log must reach the caller's mark."""
    stop, timeline = result.stop, result.timeline
    first_bad = stop.first_bad_index if stop else timeline.last.index + 1
    if first_bad > durable_mark or (stop and stop.proven):
        return stop
    path, offset = directory, 0
    if timeline.segments:
        path, offset = timeline.segments[-1].path, timeline.segments[-1].end
    detail = f"{stop.detail if stop else 'the log ends'}, but it must reach index {durable_mark}"
    return Stop(detail, path, offset, first_bad, durable_mark)


class _Replayer:
    """Takes in segments in order, until they end or something is wrong."""

    def __init__(self, files: Files, directory: str, result: Replayed, look: Look | None) -> None:
        self._files = files
        self._directory = directory
        self._result = result
        self._look = look
        self._timeline = result.timeline
        self._trouble = ""  # what is wrong in a segment that is not the last
        self._reader = Reader(files, result.timeline)

    def take_segments(self, headers: dict[int, SegmentHeader | Corrupt]) -> int:
        """Returns how many of them are, in whole or in part, in the timeline."""
        try:
            for position, (sequence, header) in enumerate(headers.items()):
                if stop := self._begin_segment(sequence, header):
                    self._result.stop = stop
                    return position
                is_last = position == len(headers) - 1
                if stop := self._take_batches(is_last):
                    self._result.stop = stop
                    return position + 1
        finally:
            self._reader.close()
        return len(headers)

    def _begin_segment(self, sequence: int, header: SegmentHeader | Corrupt) -> Stop | None:
        timeline = self._timeline
        path = segment_path(self._directory, sequence)
        first_bad = timeline.last.index + 1
        if isinstance(header, Corrupt):
            return Stop(header.detail, path, 0, first_bad)
        if not timeline.segments:
            timeline.begin(Segment(header, path))
            return None
        previous = timeline.segments[-1]
        if sequence != previous.header.sequence + 1:
            missing = segment_path(self._directory, previous.header.sequence + 1)
            return Stop("this segment is missing", missing, 0, first_bad, header.anchor.index)
        if header.anchor != timeline.last:
            detail = self._trouble and f"{self._trouble}: "
            detail += (
                f"the next segment continues {_show(header.anchor)}, "
                f"but what can be read here ends at {_show(timeline.last)}"
            )
            return Stop(detail, previous.path, previous.end, first_bad, header.anchor.index)
        if load_index(self._files, previous) != previous.index:
            content = encode_sidecar(previous.header, previous.index)
            self._result.stale_sidecars.append((sidecar_path(previous.path), content))
        timeline.roll(Segment(header, path))
        return None

    def _take_batches(self, is_last: bool) -> Stop | None:
        """Take in the batches of the segment just begun."""
        segment = self._timeline.segments[-1]
        self._result.proven_end = SEGMENT_HEADER_BYTES
        file = self._files.open(segment.path)
        try:
            end = file.size()
            bad: BatchHeader | None = None
            detail = ""
            try:
                for batch in scan(file, segment.path, segment.header.salt, segment.end, end):
                    bad = batch.header
                    check_body(bad, batch.body)
                    if broken := self._broken_link(bad):
                        first_bad = min(bad.first, self._timeline.last.index + 1)
                        return Stop(broken, segment.path, batch.offset, first_bad)
                    self._timeline.apply(batch.offset, bad, term_runs(bad, batch.body))
                    if self._look is not None:
                        self._look(segment.path, batch)
                    self._result.proven_end = max(self._result.proven_end, bad.durable_end)
                    bad = None
            except LogDamaged:
                raise  # a record that was sound a moment ago: the disk is failing
            except Corrupt as error:
                detail = error.detail
            # What follows the last sound batch of a sealed segment needs no judgement here: the
            # next segment's anchor tells whether a batch is missing.
            self._trouble = detail
            return self._judge_tail(file, segment, end, bad, detail) if is_last else None
        finally:
            file.close()

    def _judge_tail(
        self, file: File, segment: Segment, end: int, bad: BatchHeader | None, detail: str
    ) -> Stop | None:
        """Whether the last segment just ends, or is torn, or damaged."""
        recycled = segment.header.recycled
        if not detail:
            if not recycled and not used_bytes(file, segment.end, end):
                return None
            detail = "there are bytes after the last batch"
        first_bad = self._timeline.last.index + 1
        if bad is not None:
            first_bad = min(bad.first, first_bad)
        for offset, later in search(file, segment.header.salt, segment.end, end):
            if later.durable_end > segment.end:
                detail += f", and the batch at byte {offset} proves that it was durable"
                return Stop(detail, segment.path, segment.end, first_bad, later.durable_before)
            recycled = False
        if recycled:
            return None  # no batch of this life begins here or later: it ends here
        return Stop(detail, segment.path, segment.end, first_bad, proven=False)

    def _broken_link(self, batch: BatchHeader) -> str:
        """What is wrong with the place that a sound batch says it continues; "" when nothing."""
        timeline = self._timeline
        previous = batch.previous
        if previous.index > timeline.last.index:
            return f"index {batch.first} follows {timeline.last.index}"
        if previous.index < timeline.anchor.index:
            # Fine when the segment with that record was dropped at the front: see `Timeline`.
            oldest = timeline.segments[0].header
            if oldest.sequence == 1 or oldest.reset:
                return f"index {batch.first} overrides what lies before the log"
            return ""
        if previous.index == timeline.last.index:
            expected = timeline.last
        elif previous.index == timeline.anchor.index:
            expected = timeline.anchor
        else:
            chain = self._reader.chain(previous.index)
            expected = Anchor(previous.index, timeline.term(previous.index), chain)
        if previous != expected:
            return f"index {batch.first} continues {_show(previous)} instead of {_show(expected)}"
        return ""


def _show(position: Anchor) -> str:
    return f"index {position.index} term {position.term} chain {position.chain:016x}"
