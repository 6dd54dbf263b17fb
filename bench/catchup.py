"""A member that missed a gigabyte: brought up by a snapshot, interrupted again and again.

    .venv/bin/python bench/catchup.py [--megabytes 1024] [--interruptions 5]

Three nodes with one shard. The third is stopped, the others take the data, and cut their log once
it has been away for a minute; then it comes back, and is killed (SIGKILL) each time it has received
another part of the snapshot. At the end all three must hold the same state, and little may have
moved twice. Others write all the while, one batch at a time. Ends with status 1 when more than 1.3
times the data has moved.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from shardnode import ShardnodeError
from shardnode.shard.replica import FETCH_PATIENCE_MS
from shardnode.testing.cluster import Cluster
from shardnode.testing.cluster_node import ClusterNode

ROOT = Path(__file__).resolve().parents[1]
VALUE_BYTES = 1_000
BATCH = 1_000
MOVED_MAX = 1.3


def metric(node: ClusterNode, name: str) -> int:
    """The sum of a counter over the shards of a node; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=2) as answer:
            text = answer.read().decode()
    except OSError:
        return 0
    found = re.findall(rf"^shardnode_\w*{name}(?:_total)?\{{[^}}]*\}} (\S+)$", text, re.M)
    return int(sum(map(float, found)))


def load(cluster: Cluster, megabytes: int) -> None:
    value = bytes(VALUE_BYTES - 24)
    with cluster.client(timeout=30) as client:
        for first in range(0, megabytes * 1_000, BATCH):
            stamp = b"%024d" % first
            client.put_many({b"key-%012d" % n: stamp + value for n in range(first, first + BATCH)})


def write_on(cluster: Cluster, stop: threading.Event, done: list[float]) -> None:
    """One small batch after another; how long the slowest took."""
    with cluster.client(timeout=10) as client:
        number = 0
        while not stop.is_set():
            begun = time.monotonic()
            client.put_many({b"side-%03d" % n: b"%d" % number for n in range(100)})
            done.append(time.monotonic() - begun)
            number += 1
            time.sleep(0.02)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_024)
    parser.add_argument("--interruptions", type=int, default=5)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder,
        Cluster(3, 1, folder, proxied=False) as cluster,
    ):
        nodes = cluster.nodes
        for node in nodes.values():
            host, _, port = node.address.rpartition(":")
            node.http = f"{host}:{int(port) + 80}"
            node.stop()
            node.launch()
        for node in nodes.values():
            node.wait_ready()
        behind = nodes[3]
        cluster.wait_writable()
        behind.stop()
        begun = time.monotonic()
        load(cluster, args.megabytes)
        print(f"loaded {args.megabytes} MB in {time.monotonic() - begun:.1f} s", flush=True)
        # For a member that was there a moment ago the log is kept: this one stays away for longer.
        time.sleep(max(0.0, begun + FETCH_PATIENCE_MS / 1_000 + 2 - time.monotonic()))
        while not (shard := nodes[cluster.leader(0)].shard(0)).truncation_index:
            load(cluster, 50)
        print(f"the log begins after {shard.truncation_index} of {shard.applied_index}")
        stop, took = threading.Event(), list[float]()
        writer = threading.Thread(target=write_on, args=(cluster, stop, took), daemon=True)
        writer.start()
        begun = time.monotonic()
        interrupted = interrupt(cluster, behind, shard.applied_index, args)
        cluster.wait_until(lambda: has_it(behind, shard.applied_index), "all of it", 120)
        stop.set()
        writer.join()
        digests = cluster.digests(120)[0]
        seconds = time.monotonic() - begun
        moved = sum(metric(nodes[n], "snapshot_bytes_out") for n in (1, 2))
    size = args.megabytes * 1_000_000
    equal = len({each.digest for each in digests.values()}) == 1
    print(
        f"caught up after {seconds:.1f} s and {interrupted} interruptions; moved"
        f" {moved / size:.3f} times the data (at most {MOVED_MAX}); states equal: {equal}; other"
        f" writers' slowest batch {max(took) * 1_000:.0f} ms of {len(took)}"
    )
    enough = interrupted == args.interruptions and size * 0.5 < moved <= MOVED_MAX * size
    return int(not (equal and enough))


def has_it(node: ClusterNode, index: int) -> bool:
    """Whether a node has caught up."""
    try:
        return node.shard(0).applied_index >= index
    except ShardnodeError:
        return False


def interrupt(cluster: Cluster, behind: ClusterNode, index: int, args: argparse.Namespace) -> int:
    """Kill the member each time it has received another part; how often that was possible."""
    # Counters are told about once a second: more arrives before it is seen.
    part = args.megabytes * 1_000_000 // (6 * args.interruptions)
    for number in range(args.interruptions):
        behind.launch()
        cluster.wait_until(
            lambda: metric(behind, "snapshot_bytes_in") >= part or has_it(behind, index),
            "a part of the snapshot",
            120,
        )
        got = metric(behind, "snapshot_bytes_in")
        if has_it(behind, index):
            return number
        behind.kill()
        print(f"interrupted {number + 1}: {got / 1e6:.0f} MB in this run", flush=True)
    behind.launch()
    return int(args.interruptions)


if __name__ == "__main__":
    sys.exit(main())
