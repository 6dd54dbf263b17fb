"""Topics as frames and as streams, through real Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from shardnode import Client
from shardnode.client.messages import OutgoingMessage
from shardnode.client.topic import Topic
from shardnode.client.values import GroupPartition
from shardnode.pipeline.options import parse
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_progress import Progress
from shardnode.pipeline.topics_shards import describe
from shardnode.testing.node import NodeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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


def stream(spark: SparkSession, node: NodeUnderTest, topic: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("shardnode").option("connect", node.address)
    return reader.option("topic", topic).options(**{k: str(v) for k, v in options.items()}).load()


class Sink:
    """Rows by micro-batch, over any number of runs with one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.grown = threading.Condition()

    def take(self, frame: DataFrame, number: int) -> None:
        with self.grown:
            self.batches[number] = places(frame)
            self.grown.notify_all()

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint))
        return writer.foreachBatch(self.take).trigger(**trigger).start()

    def finish(self, frame: DataFrame) -> StreamingQuery:
        """All there is now."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(60)
        return query

    def wait_for(self, rows: set[tuple[int, int]]) -> None:
        with self.grown:
            assert self.grown.wait_for(lambda: rows <= {*self.rows}, 60), self.rows


def test_a_stream_takes_each_message_once_over_restarts_and_new_partitions(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    fill(db, "streams/once", 2, 300)
    options: dict[str, Any] = {"startingOffsets": "earliest", "maxRowsPerTrigger": 250}
    frame = stream(spark, node, "streams/once", group="once", **options)
    sink = Sink(tmp_path)
    query = sink.finish(frame)
    expected = [(partition, offset) for partition in (0, 1) for offset in range(300)]
    assert sink.rows == expected
    assert [len(rows) for _, rows in sorted(sink.batches.items())] == [250, 250, 100]
    halves = [sum(1 for partition, _ in rows if partition) for rows in sink.batches.values()]
    assert halves == [125, 125, 50]
    assert query.lastProgress is not None
    assert query.lastProgress["sources"][0]["latestOffset"] == '{"0": 300, "1": 300}'
    db.alter_topic("streams/once", partitions=3)
    db.topic("streams/once").append([b"new"] * 7, partition=2)
    db.topic("streams/once").append([b"more"] * 5, partition=0)
    sink.finish(frame)
    expected += [(0, offset) for offset in range(300, 305)] + [(2, offset) for offset in range(7)]
    assert sink.rows == sorted(expected)
    found = {each.partition: each for each in db.describe_group("once").partitions}
    assert {each.topic for each in found.values()} == {"streams/once"}
    assert [found[number].lag for number in (0, 1, 2)] == [0, 0, 0]


def test_a_running_stream_begins_at_the_end_and_finds_new_partitions(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    fill(db, "streams/live", 1, 100)
    topic = db.topic("streams/live")
    sink = Sink(tmp_path)
    query = sink.start(stream(spark, node, "streams/live"), processingTime="100 milliseconds")
    try:
        until(lambda: bool(query.lastProgress))
        topic.append([b"a", b"b"], partition=0)
        sink.wait_for({(0, 100), (0, 101)})
        db.alter_topic("streams/live", partitions=2)
        topic.append([b"c"], partition=1)
        sink.wait_for({(1, 0)})
        until(lambda: [each.lag for each in group(db, "spark.streams.live")] == [0, 0])
    finally:
        query.stop()
    assert sink.rows == [(0, 100), (0, 101), (1, 0)]


def test_a_stream_that_retention_has_overtaken_says_so_or_goes_on(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    topic = db.create_topic("streams/lossy", partitions=1, retention_bytes=100_000)
    topic.append([b"x" * 1000] * 10)
    sink, options = Sink(tmp_path), {"startingOffsets": "earliest"}
    sink.finish(stream(spark, node, "streams/lossy", **options))
    first = outgrow(topic)
    with pytest.raises(Exception, match="partition 0: the messages from offset 10 to") as error:
        sink.finish(stream(spark, node, "streams/lossy", **options))
    assert "Compacted" in str(error.value)
    sink.finish(stream(spark, node, "streams/lossy", **options, failOnDataLoss="false"))
    assert sink.rows[:10] == [(0, offset) for offset in range(10)]
    assert sink.rows[10][1] >= first
    assert sink.rows[-1] == (0, topic.bounds(0).end - 1)


def test_what_a_group_shows_goes_back_with_a_new_run_alone_and_leaves_members_in_peace(
    node: NodeUnderTest, db: Client, caplog: pytest.LogCaptureFixture
) -> None:
    fill(db, "streams/group", 2, 300)
    with Shards(parse({"connect": node.address})) as shards:
        topic = describe(shards, "streams/group")
        run, again = Progress("shown"), Progress("shown")
        run.tell(shards, topic, {0: 200, 1: 300})
        run.tell(shards, topic, {0: 100, 1: 300})
        assert [each.committed for each in group(db, "shown")] == [200, 300]
        again.tell(shards, topic, {0: 50, 1: 60})
        assert [each.committed for each in group(db, "shown")] == [50, 60]
        with db.topic("streams/group").consumer(group="taken", partitions=None) as consumer:
            assert consumer.poll(10.0)
            other = Progress("taken")
            other.tell(shards, topic, {0: 10, 1: 10})
            other.tell(shards, topic, {0: 20, 1: 20})
            assert [each.committed for each in group(db, "taken")] == [None, None]
    assert [record.message for record in caplog.records] == [
        "group taken does not show how far this query is: it has members, whose group it is; name"
        " another one"
    ]


def group(db: Client, name: str) -> tuple[GroupPartition, ...]:
    return db.describe_group(name).partitions


def until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for something that nobody tells of."""
    end = monotonic() + timeout_s
    while not holds():
        assert monotonic() < end, "it did not come true in time"


def outgrow(topic: Topic) -> int:
    """Append until retention has deleted the beginning; the first offset that is there."""
    while (first := topic.bounds(0).first) == 0:
        topic.append([b"y" * 1000] * 100)
    return first
