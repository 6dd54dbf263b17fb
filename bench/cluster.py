"""Three nodes against three etcd members, in one run, all on this machine.

    .venv/bin/python bench/cluster.py [--seconds N]

    put_many    1,000 keys a call, 2 shards, 3 nodes, against etcd's own `check perf` with 3 members
    put         one put at a time: the median with three nodes against that with one
    idle        what three nodes with 4 shards each use when nobody asks anything

Every write is on the disks of a majority before it is answered, here and there. Load generators are
not pinned: they share the cores with the servers. Ends with status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path

from shardnode import Client
from shardnode.bench import peers
from shardnode.bench.figures import Missing, Table
from shardnode.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
BATCH = 1_000
VALUE = b"v" * 100
IDLE_MAX = 3.0


@contextmanager
def folder() -> Iterator[str]:
    """On the disk of the project: a temporary file system would make every fsync free."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as name:
        yield name


def put_many_rate(addresses: list[str], seconds: float, number: int) -> float:
    """Keys per second of one process with four threads."""
    done = [0] * 4

    def work(thread: int) -> None:
        begun = 0
        while time.monotonic() < until:
            first = (number * 4 + thread) * 1_000_000 + begun % 200 * BATCH
            client.put_many({b"key-%012d" % n: VALUE for n in range(first, first + BATCH)})
            done[thread] += BATCH
            begun += 1

    with Client(addresses, timeout=30) as client:
        client.put(b"warm", b"up")
        started = time.monotonic()
        until = started + seconds
        threads = [threading.Thread(target=work, args=(each,)) for each in range(len(done))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done) / (time.monotonic() - started)


def put_medians_us(clusters: Sequence[Cluster], seconds: float) -> list[float]:
    """One put after the other, each cluster in turn for half a second: what disturbs the machine
    disturbs all of them."""
    took: list[list[float]] = [[] for _ in clusters]
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(c.addresses, timeout=30)) for c in clusters]
        for client in clients:
            client.put(b"warm", b"up")
        for _ in range(max(1, round(2 * seconds))):
            for client, times in zip(clients, took, strict=True):
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    begun = time.perf_counter()
                    client.put(b"key-%d" % len(times), VALUE)
                    times.append(time.perf_counter() - begun)
    return [statistics.median(times) * 1e6 for times in took]


def idle_percent(cluster: Cluster, seconds: float) -> list[float]:
    """CPU of each node, of one core."""
    families = {node.id: node.processes() for node in cluster.nodes.values()}

    def used() -> dict[int, float]:
        return {n: sum(sum(p.cpu_times()[:2]) for p in each) for n, each in families.items()}

    before = used()
    time.sleep(seconds)
    after = used()
    return [(after[n] - before[n]) / seconds * 100 for n in families]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    table = Table()
    with (
        folder() as data,
        Cluster(3, 2, data, proxied=False) as cluster,
        get_context("spawn").Pool(2) as pool,
    ):
        jobs = [(cluster.addresses, seconds, number) for number in range(2)]
        keys = sum(pool.starmap(put_many_rate, jobs))
    with ExitStack() as stack:
        both = [
            stack.enter_context(Cluster(n, 2, stack.enter_context(folder()), proxied=False))
            for n in (1, 3)
        ]
        one_us, three_us = put_medians_us(both, seconds)
    try:
        with folder() as data, peers.etcd_cluster(Path(data)) as ports:
            puts = peers.etcd_puts(ports[0])
        table.ratio("put_many, 3 nodes", keys, puts, 10.0, "3 etcd members")
    except Missing as missing:
        table.skipped("put_many", missing)
        table.row("put_many, 3 nodes", keys, "keys/s")
    table.row("put p50, 3 nodes", three_us, "us", one_node=f"{one_us:,.0f} us")
    judge(table, "put p50 of 3 nodes over 1", three_us / one_us, 2.0)
    with folder() as data, Cluster(3, 4, data, proxied=False) as cluster:
        time.sleep(8)  # leaders have found their places
        idle = idle_percent(cluster, 15)
    judge(table, "idle, busiest of 3 nodes with 4 shards, % of a core", max(idle), IDLE_MAX)
    return int(table.failed)


def judge(table: Table, what: str, found: float, most: float) -> None:
    """A figure that must stay below a limit."""
    table.failed |= found >= most
    print(f"{what}: {found:.2f} (below {most}) {'ok' if found < most else 'ABOVE'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
