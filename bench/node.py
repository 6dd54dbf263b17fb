"""A node against its peers, in one run: batches of keys, single puts, and how soon it is ready.

    .venv/bin/python bench/node.py [--seconds N] [--clients N] [--only WORD]

    put_many    1,000 keys a call, 2 shards, against redis-benchmark SET -P 100, appendfsync always
    get_many    the same keys, hot, against redis-benchmark GET -P 100
    puts        64 concurrent single puts against etcd's own `check perf`
    put         one put at a time, against redis-py-like round trips: only the latency
    start       `shardnode start --shards 4` until ready

Every write is on disk before it is answered, here and there. Load generators are not pinned: they
share the two cores with the servers, as redis-benchmark does. Ends with status 1 below a target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shardnode import AsyncClient, Client
from shardnode.bench import peers
from shardnode.bench.figures import Missing, Table
from shardnode.node.config_load import load_config
from shardnode.node.handle import Node

ROOT = Path(__file__).resolve().parents[1]
KEYS = 1_000_000
BATCH = 1_000
VALUE = b"v" * 100


@contextmanager
def folder() -> Iterator[Path]:
    """On the disk of the project: a temporary file system would make every fsync free."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as name:
        yield Path(name)


@contextmanager
def node(shards: int) -> Iterator[str]:
    """A real node; its address."""
    with folder() as data:
        flags: dict[str, Any] = {"shards": shards, "data": str(data), "listen": "127.0.0.1:0"}
        with Node(load_config(flags={**flags, "http": "off"})) as running:
            running.wait_ready()
            yield str(running.address)


def batches(seed: int, count: int) -> list[dict[bytes, bytes]]:
    """Random keys of 16 bytes out of a million."""
    draw = random.Random(seed)
    return [
        {b"key:%012d" % draw.randrange(KEYS): VALUE for _ in range(BATCH)} for _ in range(count)
    ]


def _load(address: str, kind: str, seed: int, seconds: float, sink: Any) -> None:
    """One load process: calls as fast as they are answered; how many keys, in how many seconds."""
    calls = batches(seed, 100)
    keys = [list(call) for call in calls]
    with Client(address) as db:
        db.put(b"warm", b"up")
        sink.send("ready")
        sink.recv()
        begin, done, turn = time.perf_counter(), 0, 0
        while time.perf_counter() - begin < seconds:
            if kind == "put":
                db.put_many(calls[turn % 100])
            else:
                db.get_many(keys[turn % 100])
            done += len(keys[turn % 100])
            turn += 1
        sink.send((done, time.perf_counter() - begin))


def measure(address: str, kind: str, clients: int, seconds: float) -> float:
    """Keys per second over all load processes, which begin together."""
    context = get_context("spawn")
    pipes = []
    for number in range(clients):
        ours, theirs = context.Pipe()
        process = context.Process(target=_load, args=(address, kind, number, seconds, theirs))
        process.start()
        pipes.append((ours, process))
    for pipe, _ in pipes:
        pipe.recv()
    for pipe, _ in pipes:
        pipe.send("go")
    rate = 0.0
    for pipe, process in pipes:
        done, took = pipe.recv()
        rate += done / took
        process.join()
    return rate


def bench_many(table: Table, clients: int, seconds: float) -> None:
    with node(2) as address:
        puts = measure(address, "put", clients, seconds)
        gets = measure(address, "get", clients, seconds)
    table.row("put_many", puts, "keys/s", clients=clients)
    table.row("get_many", gets, "keys/s", clients=clients)
    try:
        with folder() as place, peers.redis(place) as port:
            ask = {"requests": 2_000_000, "pipeline": 100, "keys": KEYS}
            sets = peers.redis_benchmark(port, "set", **ask)
            found = peers.redis_benchmark(port, "get", **ask)
    except Missing as why:
        table.skipped("put_many and get_many against Redis", why)
        return
    table.ratio("put_many against SET -P 100", puts, sets, 0.8, "redis-benchmark")
    table.ratio("get_many against GET -P 100", gets, found, 0.6, "redis-benchmark")


async def _single_puts(address: str, tasks: int, seconds: float) -> float:
    async with AsyncClient(address) as db:
        await db.put(b"warm", b"up")
        done = 0
        begin = time.perf_counter()

        async def caller(number: int) -> None:
            nonlocal done
            while time.perf_counter() - begin < seconds:
                await db.put(b"%d/%d" % (number, done), VALUE)
                done += 1

        await asyncio.gather(*(caller(number) for number in range(tasks)))
        return done / (time.perf_counter() - begin)


def bench_puts(table: Table, seconds: float) -> None:
    with node(2) as address:
        ours = asyncio.run(_single_puts(address, 64, seconds))
    table.row("64 concurrent single puts", ours, "puts/s")
    try:
        with folder() as place, peers.etcd(place) as port:
            theirs = peers.etcd_puts(port)
    except Missing as why:
        table.skipped("single puts against etcd", why)
        return
    table.ratio("64 concurrent single puts against etcd", ours, theirs, 3.0, "etcd check perf")


def bench_latency(table: Table) -> None:
    with node(1) as address, Client(address) as db:
        times = []
        for number in range(3_000):
            begin = time.perf_counter()
            db.put(b"key-%d" % number, VALUE)
            times.append(time.perf_counter() - begin)
    times.sort()
    p50, p99 = times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6
    table.row("one put at a time, p50", p50, "µs", p99=f"{p99:,.0f} µs")


def bench_start(table: Table) -> None:
    took = []
    for _ in range(5):
        with folder() as data:
            command = [sys.executable, "-P", "-m", "shardnode", "start", "--shards", "4"]
            command += ["--data", str(data / "d"), "--listen", "127.0.0.1:0", "--http", "off"]
            begin = time.perf_counter()
            process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ)
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith(b"ready:"):
                    break
            took.append(time.perf_counter() - begin)
            process.terminate()
            process.stderr.read()
            process.wait(20)
    worst = max(took)
    table.row("start --shards 4 until ready, worst of 5", worst * 1_000, "ms")
    table.failed |= worst >= 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of load for each figure")
    parser.add_argument("--clients", type=int, default=2, help="load processes for batches")
    parser.add_argument("--only", choices=["many", "puts", "put", "start"])
    words = parser.parse_args()
    table = Table()
    parts: dict[str, Callable[[], None]] = {
        "start": lambda: bench_start(table),
        "put": lambda: bench_latency(table),
        "many": lambda: bench_many(table, words.clients, words.seconds),
        "puts": lambda: bench_puts(table, words.seconds),
    }
    for name, part in parts.items():
        if words.only in (None, name):
            part()
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
