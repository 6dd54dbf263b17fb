"""Spark reading the key-value table, against Spark reading the same rows from Parquet.

    .venv/bin/python -P -m shardnode.bench.spark_scan [--rows N] [--rounds N] [--only WORD]

    scan      every row and column of a table of 5 M rows (16 B keys, 100 B values, 2 shards), with
              access=local and access=remote, and of Parquet files made from it; rounds take turns
    writer    what a writer (put_many, 1,000 keys a call, two calls under way) does beside scans
              that follow each other, against what it does alone in the same run

The first round of each warms the JVM and is not counted. Load generator and Spark are not pinned.
Ends with status 1 below a target.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardnode import Client
from shardnode.bench.figures import Table
from shardnode.bench.node import folder
from shardnode.bench.streams import node_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_TARGET = 0.5
REMOTE_TARGET = 0.25
WRITER_TARGET = 0.6
FILL_KEYS = 5_000
WRITER_S = 10.0


def fill(address: str, rows: int) -> None:
    """Random keys of 16 bytes, values of 100."""
    draw = random.Random(1)
    with Client(address, timeout=60) as db:
        for first in range(0, rows, FILL_KEYS):
            count = min(FILL_KEYS, rows - first)
            db.put_many({draw.randbytes(16): draw.randbytes(100) for _ in range(count)})


def load(spark: SparkSession, address: str, access: str) -> DataFrame:
    options = {"connect": address, "access": access, "timeout": "120"}
    return spark.read.format("shardnode").options(**options).load()


def seconds_of(frame: DataFrame) -> float:
    """How long Spark takes to look at every row and column."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def bench_scan(
    table: Table, spark: SparkSession, address: str, place: Path, words: argparse.Namespace
) -> None:
    begin = time.perf_counter()
    first = load(spark, address, "local")
    parts = first.rdd.getNumPartitions()
    table.row("load() with a new snapshot", (time.perf_counter() - begin) * 1e3, "ms", parts=parts)
    first.write.mode("overwrite").parquet(str(place / "parquet"))
    frames = {
        "parquet": spark.read.parquet(str(place / "parquet")),
        "local": first,
        "remote": load(spark, address, "remote"),
    }
    counts = {name: frame.count() for name, frame in frames.items()}
    if set(counts.values()) != {words.rows}:
        raise SystemExit(f"expected {words.rows} rows everywhere, found {counts}")
    rates: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(words.rounds + 1):
        for name, frame in frames.items():
            rate = words.rows / seconds_of(frame)
            if number:
                rates[name].append(rate)
        shown = ", ".join(f"{name} {found[-1]:,.0f}" for name, found in rates.items() if found)
        print(f"round {number}: {shown or 'not counted'}", flush=True)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    for name, target in (("local", LOCAL_TARGET), ("remote", REMOTE_TARGET)):
        table.ratio(f"scan, access={name}", middle[name], middle["parquet"], target, "Parquet")


# -- a writer beside scans ------------------------------------------------------------------------


def _write(address: str, sink: Any) -> None:
    """Write until told to stop; how many keys were written, now and then when asked."""
    draw, done, running = random.Random(2), [0, 0], True
    batches = [
        {b"w%015d" % draw.randrange(500_000): draw.randbytes(100) for _ in range(1_000)}
        for _ in range(50)
    ]

    def one(number: int) -> None:
        with Client(address, timeout=60) as db:
            while running:
                done[number] += len(db.put_many(draw.choice(batches)))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(done))]
    for thread in threads:
        thread.start()
    while sink.recv() == "count":
        sink.send((sum(done), time.perf_counter()))
    running = False
    for thread in threads:
        thread.join()


def _rate(ask: Any, seconds: float) -> float:
    first, begin = ask()
    time.sleep(seconds)
    last, end = ask()
    return float(last - first) / float(end - begin)


def bench_writer(table: Table, spark: SparkSession, address: str) -> None:
    ours, theirs = get_context("spawn").Pipe()
    writer = get_context("spawn").Process(target=_write, args=(address, theirs))
    writer.start()

    def ask() -> Any:
        ours.send("count")
        return ours.recv()

    for access in ("local", "remote"):
        alone = [_rate(ask, WRITER_S)]
        stop, scans = threading.Event(), [0]

        def scan(stop: threading.Event = stop, scans: list[int] = scans, how: str = access) -> None:
            while not stop.is_set():
                seconds_of(load(spark, address, how))
                scans[0] += 1

        scanner = threading.Thread(target=scan)
        scanner.start()
        beside = _rate(ask, 3 * WRITER_S)
        stop.set()
        scanner.join()
        alone.append(_rate(ask, WRITER_S))
        both = statistics.mean(alone)
        print(f"alone {alone[0]:,.0f} before and {alone[1]:,.0f} after; scans: {scans[0]}")
        table.ratio(f"writer beside {access} scans", beside, both, WRITER_TARGET, "alone")
    ours.send("stop")
    writer.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["scan", "writer"])
    words = parser.parse_args()
    from shardnode.pipeline import session

    table = Table()
    with folder() as place, node_on(place / "data", 2) as running:
        address = str(running.address)
        fill(address, words.rows)
        conf = {"spark.driver.memory": "3g", "spark.ui.showConsoleProgress": "false"}
        spark = session(**conf)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            if words.only in (None, "scan"):
                bench_scan(table, spark, address, place, words)
            if words.only in (None, "writer"):
                bench_writer(table, spark, address)
        finally:
            spark.stop()
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
