"""The directory of a stopped node, held so that no node starts on it while it is read.

One rule: files are read only when nobody writes them. A node locks its directory alone; readers
share the same lock, so each keeps the other out.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardnode.node.identity import LOCK, Identity, read_identity
from shardnode.wire.errors import InvalidRequest, NotFound


@contextmanager
def held(root: str) -> Iterator[None]:
    """No node starts on the directory meanwhile; raises `InvalidRequest` when one is running."""
    try:
        fd = os.open(os.path.join(root, LOCK), os.O_RDONLY)
    except FileNotFoundError:  # a directory that was restored, and never started
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidRequest(
                f"{root}: expected the directory of a stopped node, found that one is running on"
                " it; read that node with option connect, or stop it"
            ) from error
        yield
    finally:
        os.close(fd)


def identity_of(root: str) -> Identity:
    """What the directory says of itself; raises `NotFound` when it is none, or lacks a shard."""
    found = read_identity(Path(root))
    if found is None:
        raise NotFound(
            f"{root}: expected the directory of a stopped node, or of backups, found neither"
        )
    missing = [
        f"shard-{shard}"
        for shard in range(found.shards)
        if not os.path.isdir(os.path.join(root, f"shard-{shard}"))
    ]
    if missing:
        raise NotFound(
            f"{root}: expected {found.shards} shards, {', '.join(missing)} are not there; a frame"
            " never leaves out a shard"
        )
    return found
