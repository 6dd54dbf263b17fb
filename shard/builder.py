"""Building a snapshot beside the loop, in a process of its own.

The one rule: the loop never waits for it. The process reads the last commit of the key-value files,
which LMDB keeps for it while others write, and lays down the parts; the replica publishes them when
they are complete, in the same thread that does everything else to its snapshots.

    request, one line on stdin    {"engine": "<shard>/kv", "root": …, "temporary": …}
    answer, one line on stdout    {"index": 42, "membership": "<hex>",
                                   "files": [[name, size, checksum], …]}
                                  {"failed": "why"}

A process that loses its worker sees the end of stdin and goes; what it leaves is swept at the next
start.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any, Protocol

import orjson

from shardnode.shard.effects import snapshot_parts
from shardnode.shard.streams_copy import stream_parts
from shardnode.storage.engine_lmdb import LmdbReader
from shardnode.storage.engine_store import Item
from shardnode.storage.errors import StorageError
from shardnode.storage.failpoints import pass_point, working_files
from shardnode.storage.manifest import SnapshotFile
from shardnode.storage.snapshots import write_parts

COMMAND = (sys.executable, "-P", "-m", "shardnode.shard.builder")
BATCH_KEYS = 1_024
NICE = 10
"""It shares the worker's core, and must not take it."""


@dataclass(frozen=True, slots=True)
class Built:
    """The parts of a snapshot, complete and synced in their temporary directory."""

    index: int
    membership: bytes
    files: tuple[SnapshotFile, ...]


class BuildFailed(Exception):
    """No snapshot this time; the message says why."""


class Builder(Protocol):
    """Builds one snapshot at a time."""

    @property
    def busy(self) -> bool:
        """Whether one is being built."""

    def begin(self, temporary: str) -> None:
        """Begin to build the last commit of the state in a directory of the snapshot store."""

    def poll(self) -> Built | None:
        """What was built, once; None while it takes. Raises `BuildFailed`."""

    def close(self) -> None:
        """Give up."""


class ProcessBuilder:
    """The builder of a worker with files."""

    def __init__(self, root: str, engine: str) -> None:
        self._root = root
        self._engine = engine
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        return self._process is not None

    def begin(self, temporary: str) -> None:
        assert self._process is None, "one at a time"
        line = {"engine": self._engine, "root": self._root, "temporary": temporary}
        self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(line) + b"\n")
        self._process.stdin.flush()  # and not closed: its end would tell that we are gone

    def poll(self) -> Built | None:
        process = self._process
        if process is None or process.poll() is None:
            return None
        self._process = None
        assert process.stdout is not None
        assert process.stdin is not None
        with process.stdout as output, process.stdin:
            answer = output.read()
        return _read_answer(answer, process.returncode)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _read_answer(answer: bytes, code: int) -> Built:
    try:
        found: dict[str, Any] = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise BuildFailed(f"the process that builds snapshots ended with {code}") from None
    if "failed" in found:
        raise BuildFailed(str(found["failed"]))
    files = tuple(SnapshotFile(name, size, checksum) for name, size, checksum in found["files"])
    return Built(found["index"], bytes.fromhex(found["membership"]), files)


# -- the process ------------------------------------------------------------------------------


class WorkerGone(Exception):
    """Nobody waits for the snapshot any more."""


def _while_wanted(batches: Iterator[list[Item]]) -> Iterator[list[Item]]:
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        for batch in batches:
            if selector.select(0):  # nothing else is ever said, so this is the end of it
                raise WorkerGone
            yield batch


def main() -> int:
    """Build one snapshot."""
    os.nice(NICE)
    asked = orjson.loads(sys.stdin.buffer.readline())
    try:
        answer = _build(asked["engine"], asked["root"], asked["temporary"])
    except WorkerGone:
        return 0
    except StorageError as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    sys.stdout.buffer.write(orjson.dumps(answer))
    return 0


def _build(engine: str, root: str, temporary: str) -> dict[str, Any]:
    shard = temporary.partition("/")[0]
    pass_point("snapshot.build.before", shard)
    reader = LmdbReader(engine)
    try:
        items = _while_wanted(reader.batches(BATCH_KEYS))
        working = working_files(root, shard)
        streams = stream_parts(working, shard, reader.blob)
        index, membership, parts = snapshot_parts(reader.blob, items, streams)
        files = write_parts(working, temporary, parts)
    finally:
        reader.close()
    pass_point("snapshot.build.after", shard)
    described = [astuple(each) for each in files]
    return {"index": index, "membership": membership.hex(), "files": described}


if __name__ == "__main__":
    sys.exit(main())
