"""Peers to measure against, each started on a folder and a port of its own, with fsync on.

The one rule: a peer is given what its manual recommends for durable writes and its own load
generator, and its figure is taken in the same run as ours. One that is not installed is skipped
by name.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from shardnode.bench.figures import Missing


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require(program: str, package: str) -> str:
    """The path of a program, or `Missing` with the package that has it."""
    found = shutil.which(program)
    if found is None:
        raise Missing(f"{program} is not installed (Debian package {package})")
    return found


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until somebody answers there."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise Missing(f"{process.args!r} does not listen on {port}")


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[int]:
    """A server, until the end of the block."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            await_port(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def redis(folder: Path, *, save: bool = True, rewrites: bool = True) -> Iterator[int]:
    """Redis with an append-only file that is synced before every answer."""
    server, port = require("redis-server", "redis-server"), free_port()
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes" if save else "no", "--appendfsync", "always"]
    if not rewrites:
        command += ["--auto-aof-rewrite-percentage", "0"]
    with running(command, port, folder):
        yield port


def redis_benchmark(port: int, test: str, *, requests: int, pipeline: int, keys: int) -> float:
    """Requests per second by Redis' own generator, 50 clients, values of 100 bytes."""
    tool = require("redis-benchmark", "redis-tools")
    command = [tool, "-p", str(port), "-t", test, "-n", str(requests), "-P", str(pipeline)]
    return _rps([*command, "-r", str(keys), "-d", "100", "-c", "50", "--csv"])


def redis_benchmark_command(port: int, words: list[str], *, requests: int, pipeline: int) -> float:
    """The same for a command of one's own."""
    tool = require("redis-benchmark", "redis-tools")
    command = [tool, "-p", str(port), "-n", str(requests), "-P", str(pipeline), "-c", "50"]
    return _rps([*command, "--csv", *words])


def _rps(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    return float(rows[0]["rps"])


@contextmanager
def etcd(folder: Path) -> Iterator[int]:
    """One etcd member."""
    server, port, peer = require("etcd", "etcd-server"), free_port(), free_port()
    command = [server, "--data-dir", str(folder / "etcd"), "--log-level", "error"]
    command += ["--listen-client-urls", f"http://127.0.0.1:{port}"]
    command += ["--advertise-client-urls", f"http://127.0.0.1:{port}"]
    command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
    with running(command, port, folder):
        yield port


@contextmanager
def etcd_cluster(folder: Path, members: int = 3) -> Iterator[list[int]]:
    """Several etcd members that replicate; the ports for clients."""
    server = require("etcd", "etcd-server")
    ports = [(free_port(), free_port()) for _ in range(members)]
    everyone = ",".join(f"m{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports))
    with ExitStack() as stack:
        processes = []
        for number, (port, peer) in enumerate(ports):
            command = [server, "--name", f"m{number}", "--log-level", "error"]
            command += ["--data-dir", str(folder / f"m{number}"), "--initial-cluster", everyone]
            command += ["--listen-client-urls", f"http://127.0.0.1:{port}"]
            command += ["--advertise-client-urls", f"http://127.0.0.1:{port}"]
            command += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
            command += ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
            log = stack.enter_context((folder / f"log{number}").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            stack.callback(_end, process)
            processes.append((port, process))
        for port, process in processes:
            await_port(port, process)
        time.sleep(1.5)  # it listens before it has a leader
        yield [port for port, _ in ports]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def etcd_puts(port: int) -> float:
    """Puts per second by etcd's own `check perf`, large enough to reach its limit."""
    tool = require("etcdctl", "etcd-client")
    command = [tool, "--endpoints", f"127.0.0.1:{port}", "check", "perf", "--load", "xl"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"ETCDCTL_API": "3"}
    )
    for line in (done.stdout + done.stderr).splitlines():
        words = line.split()
        for word, following in pairwise(words):
            if following.startswith("writes/s"):
                return float(word)
    raise Missing(f"etcdctl check perf printed no figure: {json.dumps(done.stdout[-300:])}")
