"""A data directory while a backup is restored into it.

    data/
      restoring     here while the rest is not complete
      LOCK          held by whoever restores
      shard-0/ …    not touched here, but to begin anew
      node.json     comes last: from here on the directory is a node's

The one rule: a directory without `node.json` is nobody's, and no node starts there. What an
interrupted restore leaves is recognised, refused by `start`, and replaced by the next restore.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Self

from shardnode.node.identity import (
    IDENTITY,
    LEFT_BY_A_FIRST_START,
    RESTORING,
    Identity,
    WrongDirectory,
    encode_identity,
    lock_directory,
    make_directory,
    now,
    os_errors_named,
    publish,
    sync_directory,
)


class RestoredDirectory:
    """A directory that is locked and empty, and becomes a node's with `finish`."""

    def __init__(self, path: Path) -> None:
        """Begin: the directory must be absent, empty, or left by an interrupted restore."""
        self.path = path
        with os_errors_named(path):
            if not path.exists():
                make_directory(path)
            _check(path)
            self._lock_fd = lock_directory(path)
            try:
                _check(path)  # until the lock was ours, somebody else may have been at work
                publish(path / RESTORING, b"a restore into this directory is not complete\n")
                _empty(path)
            except BaseException:
                self.close()
                raise

    def finish(self, identity: Identity) -> None:
        """All is there and durable: from now on it is this node's."""
        with os_errors_named(self.path):
            sync_directory(self.path)
            publish(self.path / IDENTITY, encode_identity(replace(identity, created=now())))
            os.unlink(self.path / RESTORING)
            sync_directory(self.path)

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(path: Path) -> None:
    names = {*os.listdir(path)}
    unfinished = RESTORING in names and IDENTITY not in names
    others = sorted(names - LEFT_BY_A_FIRST_START - ({RESTORING} if unfinished else set()))
    if unfinished:
        others = [name for name in others if not name.startswith("shard-")]
    if others:
        raise WrongDirectory(
            f"{path}: expected an empty directory to restore into, found {others[0]}; choose"
            " another --data, or empty it"
        )


def _empty(path: Path) -> None:
    for name in os.listdir(path):
        if name.startswith("shard-"):
            shutil.rmtree(path / name)
    sync_directory(path)
