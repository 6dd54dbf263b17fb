"""Writing from Spark against the client library's own `put_many`, in one run.

    .venv/bin/python -P -m shardnode.bench.spark_write [--rows N] [--shards N] [--cores N]

    client      one process, `put_many` of 10,000 keys a call
    plain       `df.write` of a frame as it is
    by shard    the same behind `pipeline.by_shard`, the shuffle included
    topic       the same frame to a topic of four partitions a shard, keys included

Keys have 16 bytes and values 100. The frame is in Spark's memory before the clock starts, and every
row is on disk before it is acknowledged. All of them share the cores. Each writes keys of its own.
Ends with status 1 below a target.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardnode import Client
from shardnode.bench.figures import Table
from shardnode.bench.node import folder
from shardnode.node.config_load import load_config
from shardnode.node.handle import Node
from shardnode.pipeline import by_shard, session

TOPIC = "bench/spark"
CALL = 10_000
VALUE = b"v" * 100
TARGET = 0.8
"""Of the client's rate: Spark's rows cross from the JVM to Python first, and share the cores."""


def client_rate(address: str, rows: int) -> float:
    """Rows a second of one client."""
    keys = [hashlib.md5(b"c%d" % n, usedforsecurity=False).digest() for n in range(rows)]
    values = [VALUE] * CALL
    with Client(address, timeout=60.0) as db:
        db.put(b"warm", b"")
        begin = time.perf_counter()
        for at in range(0, rows, CALL):
            some = keys[at : at + CALL]
            db.put_many(zip(some, values[: len(some)], strict=True))
        return rows / (time.perf_counter() - begin)


def frame_of(spark: Any, name: str, rows: int, parts: int) -> Any:
    """Rows with keys of their own, in Spark's memory."""
    frame = spark.range(0, rows, 1, parts).selectExpr(
        f"unhex(md5(concat('{name}', id))) as key",
        f"cast(repeat('v', {len(VALUE)}) as binary) as value",
    )
    frame = frame.persist()
    assert frame.count() == rows
    return frame


def spark_rate(frame: Any, rows: int, write: Callable[[Any], None]) -> float:
    """Rows a second of one write."""
    begin = time.perf_counter()
    write(frame)
    rate = rows / (time.perf_counter() - begin)
    frame.unpersist(blocking=True)
    return rate


def measure(address: str, rows: int, shards: int, cores: int) -> Table:
    table = Table()
    conf = {"spark.master": f"local[{cores}]", "spark.driver.memory": "2g"}
    spark = session(**conf, **{"spark.ui.showConsoleProgress": "false"})
    spark.sparkContext.setLogLevel("ERROR")

    def write(frame: Any, **options: str) -> None:
        writer = frame.write.format("shardnode").option("connect", address)
        writer.options(**options).mode("append").save()

    write(frame_of(spark, "warm", 20_000, cores))
    peer = client_rate(address, rows)
    ways: list[tuple[str, Callable[[Any], None]]] = [
        ("plain", write),
        ("by shard", lambda frame: write(by_shard(frame, shards, partitions=cores))),
    ]
    for name, way in ways:
        rate = spark_rate(frame_of(spark, name, rows, cores * 2), rows, way)
        table.ratio(f"df.write, {name}", rate, peer, TARGET, "put_many")
    with Client(address) as db:
        db.create_topic(TOPIC, partitions=4 * shards)
    rate = spark_rate(
        frame_of(spark, "topic", rows, cores * 2), rows, lambda frame: write(frame, topic=TOPIC)
    )
    table.row("df.write, topic", rate, "rows/s")
    spark.stop()
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args(arguments)
    with folder() as data:
        flags: dict[str, Any] = {"shards": given.shards, "data": str(data)}
        flags |= {"listen": "127.0.0.1:0", "http": "off"}
        with Node(load_config(flags=flags)) as node:
            node.wait_ready()
            table = measure(str(node.address), given.rows, given.shards, given.cores)
    return 1 if table.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
