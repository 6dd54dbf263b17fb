"""The segmented log of a shard, looked at without opening it: headers, bodies, links, the chain
from record to record, what lies behind sealed segments, and the sidecars.

The one rule: `replay` judges, here as at a start. A torn end is what a crash leaves and is sound;
an end below what is known to have been durable is damage. All that is added here are the bytes that
a start has no need to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardnode.storage.audit import Book
from shardnode.storage.errors import Corrupt, StorageError
from shardnode.storage.files import File, Files, join
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.options import LogOptions
from shardnode.storage.records import Anchor, BatchHeader, RecordView, walk_chain
from shardnode.storage.replay import Replayed, Stop, replay
from shardnode.storage.scan import Batch
from shardnode.storage.segment import (
    Segment,
    decode_sidecar,
    sequence_of,
    sidecar_path,
)
from shardnode.storage.timeline import Timeline

Visit = Callable[[BatchHeader, Iterator[RecordView]], None]
"""Shown each batch in the order of the log, with its records; a batch may override others."""

_SECTOR_BYTES = 512
_PIECE_BYTES = 4 << 20
_HARMLESS = (
    "nothing reads this byte and nothing is lost, but the disk did not keep what was written; it"
    " goes when the log is cut"
)
_SIDECAR = "the next start makes it again and nothing is lost, but the disk did not keep it"


class LogFound(NamedTuple):
    """What the log holds, as far as it could be read."""

    timeline: Timeline
    first: int
    last: Anchor
    damaged: bool
    proven: int = 0
    """An index that was durable, as what can be read behind the damage says."""


def log_names(files: Files, shard: str) -> list[str]:
    """The names of the segments of a shard's log, if there are any."""
    path = join(shard, LOG_DIRECTORY)
    names = files.listdir(path) if files.exists(path) else []
    return [name for name in names if sequence_of(name) is not None]


def audit_log(
    files: Files, shard: str, durable_mark: int, book: Book, visit: Visit | None = None
) -> LogFound:
    """Look at everything; what is wrong goes into the book. `durable_mark` is an index that is
    known to have been durable, 0 when none is."""
    path = join(shard, LOG_DIRECTORY)
    look = _Look(book, visit)
    every = LogOptions().index_every_bytes
    try:
        found = replay(files, path, every, durable_mark, look)
    except StorageError as error:
        means = "the log cannot be read: replace the disk, and let peers give it back"
        book.damaged(path, str(error), means)
        return LogFound(Timeline(every), 1, Anchor(0, 0, 0), damaged=True)
    timeline, stop = found.timeline, found.stop
    if stop is not None and stop.proven:
        _tell(book, found, stop)
    elif stop is not None:
        book.note(stop.path, f"the last write is torn at byte {stop.offset}: {stop.detail}")
    _look_behind(files, found, book)
    for segment in timeline.segments[:-1]:
        _audit_sidecar(files, segment, book)
    damaged = look.damaged or (stop is not None and stop.proven)
    proven = stop.durable_mark if stop is not None and stop.proven else 0
    return LogFound(timeline, timeline.anchor.index + 1, timeline.last, damaged, proven)


def _tell(book: Book, found: Replayed, stop: Stop) -> None:
    through = min(found.timeline.last.index, stop.first_bad_index - 1)
    means = (
        f"records from index {stop.first_bad_index} on are lost here, those through {through} can"
        " be read; a member of several keeps these and fetches the rest, a single one is fenced"
    )
    book.damaged(stop.path, stop.detail, means, stop.offset)


class _Look:
    """Sees each sound batch once."""

    def __init__(self, book: Book, visit: Visit | None) -> None:
        self.damaged = False
        self._book = book
        self._visit = visit

    def __call__(self, path: str, batch: Batch) -> None:
        self._book.read(batch.header.total)
        try:
            records = walk_chain(batch.header, batch.body)
            if self._visit is not None:
                self._visit(batch.header, records)
            for _ in records:
                pass
        except Corrupt as error:
            self.damaged = True
            means = "the checksum of its batch is right, so it was written wrong: report this"
            self._book.damaged(path, error.detail, means, batch.offset)


def _look_behind(files: Files, found: Replayed, book: Book) -> None:
    """Behind the batches of a sealed segment there are zeros, as it was made with."""
    segments = found.timeline.segments
    stopped = found.stop.path if found.stop is not None else ""
    for segment in segments:
        file = files.open(segment.path)
        try:
            size = file.size()
            if segment is not segments[-1] and segment.path != stopped:
                at = _first_used(file, segment.end, size)
                if at is not None:
                    what = "expected zeros behind the last batch of a sealed segment"
                    book.damaged(segment.path, what, _HARMLESS, at)
            book.read(size - segment.end)
        finally:
            file.close()


def _first_used(file: File, start: int, end: int) -> int | None:
    """Where the first byte lies that is not zero."""
    for offset in range(start, end, _PIECE_BYTES):
        data = file.pread(min(_PIECE_BYTES, end - offset), offset)
        if rest := data.lstrip(b"\0"):
            return offset + len(data) - len(rest)
    return None


def _audit_sidecar(files: Files, segment: Segment, book: Book) -> None:
    """It is not synced, so a power failure may leave none or a part of it. A whole one is right,
    though perhaps made with other settings; then the next start makes it again."""
    path = sidecar_path(segment.path)
    if not files.exists(path):
        return
    file = files.open(path)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    book.read(len(data))
    try:
        decode_sidecar(data, segment.header)
    except Corrupt as error:
        if not _is_unfinished(data):
            book.damaged(path, error.detail, _SIDECAR, 0)


def _is_unfinished(data: bytes) -> bool:
    """Whether a part of it never reached the disk: no whole sidecar has this length, or a sector
    without a bit."""
    if len(data) < 40 or (len(data) - 40) % 16:
        return True
    sectors = range(0, len(data), _SECTOR_BYTES)
    return any(not any(data[at : at + _SECTOR_BYTES]) for at in sectors)
