"""Owns what is done to a log's files at open, after `replay.py` has judged them.

The one rule: durable records are never deleted. A torn end is cut, really truncated and synced,
so that stale bytes cannot come back; damage stops everything, unless the caller asked for a
salvage: then what is unreadable is set aside in `quarantine/` first, whole.
"""

from __future__ import annotations

from contextlib import suppress

from shardnode.storage.errors import LogDamaged, NoSpace
from shardnode.storage.files import File, Files, join, parent_of
from shardnode.storage.options import LogOptions, Opened, OpenReport
from shardnode.storage.publish import make_dir, publish_copy, quarantine_path, set_aside
from shardnode.storage.records import ORIGIN
from shardnode.storage.replay import Replayed, Stop
from shardnode.storage.scan import CHUNK_BYTES, used_bytes
from shardnode.storage.segment import (
    Segment,
    SegmentHeader,
    create_segment,
    segment_path,
    write_sidecar,
)


def mend(
    files: Files, directory: str, found: Replayed, options: LogOptions, *, salvage: bool
) -> tuple[File, OpenReport]:
    """Make the files agree with `found.timeline`. Returns the last segment, open for appending,
    with all its records durable."""
    stop = found.stop
    if stop is not None and stop.proven and not salvage:
        raise _damaged(found, stop)
    # Names that were only in memory when the last process died are made durable before anything
    # relies on them: a reset's segment, before what it replaces is removed.
    files.sync_dir(directory)
    for path in found.void:
        files.remove(path)
    for path, content in found.stale_sidecars:
        write_sidecar(files, path, content)
    quarantined = _quarantine(files, directory, found) if stop is not None and stop.proven else []
    if found.timeline.segments:
        file = files.open(found.timeline.segments[-1].path)
        cut = _cut_tail(file, found.timeline.segments[-1], options.segment_bytes)
        _settle(file, found.proven_end, found.timeline.segments[-1].end)
    else:
        file, cut = _create_first(files, directory, found, options), 0
    files.sync_dir(directory)
    return file, _report(found, stop, cut, quarantined)


def _damaged(found: Replayed, stop: Stop) -> LogDamaged:
    return LogDamaged(
        stop.detail,
        path=stop.path,
        offset=stop.offset,
        first_bad_index=stop.first_bad_index,
        durable_mark=stop.durable_mark,
        valid_through=min(found.timeline.last.index, stop.first_bad_index - 1),
    )


def _report(found: Replayed, stop: Stop | None, cut: int, quarantined: list[str]) -> OpenReport:
    if stop is None:
        return OpenReport(Opened.CLEAN if found.highest_sequence else Opened.CREATED)
    return OpenReport(
        Opened.SALVAGED if stop.proven else Opened.TORN,
        stop.path,
        stop.offset,
        cut,
        stop.first_bad_index,
        stop.detail,
        tuple(quarantined),
    )


def _create_first(files: Files, directory: str, found: Replayed, options: LogOptions) -> File:
    # After a salvage that kept nothing the number must be a new one, and RESET says that the
    # records before it are gone for good.
    sequence = found.highest_sequence + 1
    header = SegmentHeader(sequence, files.token(), ORIGIN, reset=sequence > 1)
    file = create_segment(files, directory, header, options.segment_bytes)
    found.timeline.begin(Segment(header, segment_path(directory, sequence)))
    return file


def _quarantine(files: Files, directory: str, found: Replayed) -> list[str]:
    """Copy the segment that will be cut, and move those after it, into `quarantine/`."""
    quarantine = join(parent_of(directory), "quarantine")
    aside = []
    if found.timeline.segments:
        last = found.timeline.segments[-1]
        file = files.open(last.path)
        try:
            if used_bytes(file, last.end, file.size()):
                make_dir(files, quarantine)
                aside.append(quarantine_path(files, last.path, quarantine))
                publish_copy(files, file, aside[0])
        finally:
            file.close()
    # The highest first: as long as one is left, it proves that those before it were durable.
    aside += [set_aside(files, path, quarantine) for path in reversed(found.unread)]
    return aside


def _cut_tail(file: File, segment: Segment, segment_bytes: int) -> int:
    """Put zeros after its end; `_settle` syncs them. Returns how many bytes in use were cut off,
    unless most of them are of an earlier life of the file."""
    end, recycled = segment.end, segment.header.recycled
    cut = 0 if recycled else used_bytes(file, end, file.size())
    if cut or recycled:
        file.truncate(end)
    with suppress(NoSpace):  # a full disk must not keep the shard from being read
        file.allocate(segment_bytes)
    return cut


def _settle(file: File, proven_end: int, end: int) -> None:
    """Make what was read durable.

    It may have come from the page cache alone: when the last process died before its fsync, or
    when that fsync failed, after which the kernel takes the lost pages for clean and another
    fsync would do nothing. So these few bytes are written once more, unchanged.
    """
    for offset in range(proven_end, end, CHUNK_BYTES):
        file.pwritev([file.pread(min(CHUNK_BYTES, end - offset), offset)], offset)
    file.datasync()
