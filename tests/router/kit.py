"""Settings, requests and a real router process with workers that are sockets of the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from shardnode.router.settings import RouterSettings
from shardnode.wire.frames import PLACE_FOR_ME, Frame, Reply, build_request, parse_reply
from shardnode.wire.kinds import Kind

TIMEOUT_MS = 10_000


def settings(shards: int = 4, local: range | None = None) -> RouterSettings:
    here = local or range(shards)
    return RouterSettings(
        listen="tcp://127.0.0.1:7400",
        node=1,
        cluster="main",
        shards=shards,
        workers={shard: f"ipc://nowhere/s{shard}" for shard in here},
        direct={shard: f"tcp://127.0.0.1:{7500 + shard}" for shard in here},
    )


def put(
    key: bytes = b"user:1", prefix: int | None = PLACE_FOR_ME, body: bytes = b"x", **header: Any
) -> list[Frame]:
    return build_request(Kind.PUT, body, prefix=prefix, routing_key=key, **header)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RouterProcess:
    """A router, its workers' sockets and one client; everything goes with `close`."""

    def __init__(self, shards: int = 2, listen: str = "") -> None:
        # Not pytest's own folder: the path of a socket has at most 107 bytes.
        self.folder = tempfile.TemporaryDirectory(prefix="sn-")
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.listen = listen or f"tcp://127.0.0.1:{free_port()}"
        self.addresses = {s: f"ipc://{Path(self.folder.name)}/s{s}" for s in range(shards)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardnode.router"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.workers: dict[int, zmq.Socket[bytes]] = {}
        self.tell(
            {
                "listen": self.listen,
                "node": 1,
                "cluster": "main",
                "shards": shards,
                "workers": self.addresses,
                "direct": {s: f"tcp://127.0.0.1:{7500 + s}" for s in range(shards)},
            }
        )
        self.client = self.connect()

    def tell(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def counters_until(self, name: str, least: int) -> dict[str, Any]:
        """The counters, as soon as one of them has grown so far."""
        give_up_at = time.monotonic() + TIMEOUT_MS / 1_000
        while (counters := self.hear()["counters"])[name] < least:
            assert time.monotonic() < give_up_at, counters
        return dict(counters)

    def connect(self, **options: int) -> zmq.Socket[bytes]:
        client = self.context.socket(zmq.DEALER)
        client.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            client.setsockopt(getattr(zmq, name), value)
        client.connect(self.listen)
        return client

    def start_worker(self, shard: int) -> zmq.Socket[bytes]:
        """Binds a worker's socket and waits until the router has found it."""
        worker = self.context.socket(zmq.ROUTER)
        worker.setsockopt(zmq.LINGER, 0)
        worker.setsockopt(zmq.RCVHWM, 0)
        worker.setsockopt(zmq.SNDHWM, 0)
        worker.bind(self.addresses[shard])
        self.workers[shard] = worker
        while shard not in self.hear()["reached"]:
            pass
        return worker

    def stop_worker(self, shard: int) -> None:
        self.workers.pop(shard).close(linger=0)

    def ask(self, frames: list[Frame]) -> Reply:
        self.client.send_multipart(frames)
        return self.answer()

    def answer(self) -> Reply:
        assert self.client.poll(TIMEOUT_MS), "no reply came"
        return parse_reply(self.client.recv_multipart())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        self.context.destroy(linger=0)
        self.folder.cleanup()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def running_router(shards: int = 2) -> Iterator[RouterProcess]:
    router = RouterProcess(shards)
    try:
        yield router
    finally:
        router.close()


def take(worker: zmq.Socket[bytes]) -> list[bytes]:
    """The next message of a worker: [router, envelope, request frames]."""
    assert worker.poll(TIMEOUT_MS), "nothing was forwarded"
    return worker.recv_multipart()
