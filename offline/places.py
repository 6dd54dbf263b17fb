"""What a path is: the directory of a node, that of one shard, or a file of one of them.

The one rule: whoever looks holds the lock that a running node holds, shared, so a node cannot begin
to write meanwhile, and a directory that is written to is refused. Nothing is made for it: a
directory without a lock file, such as a copy, has nobody to lock out.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardnode.node.identity import IDENTITY, LOCK, DirectoryInUse
from shardnode.storage.superblock import COPIES
from shardnode.wire.errors import NotFound

_SHARD = re.compile(r"shard-(\d+)")
_DEPTH_MAX = 6
_OF_A_SHARD = (*COPIES, "log", "kv", "snapshots", "partitions")


class Place(NamedTuple):
    """A directory with the files of shards."""

    root: Path
    """Paths of files are told relative to here."""
    shards: Sequence[str]
    """The names of the shards' directories below it, in the order of their numbers."""
    is_whole: bool
    """The whole directory of a node, and not that of one shard."""

    def shard_number(self, name: str) -> int:
        """Of the shard in a directory; -1 when its name does not tell."""
        match = _SHARD.fullmatch(name)
        return int(match[1]) if match else -1


def find_place(path: Path) -> Place:
    """What is at a path; `NotFound` when that is no directory of ours."""
    path = Path(os.path.abspath(path))
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise NotFound(f"{path}: expected the directory of a node or of one shard, found {found}")
    names = os.listdir(path)
    shards = sorted((int(match[1]), match[0]) for match in map(_SHARD.fullmatch, names) if match)
    if IDENTITY in names or shards:
        return Place(path, [name for _, name in shards], is_whole=True)
    if set(_OF_A_SHARD) & set(names):
        return Place(path.parent, [path.name], is_whole=False)
    raise NotFound(
        f"{path}: expected the directory of a node ({IDENTITY}, shard-0/ …) or of one shard"
        f" ({', '.join(_OF_A_SHARD[:3])} …), found neither; give the path that was --data"
    )


def root_of(file: Path) -> Path:
    """The directory of the node that a file belongs to, or the one that it lies in."""
    above = list(file.parents)[:_DEPTH_MAX]
    return next((folder for folder in above if (folder / LOCK).exists()), file.parent)


@contextmanager
def held(root: Path, *, alone: bool = False) -> Iterator[None]:
    """Nobody else writes below it meanwhile; `DirectoryInUse` when a node does. With `alone`,
    nobody else even looks."""
    try:
        fd = os.open(root / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, 32, 0).strip()
            raise DirectoryInUse(root, int(text) if text.isdigit() else None) from None
        yield
    finally:
        os.close(fd)
