"""A real worker process, started as the supervisor does, and a raw client beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import zmq

from shardnode.shard.settings import WorkerSettings
from shardnode.wire.codec import Answer, Body
from shardnode.wire.frames import build_request, parse_reply
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import decode_reply

PATIENCE_MS = 20_000


class WorkerProcess:
    """One worker on its own directory; `start` may be called again after it has ended."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        ipc = f"ipc://{folder}/s"
        self.settings = WorkerSettings(
            cluster_id=1,
            cluster="main",
            node=1,
            shard=0,
            shards=1,
            directory=str(folder / "shard-0"),
            direct=f"ipc://{folder}/d",
            ipc=ipc,
            siblings={0: ipc},
            **settings,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None

    @property
    def up(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def start(self) -> dict[str, Any]:
        """Start it and wait until it serves or is fenced; the line that says so."""
        command = [sys.executable, "-P", "-m", "shardnode.shard"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        self.process.stdin.write(self.settings.encode() + b"\n")
        self.process.stdin.flush()
        return self.await_state("serving", "fenced")

    def await_state(self, *states: str) -> dict[str, Any]:
        assert self.up.stdout is not None
        for line in self.up.stdout:
            found: dict[str, Any] = orjson.loads(line)
            if found["state"] in states:
                return found
        raise AssertionError(f"it ended with {self.up.wait()} before {states}")

    def ask(self, kind: Kind, body: Body, **header: Any) -> Answer:
        if self._socket is None:
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.connect(self.settings.direct)
        self._socket.send_multipart(build_request(kind, body.encode(), prefix=0, **header))
        assert self._socket.poll(PATIENCE_MS), "no answer"
        return decode_reply(parse_reply(self._socket.recv_multipart()))

    def kill(self) -> None:
        """SIGKILL, by its own handle; the connection goes with it."""
        self.up.kill()
        self.wait()

    def wait(self) -> int:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        code = self.up.wait(20)
        for pipe in (self.up.stdin, self.up.stdout):
            assert pipe is not None
            pipe.close()
        return code

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._context.destroy(linger=0)


@contextmanager
def worker(**settings: Any) -> Iterator[WorkerProcess]:
    """In a short folder: the path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="sn-", dir=os.environ.get("XDG_RUNTIME_DIR")) as name:
        process = WorkerProcess(Path(name), **settings)
        try:
            yield process
        finally:
            process.close()
