"""Owns what of a partition log is not durable yet, and how it becomes so.

The one rule: `SyncWork.run` may be called in another thread, because it uses only files that stay
open until its end is taken in, and touches nothing of the log. It covers what was written when it
began; what is written meanwhile waits for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.storage.errors import StorageError
from shardnode.storage.files import File, Files
from shardnode.storage.partition_handles import Handles
from shardnode.storage.partition_records import Mark


class SyncWork:
    """From `begin_sync` to `end_sync`."""

    __slots__ = ("_directories", "_files", "_synced", "error", "is_done", "mark", "paths")

    def __init__(
        self,
        files: Files,
        mark: Mark,
        paths: Sequence[str],
        synced: Sequence[File],
        directories: Sequence[str],
    ) -> None:
        self.mark = mark
        self.paths = paths
        self.error: StorageError | None = None
        self.is_done = False
        self._files = files
        self._synced = synced
        self._directories = directories

    def __bool__(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self._synced or self._directories)

    def run(self) -> None:
        """Sync files, then names. A `StorageError` is kept for `end_sync`, which raises it."""
        try:
            for file in self._synced:
                file.datasync()
            for directory in self._directories:
                self._files.sync_dir(directory)
        except StorageError as error:
            self.error = error
        self.is_done = True


class Unsynced:
    """What was written to one log since its last sync began."""

    def __init__(self, files: Files, handles: Handles, directory: str) -> None:
        self._files = files
        self._handles = handles
        self._directory = directory
        self._paths: set[str] = set()
        self._names_changed = False
        self._work: SyncWork | None = None

    @property
    def is_under_way(self) -> bool:
        return self._work is not None

    def add(self, path: str, *, is_new: bool = False) -> None:
        """This file was written to, and is a new one."""
        self._paths.add(path)
        self._names_changed |= is_new

    def discard(self, path: str) -> None:
        """This file is no more."""
        self._paths.discard(path)

    def begin(self, mark: Mark, *, is_first: bool) -> SyncWork:
        """The work that makes `mark` durable; `is_first` when nothing of the log is so far."""
        assert self._work is None, "a sync is under way"
        paths = sorted(self._paths)
        directories = [self._directory] if self._names_changed else []
        if paths and is_first:
            # Nobody else may have synced the names above, even if they were there before.
            directories = _with_parents(self._directory)
        synced = self._handles.begin_sync(paths)
        self._work = SyncWork(self._files, mark, paths, synced, directories)
        self._paths = set()
        self._names_changed = False
        return self._work

    def end(self, work: SyncWork) -> None:
        """Take in that the work was done; raises what it met."""
        assert work is self._work, "another sync is under way"
        assert work.is_done, "this sync was not run"
        self._work = None
        self._handles.end_sync(work.paths, work.error)
        if work.error is not None:
            raise work.error


def _with_parents(path: str) -> list[str]:
    """A directory and all above it, up to the root."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]
