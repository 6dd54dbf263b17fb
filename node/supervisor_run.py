"""The run folder: where the sockets between the processes of one node lie.

The one rule: it is private (mode 0700), short (a socket's path has at most 107 bytes) and goes when
the node goes. A node that was killed leaves its folder behind; the next node to start sweeps away
those whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from shardnode.wire.errors import ShardnodeError

PREFIX = "sn-"
LOCK = "lock"
SOCKET_PATH_BYTES_MAX = 107
_NAME_ROOM = len("/sn-12345678/s99")
_SWEEP_AGE_S = 60.0
"""A younger folder may belong to a node that is just about to lock it."""


class RunFolder:
    """A folder for sockets, ours until `close`."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or folder_for_sockets()
        sweep(self._parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._parent))
        self._lock_fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def ipc(self, shard: int) -> str:
        """The address of a worker within this node."""
        return f"ipc://{self.path}/s{shard}"

    def close(self) -> None:
        if self._lock_fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1


def sweep(parent: Path) -> None:
    """Remove the folders of nodes that are gone."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            # The age of files is a matter of the wall clock.
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _SWEEP_AGE_S:
                continue
            fd = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)


def folder_for_sockets() -> Path:
    """The first usable place whose path is short enough."""
    wanted = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")
    for place in filter(None, wanted):
        room = len(os.fsencode(place)) + _NAME_ROOM
        if room <= SOCKET_PATH_BYTES_MAX and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise ShardnodeError(
        f"expected a temporary folder with a path of at most"
        f" {SOCKET_PATH_BYTES_MAX - _NAME_ROOM} bytes, found none of {wanted}; set TMPDIR"
    )
