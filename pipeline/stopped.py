"""The directory of a stopped node, held so that no node starts on it while it is read.

One rule: files are read only when nobody writes them. A node locks its directory alone; readers
share the same lock, so each keeps the other out.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardnode.node.identity import LOCK, Identity, read_identity
from shardnode.storage.audit import Book
from shardnode.storage.audit_log import audit_log, log_names
from shardnode.storage.audit_superblock import audit_superblock
from shardnode.storage.files import Files
from shardnode.storage.reader import Reader
from shardnode.storage.records import Record
from shardnode.storage.timeline import Timeline
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound

PIECE_BYTES = 8 << 20

log = logging.getLogger("shardnode.pipeline")


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


class AgreedLog(NamedTuple):
    """The log of a shard, as far as it is known to be agreed."""

    files: Files
    timeline: Timeline
    commit: int

    def records(self, after: int, last: int) -> Iterator[Record]:
        """Those behind an index, up to another one."""
        last = min(last, self.timeline.last.index)
        reader = Reader(self.files, self.timeline)
        try:
            while after < last:
                for record in reader.records(after + 1, last, PIECE_BYTES):
                    found = Record._make(record)
                    after = found.index
                    yield found
        finally:
            reader.close()


def agreed_log(files: Files, shard: int, stored: int) -> AgreedLog:
    """The log of a shard whose state is stored up to an index; what is not known to be agreed is
    told in a warning. Raises `Corrupt`."""
    name, book = f"shard-{shard}", Book()
    state = audit_superblock(files, name, book).state
    commit = state.commit if state is not None else 0
    if log_names(files, name):
        timeline = audit_log(files, name, max(commit, stored), book).timeline
    else:
        timeline = Timeline(1 << 20)
    if book.damage:
        raise Corrupt(f"{book.damage[0]}; see `shardnode verify` and `shardnode repair`")
    commit = max(commit, timeline.commit, stored)
    if timeline.last.index > commit:
        log.warning(
            "shard %d: %d entries are in its log and not known to be agreed, so they are left"
            " out: after a crash some of them may have been acknowledged; start the node once",
            shard,
            timeline.last.index - commit,
        )
    return AgreedLog(files, timeline, commit)
