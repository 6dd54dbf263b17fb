"""A real node, started as users start it, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from shardnode import Client


def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
    return value


class NodeProcess:
    """`shardnode start` on a directory."""

    def __init__(self, data: Path, *words: str) -> None:
        command = [sys.executable, "-P", "-m", "shardnode", "start", "--data", str(data)]
        command += ["--listen", "127.0.0.1:0", *words]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("SHARDNODE_")}
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environ
        )
        self.said: list[str] = []
        self.address = ""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode().rstrip()
            self.said.append(line)
            if line.startswith("ready: "):
                self.address = line.rpartition(" on ")[2]
            if "  stop " in line:
                break
        self.ready_s = time.monotonic() - self.begun

    def family(self) -> list[psutil.Process]:
        """The supervisor and everything it started, as handles that survive the reuse of ids."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def shards(self) -> list[Any]:
        with Client(self.address) as db:
            return list(db.status().shards)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(20)
        assert self.process.stderr is not None
        self.said += self.process.stderr.read().decode().splitlines()
        self.process.stderr.close()
        return code


@contextmanager
def started(data: Path, *words: str) -> Iterator[NodeProcess]:
    """A node that serves, and is gone afterwards whatever happened."""
    node = NodeProcess(data, *words)
    try:
        assert node.address, "\n".join(node.said)
        yield node
    finally:
        family = node.family() if node.process.poll() is None else []
        node.stop()
        _, left = psutil.wait_procs(family, timeout=10)
        for process in left:
            process.kill()
        assert not left, "processes were left behind"


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sn-") as name:
        yield Path(name)
