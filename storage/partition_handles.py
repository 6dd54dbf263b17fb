"""Owns the open files that readers of all partition logs of a shard share.

A process may have about 1,000 files open, and there may be thousands of logs, so this set is
bounded: the file that was not used for longest is closed, and opened again when somebody needs it.

The one rule: nothing is written through these files. Who writes opens a file of its own and keeps
it until its sync, because the system tells of a write-back that failed only those who had the file
open.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardnode.storage.files import File, Files

OPEN_MAX = 512
"""Leaves half of the usual limit of 1,024 to sockets, LMDB and the segmented log."""


class Handles:
    """At most `open_max` open files; in front those that were used longest ago."""

    def __init__(self, files: Files, open_max: int = OPEN_MAX) -> None:
        self._files = files
        self._open_max = open_max
        self._open: dict[str, File] = {}

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: str) -> File:
        """An existing file."""
        file = self._open.pop(path, None)
        if file is None:
            while len(self._open) >= self._open_max:
                self._open.pop(next(iter(self._open))).close()
            file = self._files.open(path)
        self._open[path] = file  # the last one now
        return file

    def close(self, paths: Iterable[str]) -> None:
        """Close those of the files that are open."""
        for path in paths:
            file = self._open.pop(path, None)
            if file is not None:
                file.close()
