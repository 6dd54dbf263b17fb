"""A writer whose every acknowledged write is remembered, and backups through the real command."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from shardnode import Client
from tests.cli.kit import Running, run
from tests.system.kit import started

Rows = dict[bytes, tuple[bytes, int]]


class Write(NamedTuple):
    """One key of an acknowledged write."""

    shard: int
    version: int
    key: bytes
    value: bytes


class Writer(threading.Thread):
    """One writer: the order of its writes is the order of everything."""

    def __init__(
        self,
        addresses: Sequence[str] | str,
        *,
        batch: int = 20,
        size: int = 200,
        keys: int = 2_000,
        pause_s: float = 0.002,
    ) -> None:
        super().__init__(daemon=True)
        self.writes: list[Write] = []
        self._addresses = addresses
        self._batch = batch
        self._size = size
        self._keys = keys
        self._pause_s = pause_s
        self._draw = random.Random(1)
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self) -> None:
        try:
            with Client(self._addresses, timeout=30) as db:
                while not self._stopping.wait(self._pause_s):
                    self.step(db)
        except BaseException as error:
            self._error = error

    def step(self, db: Client) -> None:
        """One batch."""
        table = db.topology().table
        keys = {b"key-%d" % self._draw.randrange(self._keys) for _ in range(self._batch)}
        pairs = {key: self._draw.randbytes(self._size) for key in keys}
        versions = db.put_many(pairs)
        for (key, value), version in zip(pairs.items(), versions, strict=True):
            self.writes.append(Write(table.shard_of_key(key), version, key, value))

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()
        if self._error is not None:
            raise AssertionError("the writer failed") from self._error

    def acknowledged(self) -> dict[int, int]:
        """Shard → the highest version that has been acknowledged."""
        found: dict[int, int] = {}
        for write in list(self.writes):
            found[write.shard] = max(found.get(write.shard, 0), write.version)
        return found

    def rows_at(self, cut: Mapping[int, int]) -> Rows:
        """What a scan shows when each shard is as of its index."""
        rows: Rows = {}
        for write in self.writes:
            if write.version <= cut[write.shard]:
                rows[write.key] = (write.value, write.version)
        return rows


def rows_of(address: str) -> Rows:
    with Client(address, timeout=30) as db:
        return {entry.key: (entry.value, entry.version) for entry in db.scan()}


def backup(address: str, destination: Path, *words: str) -> dict[str, Any]:
    """A backup by the command; what it said."""
    done = run("backup", str(destination), "--json", "--connect", address, *words)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cut_of(told: Mapping[str, Any]) -> dict[int, int]:
    return {shard["id"]: shard["index"] for shard in told["shards"]}


def restore(destination: Path, data: Path, *words: str) -> dict[int, int]:
    """A restore by the command; shard → index."""
    done = run("restore", str(destination), "--data", str(data), "--json", *words)
    assert done.returncode == 0, done.stderr.decode()
    return cut_of(json.loads(done.stdout))


def rows_restored(destination: Path, data: Path, shards: int, *words: str) -> Rows:
    """What a node shows that is started on a restore."""
    restore(destination, data, *words)
    with started(data, "--shards", str(shards)) as node:
        return rows_of(node.address)


class SlowBackup:
    """A backup that takes a while, so that something can happen meanwhile."""

    def __init__(self, address: str, destination: Path, rate: str) -> None:
        self.destination = destination
        words = ("--json", "--connect", address, "--rate", rate)
        self._running = Running("backup", str(destination), *words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__()

    def copied(self) -> int:
        """Bytes that are in the destination so far."""
        return sum(path.stat().st_size for path in self.destination.rglob("*") if path.is_file())

    @property
    def is_running(self) -> bool:
        return self._running.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self._running.process.kill()
        self._running.end()

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Exit code, and what it said."""
        code = self._running.end()
        said = self._running.out if code == 0 else self._running.err
        return code, json.loads(said)
