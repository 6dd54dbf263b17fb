"""Owns the named points at which a test can make this process fail, as a disk or the power would.

    SHARDNODE_FAILPOINTS="log.sync.before=kill@7; shard1/kv.commit.after=error@2"

    setting       [shardN/]point=action[@first[+count]]; several with ";" between them
    first, count  the how-manieth time in a process, and how often from then on; without, always
    kill          SIGKILL to this process
    error         the layer below says EIO
    full          … ENOSPC, as a small disk would
    delay:200ms   it takes that much longer

At a `torn` point half of the bytes are written before the action. Each time something is done, a
line on stderr says so. The process that builds a snapshot counts for itself.

    python -m shardnode.storage.failpoints      lists all points

The one rule: without the variable nothing of this is on anybody's way. That is decided once, when
a process makes its files: then they are the plain ones, and LMDB's hook stays None.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from shardnode.storage.errors import BadFailpoint
from shardnode.storage.files import Buffer, File, Files, RealFiles, sync_failed, translate

VARIABLE = "SHARDNODE_FAILPOINTS"

_KINDS = {
    "log": "a file of the log",
    "superblock": "a copy of the superblock",
    "snapshot": "a file of a snapshot",
    "partition": "a file of the log of a stream partition",
    "other": "any other file of a shard",
}
_OPERATIONS = {
    "write": "bytes are written to",
    "sync": "the content is synced of",
    "truncate": "the length is set of",
    "allocate": "space is reserved for",
    "rename": "another name is given to",
    "remove": "the name is removed of",
    "sync_dir": "the names are synced in the directory of",
}
_NEVER = {f"superblock.{each}" for each in ("truncate", "allocate", "sync_dir", "remove")} | {
    f"snapshot.{each}" for each in ("truncate", "allocate")
}
_NEVER |= {f"partition.{each}" for each in ("allocate", "rename")}


def _list_points() -> Iterator[tuple[str, str]]:
    for kind, file in _KINDS.items():
        for operation, what in _OPERATIONS.items():
            if (name := f"{kind}.{operation}") in _NEVER:
                continue
            yield f"{name}.before", f"before {what} {file}"
            if operation == "write":
                yield f"{name}.torn", f"when half of them are, where {what} {file}"
            yield f"{name}.after", f"after {what} {file}"
    yield "kv.commit.before", "before LMDB commits a flush"
    yield "kv.commit.after", "after LMDB has committed a flush"
    yield "snapshot.build.before", "before a process of its own builds a snapshot"
    yield "snapshot.build.after", "after that, before it tells what it built"


FAILPOINTS = dict(_list_points())
"""Every point, and when it is passed."""

_SETTING = re.compile(
    r"(?:shard(?P<shard>\d+)/)?(?P<name>[a-z_.]+)"
    r"=(?P<action>kill|error|full|delay:(?P<delay>\d+)ms)"
    r"(?:@(?P<first>[1-9]\d*)(?:\+(?P<count>[1-9]\d*))?)?"
)
_ERRORS = {"error": errno.EIO, "full": errno.ENOSPC}


@dataclass(slots=True)
class _Trap:
    """What happens at one point, and when."""

    name: str
    shard: str | None
    action: str
    delay_s: float
    first: int
    count: float
    passed: int = 0

    def spring(self) -> None:
        if not self.is_due():
            return
        if self.passed == self.first or not self.delay_s:
            os.write(2, f"failpoint {self.name}={self.action} at {self.passed}\n".encode())
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.delay_s:
            time.sleep(self.delay_s)
        else:
            number = _ERRORS[self.action]
            raise OSError(number, f"{os.strerror(number)} (failpoint {self.name})")

    def is_due(self) -> bool:
        self.passed += 1
        return self.first <= self.passed < self.first + self.count


def parse(text: str) -> list[_Trap]:
    """The traps in a value of the variable; `BadFailpoint` says what was expected."""
    return [_parse_one(each) for part in text.split(";") if (each := part.strip())]


def _parse_one(text: str) -> _Trap:
    match = _SETTING.fullmatch(text)
    if match is None:
        raise BadFailpoint(
            f"{VARIABLE}: expected [shardN/]point=action[@first[+count]] with an action of kill,"
            f" error, full or delay:MILLISECONDSms, found {text!r}"
        )
    name, action, first, count = match["name"], match["action"], match["first"], match["count"]
    if name not in FAILPOINTS:
        raise BadFailpoint(
            f"{VARIABLE}: expected one of the points that `python -m shardnode.storage.failpoints`"
            f" lists, found {name!r}"
        )
    times = float(count or 1) if first else float("inf")
    shard = f"shard-{match['shard']}" if match["shard"] else None
    return _Trap(name, shard, action, int(match["delay"] or 0) / 1_000, int(first or 1), times)


class Failpoints:
    """The traps of one process."""

    def __init__(self, traps: Sequence[_Trap]) -> None:
        self._traps: dict[str, list[_Trap]] = {}
        for trap in traps:
            self._traps.setdefault(trap.name, []).append(trap)

    def has(self, name: str) -> bool:
        return name in self._traps

    def reach(self, name: str) -> None:
        """Do what is set for this point; an `OSError` is what the system is to have said."""
        for trap in self._traps.get(name, ()):
            trap.spring()

    @contextmanager
    def around(self, name: str, path: str) -> Iterator[None]:
        """The points before and after an operation, with the errors of this room."""
        try:
            self.reach(f"{name}.before")
            yield
            self.reach(f"{name}.after")
        except OSError as error:
            operation = name.rpartition(".")[2]
            if operation.startswith("sync"):
                raise sync_failed(error, path) from error
            raise translate(error, operation, path) from error

    def commit(self, moment: str) -> None:
        """LMDB's hook; says what LMDB would."""
        import lmdb

        try:
            self.reach(f"kv.commit.{moment}")
        except OSError as error:
            kind = lmdb.DiskError if error.errno == errno.ENOSPC else lmdb.Error
            raise kind(str(error)) from error


