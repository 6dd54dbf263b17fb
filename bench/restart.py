"""How soon a node serves again after `kill -9`, against Redis and its append-only file, in one run.

    .venv/bin/python bench/restart.py [--keys 5000000] [--shards 2]

    serving     from the start of the process until a key of every shard was read, less what an
                empty start takes; Redis: until it answers PING, less its own empty start
    redo        what each shard applied again from its log: it must be bounded

The load is killed with the node, in the middle of writing: that is when most is to be redone. Redis
is measured twice, with the file as it was appended and after it was rewritten (a dump and a short
tail, which loads faster); the target is judged by the faster one. Ends with status 1 below it.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path

from shardnode import Client, ShardnodeError, Unavailable
from shardnode.bench import peers
from shardnode.bench.figures import Missing, Table
from shardnode.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
BATCH = 1_000
VALUE = b"v" * 100
SET = b"*3\r\n$3\r\nSET\r\n$16\r\n%b\r\n$100\r\n%b\r\n"
TARGET = 10.0
REDO_MAX = 64 << 20


@contextmanager
def folder() -> Iterator[str]:
    """On the disk of the project: a temporary file system would make every fsync free."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as name:
        yield name


def key(number: int) -> bytes:
    return b"key:%012d" % (number * 7_368_787 % 1_000_000_000_000)


def fill(address: str, first: int, last: int) -> None:
    """Write keys, some calls at a time."""
    with Client(address, timeout=60) as db:
        for begin in range(first, last, BATCH):
            db.put_many({key(n): VALUE for n in range(begin, min(last, begin + BATCH))})


def keep_writing(address: str) -> None:
    """Until the node is gone."""
    number = 0
    with suppress(ShardnodeError), Client(address, timeout=5) as db:
        while True:
            db.put_many({key(n): VALUE for n in range(number, number + BATCH)})
            number = (number + BATCH) % 1_000_000


def in_two(work: Callable[..., None], *rows: tuple[object, ...]) -> None:
    """Two processes, to their end."""
    with get_context("spawn").Pool(2) as pool:
        pool.starmap(work, rows)


def started(cluster: Cluster, probes: list[bytes]) -> float:
    """Seconds from the start of a node until every shard answers a read."""
    begun = time.perf_counter()
    cluster.nodes[1].launch()
    while True:
        with suppress(Unavailable), Client(cluster.addresses, timeout=120) as db:
            for each in probes:
                db.get(each)
            return time.perf_counter() - begun
        time.sleep(0.005)


def redone(address: str, shards: int) -> list[int]:
    """Bytes that each shard applied again, as the node's metrics tell."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
            found = [line for line in lines if "redone_bytes{" in line]
            if len(found) == shards:
                return [int(float(line.rsplit(" ", 1)[1])) for line in found]
        time.sleep(0.2)
    raise TimeoutError("the metrics of the node name no redone bytes")


def ours(keys: int, shards: int, table: Table) -> float:
    """Seconds until it serves again, less an empty start."""
    with folder() as data, Cluster(1, shards, data, proxied=False) as cluster:
        node, address = cluster.nodes[1], cluster.addresses[0]
        with Client(address) as db:
            places = {db.explain(key(n)).shard: key(n) for n in range(100)}
        assert len(places) == shards
        probes = list(places.values())
        empties = []
        for _ in range(4):
            node.stop()
            empties.append(started(cluster, probes))
        empty = min(empties)
        in_two(fill, (address, 0, keys // 2), (address, keys // 2, keys))
        writers = [
            get_context("spawn").Process(target=keep_writing, args=(address,)) for _ in range(2)
        ]
        for writer in writers:
            writer.start()
        time.sleep(4)
        node.erase()
        for writer in writers:
            writer.join(30)
        node.http = f"127.0.0.1:{peers.free_port()}"
        took = started(cluster, probes)
        redo = redone(node.http, shards)
        with Client(address, timeout=60) as db:
            sample = [key(n) for n in range(0, keys, max(1, keys // 1_000))]
            assert all(value == VALUE for value in db.get_many(sample)), "a key is missing"
    table.row("ours, empty start", empty * 1e3, "ms")
    table.row(
        f"ours, {keys:,} keys", took * 1e3, "ms", less_empty=f"{(took - empty) * 1e3:,.0f} ms"
    )
    table.failed |= max(redo) > REDO_MAX
    verdict = "ok" if max(redo) <= REDO_MAX else "ABOVE"
    print(f"redo, worst shard: {max(redo) / (1 << 20):.1f} MiB (at most 64) {verdict}", flush=True)
    return max(took - empty, 0.02)  # below, a start is not the same twice


def redis_started(place: Path) -> float:
    """Seconds from the start of Redis on this folder until it answers PING."""
    begun = time.perf_counter()
    with peers.redis(place) as port, socket.create_connection(("127.0.0.1", port)) as talk:
        while True:
            talk.sendall(b"PING\r\n")
            if talk.recv(1000).startswith(b"+PONG"):
                return time.perf_counter() - begun
            time.sleep(0.002)


def redis_fill(port: int, keys: int) -> None:
    """The same keys, by the protocol for mass insertion."""
    with socket.create_connection(("127.0.0.1", port)) as talk:
        reader = talk.makefile("rb")
        for begin in range(0, keys, BATCH):
            many = [key(n) for n in range(begin, min(keys, begin + BATCH))]
            talk.sendall(
                b"".join(
                    b"*3\r\n$3\r\nSET\r\n$16\r\n%b\r\n$100\r\n%b\r\n" % (k, VALUE) for k in many
                )
            )
            for _ in many:
                reader.readline()


def rewrite(port: int) -> None:
    """Let Redis rewrite its file, and wait until it has."""
    with socket.create_connection(("127.0.0.1", port)) as talk:
        talk.sendall(b"BGREWRITEAOF\r\n")
        talk.recv(1000)
        while True:
            time.sleep(0.2)
            talk.sendall(b"INFO persistence\r\n")
            told = talk.recv(65536)
            if b"aof_rewrite_in_progress:0" in told and b"aof_rewrite_scheduled:0" in told:
                return


def redis(keys: int, table: Table) -> float:
    """Seconds until Redis serves again, less its empty start: the faster of two kinds of file."""
    with folder() as data:
        place = Path(data)
        empty = min(redis_started(place) for _ in range(3))
        with peers.redis(place, rewrites=False) as port:
            redis_fill(port, keys)
        appended = redis_started(place) - empty
        with peers.redis(place, rewrites=False) as port:
            wait_loaded(port)
            rewrite(port)
        rewritten = redis_started(place) - empty
    table.row("Redis, file as appended", appended * 1e3, "ms less an empty start")
    table.row("Redis, file rewritten", rewritten * 1e3, "ms less an empty start")
    return min(appended, rewritten)


def wait_loaded(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as talk:
        while True:
            talk.sendall(b"PING\r\n")
            if talk.recv(1000).startswith(b"+PONG"):
                return
            time.sleep(0.01)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--shards", type=int, default=2)
    args = parser.parse_args()
    table = Table()
    took = ours(args.keys, args.shards, table)
    try:
        peer = redis(args.keys, table)
    except Missing as missing:
        table.skipped("the comparison with Redis", missing)
    else:
        # As rates, so that more is better.
        table.ratio("restarts", 1 / took, 1 / peer, TARGET, "Redis")
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main())
