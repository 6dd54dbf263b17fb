"""Ten minutes of steady writing: disk and memory stay flat.

    .venv/bin/python bench/steady.py [--minutes 10] [--rate 50000] [--shards 2] [--nodes 1]

Random keys out of half a million are overwritten at a steady rate. Every few seconds the size of
the data directory, of the logs in it, and the memory of the workers (their own pages, and what they
share with nobody: USS) are noted. After a warm-up of a fifth of the time, the mean of the last
third must be within 10 % of that of the first third. Ends with status 1 when it is not.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from shardnode import Client
from shardnode.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
KEYS = 500_000
BATCH = 1_000
MARGIN = 0.10


class Writer(threading.Thread):
    """Writes at a steady rate until told to stop."""

    def __init__(self, addresses: list[str], rate: int) -> None:
        super().__init__()
        self.written = 0
        self.late = 0
        self.stopping = threading.Event()
        self._addresses, self._rate = addresses, rate

    def run(self) -> None:
        draw = random.Random(1)
        begun = time.monotonic()
        with Client(self._addresses, timeout=60) as db:
            while not self.stopping.is_set():
                value = draw.randbytes(100)
                db.put_many({b"key:%012d" % draw.randrange(KEYS): value for _ in range(BATCH)})
                self.written += BATCH
                ahead = begun + self.written / self._rate - time.monotonic()
                self.late += ahead < -1
                self.stopping.wait(max(0.0, ahead))


def disk_bytes(folder: Path) -> tuple[int, int]:
    """(all, the logs) as they take room on the disk."""
    total = logs = 0
    for path in folder.rglob("*"):
        try:
            size = path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            continue  # truncated meanwhile
        total += size
        logs += size if path.suffix == ".seg" else 0
    return total, logs


def memory_bytes(cluster: Cluster) -> int:
    """USS of all workers."""
    total = 0
    for node in cluster.nodes.values():
        for process in node.processes():
            if "shard " in process.cmdline()[0]:
                try:
                    total += process.memory_full_info().uss
                except psutil.NoSuchProcess:
                    continue
    return total


def judge(what: str, samples: list[int]) -> bool:
    """Whether the last third is like the first."""
    third = len(samples) // 3
    first, last = statistics.mean(samples[:third]), statistics.mean(samples[-third:])
    flat = abs(last - first) <= MARGIN * first
    mib = 1 << 20
    print(
        f"{what}: first third {first / mib:,.0f} MiB, last third {last / mib:,.0f} MiB,"
        f" least {min(samples) / mib:,.0f}, most {max(samples) / mib:,.0f}:"
        f" {(last / first - 1) * 100:+.1f} % (within 10 %) {'ok' if flat else 'NOT FLAT'}",
        flush=True,
    )
    return flat


def main() -> int:
    """Load, look, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=50_000, help="keys per second")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=1)
    args = parser.parse_args()
    samples: list[tuple[int, int, int]] = []
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as data,
        Cluster(args.nodes, args.shards, data, proxied=False) as cluster,
    ):
        writer = Writer(cluster.addresses, args.rate)
        writer.start()
        try:
            time.sleep(args.minutes * 60 / 5)
            until = time.monotonic() + args.minutes * 60 * 4 / 5
            while time.monotonic() < until and writer.is_alive():
                samples.append((*disk_bytes(Path(data)), memory_bytes(cluster)))
                time.sleep(2)
        finally:
            alive = writer.is_alive()
            writer.stopping.set()
            writer.join()
        marks = [shard.truncation_index for shard in cluster.status(1).shards]
    print(f"{writer.written:,} keys written, {writer.late} times late; logs begin after {marks}")
    disks, logs, memory = zip(*samples, strict=True)
    flat = [judge("disk", list(disks)), judge("memory", list(memory))]
    judge("of it the logs", list(logs))
    return int(not (alive and all(flat) and min(marks) > 0))


if __name__ == "__main__":
    sys.exit(main())