class FailingFile:
    """A file with failpoints around what changes it."""

    def __init__(self, file: File, path: str, points: Failpoints) -> None:
        self._file = file
        self._path = path
        self._kind = kind_of(path)
        self._points = points
        self.pread = file.pread
        self.size = file.size
        self.close = file.close

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        with self._points.around(f"{self._kind}.write", self._path):
            torn = f"{self._kind}.write.torn"
            if self._points.has(torn):
                self._tear(torn, buffers, offset)
            self._file.pwritev(buffers, offset)

    def pwritev_direct(self, buffers: Sequence[Buffer], offset: int) -> None:
        with self._points.around(f"{self._kind}.write", self._path):
            torn = f"{self._kind}.write.torn"
            if self._points.has(torn):
                self._tear(torn, buffers, offset)
            self._file.pwritev_direct(buffers, offset)

    def _tear(self, name: str, buffers: Sequence[Buffer], offset: int) -> None:
        """Half of what is not zeros. If it goes on, the whole is written over it."""
        data = b"".join(buffers)
        self._file.pwritev([data[: len(data.rstrip(b"\0")) // 2]], offset)
        self._points.reach(name)

    def datasync(self) -> None:
        with self._points.around(f"{self._kind}.sync", self._path):
            self._file.datasync()

    def truncate(self, size: int) -> None:
        with self._points.around(f"{self._kind}.truncate", self._path):
            self._file.truncate(size)

    def allocate(self, size: int) -> None:
        with self._points.around(f"{self._kind}.allocate", self._path):
            self._file.allocate(size)


class FailingFiles:
    """A tree of files with failpoints."""

    def __init__(self, files: Files, points: Failpoints) -> None:
        self._files = files
        self._points = points
        self.exists = files.exists
        self.listdir = files.listdir
        self.mkdir = files.mkdir
        self.token = files.token

    def create(self, path: str) -> FailingFile:
        return FailingFile(self._files.create(path), path, self._points)

    def open(self, path: str) -> FailingFile:
        return FailingFile(self._files.open(path), path, self._points)

    def rename(self, src: str, dst: str) -> None:
        with self._points.around(f"{kind_of(src)}.rename", src):
            self._files.rename(src, dst)

    def remove(self, path: str) -> None:
        with self._points.around(f"{kind_of(path)}.remove", path):
            self._files.remove(path)

    def remove_tree(self, path: str) -> None:
        with self._points.around(f"{kind_of(path)}.remove", path):
            self._files.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        with self._points.around(f"{kind_of(path)}.sync_dir", path):
            self._files.sync_dir(path)


def kind_of(path: str) -> str:
    """Which kind of file `shard-N/…` is."""
    parts = path.split("/")
    name = parts[1] if len(parts) > 1 else ""
    if name.startswith("superblock."):
        return "superblock"
    return {"log": "log", "snapshots": "snapshot", "partitions": "partition"}.get(name, "other")


@cache
def _armed(text: str, shard: str) -> Failpoints | None:
    traps = [trap for trap in parse(text) if trap.shard in (None, shard)]
    return Failpoints(traps) if traps else None


def working_files(root: str, shard: str) -> Files:
    """The files below `root` for a process that works on the shard in the directory `shard`."""
    files = RealFiles(root)
    points = _armed(os.environ.get(VARIABLE, ""), shard)
    if points is None:
        return files
    if points.has("kv.commit.before") or points.has("kv.commit.after"):
        from shardnode.storage import engine_lmdb

        engine_lmdb.commit_hook = points.commit
    return FailingFiles(files, points)


def pass_point(name: str, shard: str) -> None:
    """A point that is passed seldom, outside of files."""
    points = _armed(os.environ.get(VARIABLE, ""), shard)
    if points is not None:
        try:
            points.reach(name)
        except OSError as error:
            raise translate(error, "go on", name) from error


def main() -> int:
    """List the points."""
    width = max(map(len, FAILPOINTS))
    sys.stdout.writelines(f"{name:{width}}  {what}\n" for name, what in FAILPOINTS.items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
