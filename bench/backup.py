"""What a backup costs those who write: throughput with one under way against without.

    .venv/bin/python -P -m shardnode.bench.backup [--megabytes 400] [--seconds 10] [--clients 2]
                                                  [--rate 50MB] [--rounds 2]

A node of two shards holds some hundred megabytes. Clients overwrite random keys as fast as they are
answered, all the while. In each round their throughput is measured for some seconds, then while
`shardnode backup --full` runs (a snapshot of each shard is built beside the loop, read and written
to the same disk), then for some seconds again. At the end a backup is restored and verified. Ends
with status 1 when less than 80 % of the throughput is left, in the mean of all rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shardnode import Client
from shardnode.bench.figures import Table
from shardnode.bench.node import BATCH, VALUE, batches, folder
from shardnode.node.config_load import load_config
from shardnode.node.handle import Node

LEFT_MIN = 0.8
COMMAND = (sys.executable, "-P", "-m", "shardnode")


def _load(address: str, seed: int, done: Any, stop: Any) -> None:
    """One load process: calls as fast as they are answered."""
    calls = batches(seed, 200)
    with Client(address, timeout=60) as db:
        turn = 0
        while not stop.value:
            db.put_many(calls[turn % len(calls)])
            turn += 1
            with done.get_lock():
                done.value += len(calls[turn % len(calls)])


@contextmanager
def load(address: str, clients: int) -> Iterator[Any]:
    """Load while the block lasts; a counter of keys."""
    context = get_context("spawn")
    done, stop = context.Value("Q", 0), context.Value("b", 0)
    arguments = [(address, number, done, stop) for number in range(clients)]
    processes = [context.Process(target=_load, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        while not done.value:
            time.sleep(0.1)
        yield done
    finally:
        stop.value = 1
        for process in processes:
            process.join()


def fill(address: str, megabytes: int) -> None:
    """Keys that nobody overwrites: the bulk of a snapshot."""
    value = VALUE * 10
    with Client(address, timeout=60) as db:
        for first in range(0, megabytes * 1_000, BATCH):
            db.put_many({b"fill:%012d" % n: value for n in range(first, first + BATCH)})


class Meter:
    """Keys per second between two looks."""

    def __init__(self, done: Any) -> None:
        self._done = done
        self._since = (time.perf_counter(), done.value)

    def rate(self) -> float:
        now = (time.perf_counter(), self._done.value)
        (begun, before), self._since = self._since, now
        return float(now[1] - before) / (now[0] - begun)


def back_up(address: str, place: Path, words: list[str]) -> float:
    """How long it took."""
    begun = time.perf_counter()
    subprocess.run(
        [*COMMAND, "backup", str(place), "--full", "--connect", address, *words],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - begun


def measure(address: str, place: Path, words: argparse.Namespace) -> list[float]:
    """The share of throughput that is left, round by round."""
    rate = ["--rate", words.rate] if words.rate else []
    left = []
    with load(address, words.clients) as done:
        time.sleep(2)
        for number in range(words.rounds):
            meter = Meter(done)
            time.sleep(words.seconds)
            before = meter.rate()
            took = back_up(address, place / f"b{number}", rate)
            during = meter.rate()
            time.sleep(words.seconds)
            after = meter.rate()
            without = statistics.mean((before, after))
            left.append(during / without)
            print(
                f"round {number + 1}: {before:,.0f} and {after:,.0f} keys/s without,"
                f" {during:,.0f} keys/s in the {took:.1f} s of a backup: {left[-1]:.0%}",
                flush=True,
            )
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", default="", help="of the backup, else its own default")
    words = parser.parse_args()
    table = Table()
    with folder() as place:
        flags: dict[str, Any] = {"shards": 2, "data": str(place / "d"), "listen": "127.0.0.1:0"}
        with Node(load_config(flags={**flags, "http": "off"})) as running:
            running.wait_ready()
            address = str(running.address)
            fill(address, words.megabytes)
            left = measure(address, place, words)
        size = sum(path.stat().st_size for path in (place / "b0").rglob("*") if path.is_file())
        begun = time.perf_counter()
        for verb in (["backup", "verify", "b0"], ["restore", "b0", "--data", "r"]):
            subprocess.run([*COMMAND, *verb], cwd=place, check=True, capture_output=True)
        table.row("verify and restore", size / 1e6 / (time.perf_counter() - begun), "MB/s")
    table.row("a backup", size / 1e6, "MB")
    mean = statistics.mean(left)
    table.row("throughput left while a backup runs", mean * 100, "%", target=LEFT_MIN * 100)
    return int(mean < LEFT_MIN or table.failed)


if __name__ == "__main__":
    sys.exit(main())
