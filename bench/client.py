"""What the client library itself costs: calls against a server that does nothing but answer.

The server is a process of its own that looks only at headers, so the figures are those of the
client. Rates are per second of the client's own CPU time, and per second by the clock beside it.

    .venv/bin/python bench/client.py --seconds 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable

import zmq

from shardnode import AsyncClient, Client
from shardnode.wire.cluster import TopologyFound
from shardnode.wire.frames import Frame, build_reply, parse_request
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import initial_table
from shardnode.wire.replies import Entry, Found, SessionGranted, Written
from shardnode.wire.requests import GetMany

SHARDS = 2
BATCH = 1_000
TASKS = 1_000
VALUE = bytes(100)


def serve() -> None:
    """The null server: it answers on all ports until its standard input ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoints = []
    poller = zmq.Poller()
    for _ in range(SHARDS + 1):
        socket = context.socket(zmq.SocketType.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        endpoints.append(f"tcp://127.0.0.1:{port}")
        poller.register(socket, zmq.PollEvent.POLLIN)
    poller.register(sys.stdin, zmq.PollEvent.POLLIN)
    print(endpoints[0], flush=True)
    numbers = list(range(SHARDS))
    bodies = {
        Kind.PUT: Written(1).encode(),
        Kind.PUT_MANY: Written(1).encode(),
        Kind.GET: Entry(VALUE, 1, 0).encode(),
        Kind.SESSION_OPEN: SessionGranted(1).encode(),
        Kind.TOPOLOGY: TopologyFound(
            "null",
            initial_table(SHARDS).encode(),
            [1] * SHARDS,
            [1],
            endpoints[:1],
            numbers,
            [1] * SHARDS,
            endpoints[1:],
        ).encode(),
    }
    found: dict[int, bytes] = {}
    while True:
        for source, _ in poller.poll():
            if not isinstance(source, zmq.Socket):
                return
            identity, *frames = source.recv_multipart()
            source.send_multipart([identity, *answer(frames, bodies, found)])


def answer(frames: list[bytes], bodies: dict[Kind, bytes], found: dict[int, bytes]) -> list[Frame]:
    """The reply to anything."""
    request = parse_request(frames)
    kind = Kind(request.header.kind)
    if kind is Kind.GET_MANY:
        count = len(GetMany.decode(request.body).keys)
        if count not in found:
            found[count] = Found([VALUE] * count).encode()
        body = found[count]
    else:
        body = bodies[kind]
    return build_reply(request.return_address(), body, shard=request.prefix)


def measure(name: str, keys_per_call: int, call: Callable[[], object], seconds: float) -> None:
    """Repeat a call and print its rates."""
    for _ in range(20):
        call()
    calls, latencies = 0, []
    cpu, start = time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        call()
        latencies.append(time.perf_counter() - now)
        calls += 1
    cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    latencies.sort()
    report(name, calls * keys_per_call, cpu, wall)
    print(f"{'':>24}  p50 {latencies[calls // 2] * 1e6:8.0f} us")


def report(name: str, keys: int, cpu: float, wall: float) -> None:
    print(f"{name:>24}  {keys / cpu:10,.0f} keys per CPU second  {keys / wall:10,.0f} keys/s")


async def concurrently(address: str, seconds: float) -> None:
    """Many tasks, each of which awaits one key at a time."""
    async with AsyncClient(address) as db:
        keys = [os.urandom(16) for _ in range(100_000)]
        await db.put(b"first", VALUE)
        for name in ("put", "get"):
            done = 0
            end = time.perf_counter() + seconds

            async def work(number: int, name: str = name, end: float = end) -> int:
                count = 0
                while time.perf_counter() < end:
                    key = keys[(number * 977 + count * TASKS) % len(keys)]
                    if name == "put":
                        await db.put(key, VALUE)
                    else:
                        await db.get(key)
                    count += 1
                return count

            cpu, start = time.process_time(), time.perf_counter()
            done = sum(await asyncio.gather(*(work(number) for number in range(TASKS))))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - start
            report(f"await {name}, {TASKS} tasks", done, cpu, wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    with subprocess.Popen(
        [sys.executable, "-P", __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            run(address, options.seconds)
        finally:
            server.stdin.close()


def run(address: str, seconds: float) -> None:
    keys = [os.urandom(16) for _ in range(BATCH)]
    pairs = dict.fromkeys(keys, VALUE)
    with Client(address) as db:
        measure("put", 1, lambda: db.put(keys[0], VALUE), seconds)
        measure("get", 1, lambda: db.get(keys[0]), seconds)
        measure(f"put_many of {BATCH}", BATCH, lambda: db.put_many(pairs), seconds)
        measure(f"get_many of {BATCH}", BATCH, lambda: db.get_many(keys), seconds)
    asyncio.run(concurrently(address, seconds))


if __name__ == "__main__":
    main()
