"""Owns the open files of all partition logs of a shard, of which there may be thousands.

A process may have about 1,000 files open, so the logs share this bounded set: the file that was not
used for longest is closed, and opened again when somebody needs it.

The one rule: a file is not closed before what was written through it is durable, because the
system tells of a write-back that failed only those who had the file open. So only a part of the
files may be waiting for their sync: a writer that needs one more pays for the oldest of them, and a
reader always finds one that can be closed. After a sync that failed nothing works any more, as
storage never tries one again.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardnode.storage.errors import StorageError, SyncFailed
from shardnode.storage.files import File, Files

OPEN_MAX = 512
"""Leaves half of the usual limit of 1,024 to sockets, LMDB and the segmented log. Three quarters of
them may wait for their sync. Who writes to more partitions than that between two syncs pays for one
with each append (80 to 170 us instead of 8 here), and should raise both limits."""


class Handles:
    """At most `open_max` open files; in front those that were used longest ago."""

    def __init__(self, files: Files, open_max: int = OPEN_MAX) -> None:
        assert open_max > 1, "one to write and one to read"
        self._files = files
        self._open_max = open_max
        self._dirty_max = open_max * 3 // 4
        self._clean: dict[str, File] = {}
        self._dirty: dict[str, File] = {}  # written to and not synced
        self._busy: dict[str, File] = {}  # being synced, maybe by another thread
        self._failed: SyncFailed | None = None

    def __len__(self) -> int:
        return len(self._clean) + len(self._dirty) + len(self._busy)

    def create(self, path: str) -> File:
        """A new file, for writing."""
        self._bound_dirty()
        self._make_room()
        file = self._dirty[path] = self._files.create(path)
        return file

    def write(self, path: str) -> File:
        """An existing file, for writing; it counts as written to from now on."""
        if path not in self._dirty:
            self._bound_dirty()
        file = self.read(path)
        self._clean.pop(path, None)
        self._dirty[path] = file
        return file

    def read(self, path: str) -> File:
        """An existing file, for reading."""
        for group in (self._dirty, self._busy, self._clean):
            file = group.pop(path, None)
            if file is not None:
                group[path] = file  # the last one now
                return file
        self._make_room()
        file = self._clean[path] = self._files.open(path)
        return file

    def begin_sync(self, paths: Iterable[str]) -> list[File]:
        """Those of the files that need a sync now. They stay open until `end_sync`; what is
        written to them meanwhile needs another one."""
        self._check()
        begun = []
        for path in paths:
            file = self._dirty.pop(path, None)
            if file is not None:
                assert path not in self._busy, "two syncs of one file at a time"
                self._busy[path] = file
                begun.append(file)
        return begun

    def end_sync(self, paths: Iterable[str], failed: StorageError | None) -> None:
        """All that `begin_sync` gave for these paths is synced, or that failed."""
        for path in paths:
            file = self._busy.pop(path, None)
            if file is not None and path not in self._dirty:
                self._clean[path] = file
        if isinstance(failed, SyncFailed):
            self._failed = failed

    def forget(self, path: str) -> None:
        """Close a file whose content does not matter any more."""
        assert path not in self._busy, "a file that is being synced"
        for group in (self._dirty, self._clean):
            file = group.pop(path, None)
            if file is not None:
                file.close()

    def rest(self, paths: Iterable[str]) -> None:
        """Close those of the files that need no sync."""
        for path in paths:
            file = self._clean.pop(path, None)
            if file is not None:
                file.close()

    def _make_room(self) -> None:
        """Close clean files until one more can be opened. When there are none left, many are being
        synced: better one too many for a while than to wait for that."""
        self._check()
        while self._clean and len(self) >= self._open_max:
            self._clean.pop(next(iter(self._clean))).close()

    def _bound_dirty(self) -> None:
        """Sync the files that were written to longest ago until there may be one more."""
        self._check()
        while len(self._dirty) >= self._dirty_max:
            path = next(iter(self._dirty))
            try:
                self._dirty[path].datasync()
            except SyncFailed as error:
                self._failed = error
                raise
            file = self._dirty.pop(path)
            if path not in self._busy:
                self._clean[path] = file

    def _check(self) -> None:
        if self._failed is not None:
            raise SyncFailed(f"refused after an earlier failure ({self._failed}): exit, now")
