"""A replica whose files are damaged beyond its log starts over from its peers.

The one rule: nothing is thrown away. What is damaged, and what depends on it, is moved to
`quarantine/`; term and vote stay, so the member comes back as one that lost its log: it neither
votes nor leads before it holds everything its leader has. Alone in its group a replica never does
this: nobody could give anything back.

The wish is a file, because it must outlive the process that found the damage: a restart opens the
same files, and might not come to the same place again.
"""

from __future__ import annotations

import logging
import os

from shardnode.shard.settings import WorkerSettings
from shardnode.shard.streams import PARTITIONS_DIRECTORY
from shardnode.storage.errors import Corrupt
from shardnode.storage.failpoints import working_files
from shardnode.storage.files import Files, join
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.publish import publish_file, set_aside
from shardnode.storage.snapshots import QUARANTINE_DIRECTORY, SNAPSHOTS_DIRECTORY

log = logging.getLogger("shardnode.shard")

WISH = "rebuild"
KEYS_DIRECTORY = "kv"

_ALL = (PARTITIONS_DIRECTORY, KEYS_DIRECTORY, SNAPSHOTS_DIRECTORY, LOG_DIRECTORY)
"""The log goes last: without it the member knows that it lost something."""


def wish(files: Files, shard: str, why: str) -> None:
    """The next start begins with `start_over`."""
    publish_file(files, join(shard, WISH), why.encode())


def wished(files: Files, shard: str) -> str:
    """Why this replica is to start over; empty when it is not."""
    path = join(shard, WISH)
    if not files.exists(path):
        return ""
    file = files.open(path)
    try:
        return file.pread(file.size(), 0).decode(errors="replace") or "no reason was given"
    finally:
        file.close()


def start_over(files: Files, shard: str) -> list[str]:
    """Set everything but term and vote aside; where it is now. A crash in between is no harm: the
    wish is still there."""
    quarantine = join(shard, QUARANTINE_DIRECTORY)
    moved = [
        set_aside(files, join(shard, name), quarantine)
        for name in _ALL
        if files.exists(join(shard, name))
    ]
    files.remove(join(shard, WISH))
    files.sync_dir(shard)
    return moved


class Remedy:
    """What the worker of one shard can do about damage."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.has_peers = len(settings.nodes) > 1
        self._settings = settings

    def ask(self, why: str) -> None:
        """Start over, now or after the next start."""
        files, shard = self._files()
        wish(files, shard, why)

    def take(self) -> None:
        """Start over, if somebody asked for it; alone that is refused."""
        files, shard = self._files()
        why = wished(files, shard)
        if not why:
            return
        if not self.has_peers:
            raise Corrupt(why, path=os.path.join(self._settings.directory, WISH))
        log.error("shard %d starts over from its peers: %s", self._settings.shard, why)
        start_over(files, shard)

    def _files(self) -> tuple[Files, str]:
        root, shard = os.path.split(self._settings.directory)
        return working_files(root, shard), shard
