"""What Spark writes is there once, whatever fails: tasks, workers, queries that are restarted.

Frames are made by `spark.createDataFrame`: `rdd.toDF` belongs to the session that was made last,
which may be one that a stream has cloned, with settings of its own.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardnode import Client, Message
from shardnode.pipeline import by_shard
from shardnode.testing.node import NodeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS = 4_000
SMALL = "100"
"""Rows of a record batch and of a request: many of them in a small test."""


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, SMALL)
    yield
    spark.conf.set(name, str(before))


def write(frame: DataFrame, node: NodeUnderTest, **options: str) -> None:
    writer = frame.write.format("shardnode").option("connect", node.address)
    writer.options(**options).mode("append").save()


def messages_of(db: Client, topic: str) -> list[Message]:
    """All messages, by partition."""
    found: list[Message] = []
    for partition, bounds in enumerate(db.topic(topic).all_bounds()):
        at = bounds.first
        while at < bounds.end:
            page = db.topic(topic).read(partition, at, 10_000)
            found += page
            at += len(page)
    return found


def versions(db: Client, keys: list[bytes]) -> dict[bytes, int]:
    entries = {key: db.get_entry(key) for key in keys}
    return {key: entry.version for key, entry in entries.items() if entry is not None}


def test_keys_are_written_as_they_are_and_of_equal_ones_the_last_stays(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    rows: list[tuple[bytes, bytes, float | None]]
    rows = [(b"w1/%d" % n, b"v%d" % n, None) for n in range(ROWS)]
    rows += [(b"w1/{tag%d}/\xff\xfe\x00" % n, b"\x80%d" % n, None) for n in range(500)]
    rows += [(b"w1/%d" % n, b"again", 3600.0) for n in range(0, ROWS, 3)]
    rows.append((b"w1/empty", b"", None))
    expected = {key: value for key, value, _ in rows}
    frame = spark.createDataFrame(rows, "key binary, value binary, ttl double")
    write(frame.coalesce(1), node)
    assert {e.key: e.value for e in db.scan(prefix=b"w1/")} == expected
    soon = db.get_entry(b"w1/3")
    assert soon is not None
    assert soon.expires_at is not None
    assert timedelta(0) < soon.expires_at - datetime.now(UTC) <= timedelta(hours=1)
    lasting = db.get_entry(b"w1/1")
    assert lasting is not None
    assert lasting.expires_at is None


def test_rows_by_shard_and_text_columns_are_written_too(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    frame = spark.range(ROWS).selectExpr("concat('w2/', id) key", "cast(id * 2 as string) value")
    write(by_shard(frame, 3), node, ttl="900")
    found = {e.key: e.value for e in db.scan(prefix=b"w2/")}
    assert found == {b"w2/%d" % n: b"%d" % (2 * n) for n in range(ROWS)}
    entry = db.get_entry(b"w2/7")
    assert entry is not None
    assert entry.expires_at is not None


def test_a_frame_as_topics_are_read_is_appended_to_another_topic(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    db.create_topic("writes/copy", partitions=3)
    rows = [
        (
            b"key-%d" % (n % 7) if n % 5 else None,
            b"value-%d" % n,
            [("n", b"%d" % n), ("n", b"twice")] if n % 2 else None,
            "from/there",
            n % 3 if n % 11 else None,
            n,
            datetime(2026, 1, 1, tzinfo=UTC),
            0,
        )
        for n in range(ROWS)
    ]
    columns = (
        "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string,"
        " partition int, offset bigint, timestamp timestamp, shard int"
    )
    write(spark.createDataFrame(rows, columns), node, topic="writes/copy")
    found = {m.value: m for m in messages_of(db, "writes/copy")}
    assert len(found) == ROWS
    for key, value, headers, _, partition, *_ in rows:
        message = found[value]
        assert message.key == key
        assert message.headers.pairs == tuple(headers or ())
        assert partition is None or message.partition == partition
    in_order = [[m.value for m in found.values() if m.partition == p] for p in range(3)]
    assert all(in_order)


def failing_once(rows: Iterator[Row], *, address: str, topic: str, note: str) -> Iterator[Row]:
    """The first attempt of partition 0 fails near its end, when some of its own rows are on the
    node, and leaves a note of those keys and their versions, or of the messages."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    fails = task.partitionId() == 0 and task.attemptNumber() == 0
    for given, row in enumerate(rows):
        if fails and given == ROWS // 2 - 100:
            found: list[str] = []
            with Client(address) as db:
                while not found and topic:
                    found = [m.value.hex() for m in messages_of(db, topic)]
                while not found:
                    found = [f"{e.key.hex()} {e.version}" for e in db.scan(prefix=b"w3/0/")]
            Path(note).write_text("\n".join(found))
            raise RuntimeError("the first attempt fails")
        yield row


