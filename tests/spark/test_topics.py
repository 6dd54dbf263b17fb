"""Topics as frames and as streams, through real Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardnode import Client
from shardnode.client.messages import OutgoingMessage
from shardnode.client.topic import Topic
from shardnode.testing.node import NodeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def load(spark: SparkSession, node: NodeUnderTest, topic: str, **options: object) -> DataFrame:
    reader = spark.read.format("shardnode").option("connect", node.address)
    return reader.option("topic", topic).options(**{k: str(v) for k, v in options.items()}).load()


def fill(db: Client, topic: str, partitions: int, messages: int) -> None:
    """So many numbered messages in each partition, in batches of a hundred."""
    made = db.create_topic(topic, partitions=partitions)
    for partition in range(partitions):
        for first in range(0, messages, 100):
            values = [b"%d" % n for n in range(first, min(first + 100, messages))]
            made.append(values, partition=partition)


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in frame.select("partition", "offset").collect())


def test_a_frame_has_every_message_with_key_headers_place_and_time(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    topic = db.create_topic("frames/all", partitions=3)
    topic.append([b"plain", b"", "ü"], partition=0)
    topic.append(
        [
            OutgoingMessage(b"v", b"k", [("a", b"1"), ("a", b"2")]),
            OutgoingMessage(b"w", None, {"b": b""}),
        ],
        partition=2,
    )
    topic.append([b"z" * 200] * 50, key=b"many", partition=2, compression="zstd")
    expected = [
        (
            *(m.key, m.value, list(m.headers.pairs)),
            *("frames/all", m.partition, m.offset, m.timestamp.replace(tzinfo=None)),
        )
        for partition in range(3)
        for m in topic.read(partition)
    ]
    frame = load(spark, node, "frames/all").sort("partition", "offset")
    rows = frame.collect()
    found = [
        (
            *(bytes(row.key) if row.key is not None else None, bytes(row.value)),
            [(header.key, bytes(header.value)) for header in row.headers],
            *(row.topic, row.partition, row.offset, row.timestamp),
        )
        for row in rows
    ]
    assert found == expected
    assert {row.shard for row in rows} <= {0, 1, 2}
    assert frame.rdd.getNumPartitions() >= 1
    reader = spark.read.format("shardnode").schema("value binary, offset long")
    thin = reader.options(connect=node.address, topic="frames/all").load()
    assert sorted(thin.collect()) == sorted((row.value, row.offset) for row in rows)


def test_two_actions_see_the_same_rows_while_a_producer_goes_on(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    fill(db, "frames/pinned", 2, 500)
    frame = load(spark, node, "frames/pinned", minPartitions=7, maxRecordsPerPartition=100)
    stopped, appended = threading.Event(), threading.Event()

    def produce() -> None:
        with node.client() as client:
            while not stopped.is_set():
                client.topic("frames/pinned").append([b"later"] * 10)
                appended.set()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        first = places(frame)
        assert appended.wait(10)
        appended.clear()
        assert appended.wait(10)
        second = places(frame)
    finally:
        stopped.set()
        producer.join()
    assert first == second
    assert {*first} >= {(partition, offset) for partition in (0, 1) for offset in range(500)}
    assert frame.rdd.getNumPartitions() >= 10


def test_offsets_bound_what_is_read_and_what_is_wrong_with_them_is_said(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    fill(db, "frames/bounds", 2, 300)
    frame = load(
        *(spark, node, "frames/bounds"),
        startingOffsets='{"0": 250, "1": -1}',
        endingOffsets='{"0": 255}',
    )
    assert places(frame) == [(0, offset) for offset in range(250, 255)]
    recent = load(spark, node, "frames/bounds", startingOffsets="-10m", endingOffsets="latest")
    assert recent.count() == 600
    for options, told in (
        ({"startingOffsets": '{"5": 0}'}, "expected partitions from 0 to 1"),
        ({"endingOffsets": '{"0": 301}'}, "expected an offset up to 300"),
    ):
        with pytest.raises(Exception, match=told) as error:
            load(spark, node, "frames/bounds", **options).collect()
        assert "InvalidRequest" in str(error.value)
    with pytest.raises(Exception, match=r"NotFound.*there is no topic frames/none"):
        load(spark, node, "frames/none").collect()


def test_what_retention_took_is_an_error_that_names_it_or_a_warning(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    topic = db.create_topic("frames/lossy", partitions=1, retention_bytes=100_000)
    topic.append([b"x" * 1000] * 60)
    pinned = load(spark, node, "frames/lossy")
    assert pinned.count() == 60
    first = outgrow(topic)
    for frame in (pinned, load(spark, node, "frames/lossy", startingOffsets='{"0": 0}')):
        with pytest.raises(Exception, match=r"Compacted.*topic frames/lossy, partition 0") as error:
            frame.count()
        assert "messages from offset 0 to" in str(error.value)
    options = {"startingOffsets": '{"0": 0}', "failOnDataLoss": "false"}
    frame = load(spark, node, "frames/lossy", **options).cache()
    assert places(frame)[0][1] >= first
    assert places(frame)[-1][1] == topic.bounds(0).end - 1
    frame.unpersist()


def test_a_read_goes_on_when_the_worker_of_its_shard_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    count, started, killed = 60_000, tmp_path / "started", tmp_path / "killed"
    os.mkfifo(started)
    os.mkfifo(killed)

    def hold(rows: Iterable[Row]) -> Iterator[bool]:
        """After the first row, wait until the worker is dead; whether each row is the next one."""
        for number, (offset, value) in enumerate(rows):
            if not number:
                started.write_text("now")
                killed.read_text()
            yield offset == number == int(value)

    with NodeUnderTest(1) as own, own.client() as db:
        topic = db.create_topic("s/t")
        for first in range(0, count, 2_000):
            topic.append([b"%0800d" % n for n in range(first, first + 2_000)])
        frame = load(spark, own, "s/t").select("offset", "value")

        def kill() -> None:
            started.read_text()
            own.kill(0)
            killed.write_text("now")

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        right = frame.rdd.mapPartitions(hold).countByValue()
        killer.join()
        assert right == {True: count}
        assert own.status()["shards"][0]["restarts"] == 1


def outgrow(topic: Topic) -> int:
    """Append until retention has deleted the beginning; the first offset that is there."""
    while (first := topic.bounds(0).first) == 0:
        topic.append([b"y" * 1000] * 100)
    return first
