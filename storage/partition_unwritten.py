"""Owns what was appended to a partition log and is not in its files yet, and how it gets there.

Nobody waits for these files: what is in them can be made again from the segmented log. So batches
gather in memory, where readers find them, and go to the disk together, a file after the other, each
with one write and one sync.

The one rule: `SyncWork.run` may be called in another thread, because it opens the files it writes
for itself and touches nothing of the log. It covers what was appended when it began; what comes
meanwhile waits for the next one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from shardnode.storage.errors import NoSpace, StorageError
from shardnode.storage.files import Buffer, Files
from shardnode.storage.partition_plan import Piece
from shardnode.storage.partition_records import Batch, Mark

_OFFSET = attrgetter("offset")
_STAMP = attrgetter("stamp_ms")


@dataclass(slots=True)
class _Write:
    """What goes to one file."""

    path: str
    start: int
    is_new: bool
    buffers: list[Buffer]


class SyncWork:
    """From `begin_sync` to `end_sync`."""

    __slots__ = ("_directories", "_files", "_writes", "error", "is_done", "mark")

    def __init__(
        self, files: Files, mark: Mark, writes: list[_Write], directories: Sequence[str]
    ) -> None:
        """`directories`: whose names change, the one of the log first."""
        self.mark = mark
        self.error: StorageError | None = None
        self.is_done = False
        self._files = files
        self._writes = writes
        self._directories = directories

    def __bool__(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._writes or self._directories)

    def run(self) -> None:
        """Write and sync files, then names. A `StorageError` is kept for `end_sync`, which raises
        it. After `NoSpace` it may be called again, and goes on."""
        self.error = None
        try:
            if self._directories:
                self._files.mkdir(self._directories[0])
            while self._writes:
                self._write(self._writes[0])
                del self._writes[0]
            for directory in self._directories:
                self._files.sync_dir(directory)
        except StorageError as error:
            self.error = error
        self.is_done = not isinstance(self.error, NoSpace)

    def _write(self, write: _Write) -> None:
        files, path = self._files, write.path
        # An earlier run may have made it, and then had no room.
        is_there = not write.is_new or files.exists(path)
        file = files.open(path) if is_there else files.create(path)
        try:
            file.pwritev_direct(write.buffers, write.start)
            file.datasync()
        finally:
            file.close()


class Unwritten:
    """What one log has in memory alone."""

    def __init__(self, files: Files, directory: str, mark: Mark) -> None:
        self.mark = mark
        """How far the files are, but for the start of the log."""
        self._files = files
        self._directory = directory
        self._batches: list[Batch] = []
        self._writes: list[_Write] = []
        self.work: SyncWork | None = None
        """The one under way."""

    def __len__(self) -> int:
        """How many batches."""
        return len(self._batches)

    def add(self, batches: Sequence[Batch], pieces: Sequence[Piece]) -> None:
        """Batches, and what they are in the files."""
        self._batches += batches
        for piece in pieces:
            path = piece.segment.path
            if not self._writes or self._writes[-1].path != path:
                self._writes.append(_Write(path, piece.start, piece.is_new, []))
            self._writes[-1].buffers += piece.buffers

    def read(
        self, offset: int, *, bytes_max: int, batches_max: int, messages_max: int
    ) -> list[Batch]:
        """The batches from the one that contains `offset` on, but always one; what is in the files
        is not here."""
        found: list[Batch] = []
        batches = self._batches
        for place in range(bisect_right(batches, offset, key=_OFFSET) - 1, len(batches)):
            batch = batches[place]
            bytes_max -= len(batch.payload)
            if found and (bytes_max < 0 or len(found) >= batches_max):
                break
            found.append(batch._replace(payload=bytes(batch.payload)))  # as from a file
            if batch.end_offset - offset >= messages_max:
                break
        return found

    def find(self, stamp_ms: int) -> int:
        """The first offset whose batch has this stamp or a later one, which one of them has."""
        return self._batches[bisect_left(self._batches, stamp_ms, key=_STAMP)].offset

    def begin(self, mark: Mark, *, is_first: bool) -> SyncWork:
        """The work that makes `mark` durable; `is_first` when nothing of the log is so far."""
        assert self.work is None, "a sync is under way"
        writes, self._writes = self._writes, []
        directories = [self._directory] if any(write.is_new for write in writes) else []
        if writes and is_first:
            # Nobody else may have synced the names above, even if they were there before.
            directories = _with_parents(self._directory)
        self.work = SyncWork(self._files, mark, writes, directories)
        return self.work

    def end(self, work: SyncWork) -> None:
        """Take in that the work was done; raises what it met. After `NoSpace` it is still under
        way."""
        assert work is self.work, "another sync is under way"
        if work.error is not None:
            raise work.error
        assert work.is_done, "this sync was not run"
        self.work = None
        del self._batches[: bisect_left(self._batches, work.mark.end_offset, key=_OFFSET)]
        self.mark = work.mark


def _with_parents(path: str) -> list[str]:
    """A directory and all above it, up to the root."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]