def test_a_task_that_fails_halfway_and_is_run_again_has_no_second_effect(
    spark: SparkSession,
    node: NodeUnderTest,
    db: Client,
    tmp_path: Path,
    small_batches: None,  # noqa: ARG001
) -> None:
    db.create_topic("writes/retried", partitions=2)
    frame = spark.range(ROWS, numPartitions=2).selectExpr(
        f"concat('w3/', id div {ROWS // 2}, '/', id) key", "rpad(id, 500, ' ') value"
    )
    for topic in ("", "writes/retried"):
        note = tmp_path / f"seen{len(topic)}"
        failing = partial(failing_once, address=node.address, topic=topic, note=str(note))
        failed = spark.createDataFrame(frame.rdd.mapPartitions(failing), frame.schema)
        options = {"topic": topic, "batchRows": SMALL} if topic else {"batchRows": SMALL}
        write(failed, node, **options)
        assert note.exists(), "the first attempt wrote something, and failed"
    pairs = [line.split() for line in (tmp_path / "seen0").read_text().splitlines()]
    seen = {bytes.fromhex(key): int(version) for key, version in pairs}
    assert versions(db, list(seen)) == seen
    keys = {b"w3/%d/%d" % (n // (ROWS // 2), n) for n in range(ROWS)}
    assert {e.key for e in db.scan(prefix=b"w3/", keys_only=True)} == keys
    count = Counter(m.value.strip() for m in messages_of(db, "writes/retried"))
    assert count == Counter(b"%d" % n for n in range(ROWS))


def killing(rows: Iterator[Row], *, pid: int, folder: str) -> Iterator[Row]:
    """Kills a process halfway."""
    for given, row in enumerate(rows):
        if given == ROWS and not Path(folder, "killed").exists():
            Path(folder, "killed").touch()
            os.kill(pid, signal.SIGKILL)
        yield row


def test_a_worker_that_is_killed_during_a_write_costs_no_row(
    spark: SparkSession,
    node: NodeUnderTest,
    db: Client,
    tmp_path: Path,
    small_batches: None,  # noqa: ARG001
) -> None:
    db.create_topic("writes/killed", partitions=4)
    count = 4 * ROWS
    frame = spark.range(count, numPartitions=2).selectExpr(
        "concat('w4/', id) key", "repeat('v', 500) value"
    )
    for topic in ("", "writes/killed"):
        folder = tmp_path / (topic.replace("/", "-") or "keys")
        folder.mkdir()
        pid = node.pid(1)
        assert pid is not None
        kill = partial(killing, pid=pid, folder=str(folder))
        killed = spark.createDataFrame(frame.rdd.mapPartitions(kill), frame.schema)
        write(killed, node, batchRows=SMALL, **({"topic": topic} if topic else {}))
        node.wait_ready()
        assert (folder / "killed").exists()
        assert node.pid(1) != pid
    expected = Counter(b"w4/%d" % n for n in range(count))
    assert Counter(e.key for e in db.scan(prefix=b"w4/", keys_only=True)) == expected
    assert Counter(m.key for m in messages_of(db, "writes/killed")) == expected


def test_a_query_that_is_stopped_and_restarted_writes_each_row_once(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    db.create_topic("writes/stream", partitions=3)
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()

    def start(**trigger: Any) -> Any:
        read = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))
        keyed = read.selectExpr("value key", "concat('m', value) value")
        writer = keyed.writeStream.format("shardnode").option("connect", node.address)
        writer = writer.option("topic", "writes/stream").option("batchRows", "50")
        return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()

    written = 0
    for _ in range(3):
        for _ in range(2):
            path = files / f"{written}.txt"
            text = "".join(f"{written + n}\n" for n in range(200))
            path.with_suffix(".part.crc").write_text(text)
            path.with_suffix(".part.crc").rename(path)
            written += 200
        query = start(processingTime="0 seconds")
        before = len(messages_of(db, "writes/stream"))
        while len(messages_of(db, "writes/stream")) == before and query.isActive:
            query.awaitTermination(0.05)
        query.stop()  # perhaps amid a micro-batch, which comes again
    query = start(availableNow=True)
    query.awaitTermination()
    found = Counter(m.value for m in messages_of(db, "writes/stream"))
    assert found == Counter(b"m%d" % n for n in range(written))


def test_a_row_that_cannot_be_written_is_named(spark: SparkSession, node: NodeUnderTest) -> None:
    frame = spark.createDataFrame([(b"w5/1", b"v"), (None, b"v")], "key binary, value binary")
    with pytest.raises(Exception, match=r"column 'key', row 1 of partition 0 .* found null"):
        write(frame.coalesce(1), node)
    other = spark.range(1).selectExpr("id key", "'v' value")
    with pytest.raises(Exception, match=r"column 'key': expected binary or string, found bigint"):
        write(other, node)
