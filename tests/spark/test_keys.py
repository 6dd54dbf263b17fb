"""The key-value table in Spark: what a user sees of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from shardnode import Client
from shardnode.testing.node import NodeUnderTest
from tests.pipeline.keys_kit import fill, known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 8_000
SIZE = 4_000
"""Together more than the log that a frame reads without a snapshot."""

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def filled(node: NodeUnderTest) -> dict[bytes, bytes]:
    with node.client() as db:
        return fill(db, b"scan:", COUNT, SIZE)


def load(spark: SparkSession, node: NodeUnderTest, **options: str) -> DataFrame:
    return spark.read.format("shardnode").options(connect=node.address, **options).load()


def test_rows_are_those_of_the_client_with_all_their_columns(
    spark: SparkSession, node: NodeUnderTest, db: Client, filled: dict[bytes, bytes]
) -> None:
    db.put("scan:{tag}\udcff".encode("utf-8", "surrogateescape"), b"\x00\xff", ttl=3_600)
    db.delete_many(sorted(filled)[:50])
    expected = known(db, b"scan:")
    found = load(spark, node, prefix="scan:")
    assert found.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("version", "bigint"),
        ("expires_at", "timestamp"),
        ("shard", "int"),
        ("slot", "int"),
    ]
    table = found.toArrow()
    assert {row["key"]: row for row in table.to_pylist()} == expected
    assert table.num_rows == len(expected)
    db.put_many(dict.fromkeys(sorted(filled)[:50], b"back"))
    assert found.count() == len(expected), "a frame is of the moment it was loaded"
    assert load(spark, node, prefix="scan:").count() == len(expected) + 50


def test_a_filter_of_one_query_does_not_stick_to_the_frame(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    """Spark 4.3.0 keeps what a Python source pushed down for the next query of the frame."""
    db.put_many({b"push:%d" % number: b"v" for number in range(10)})
    for setting in ("true", "false"):
        spark.conf.set(PUSH_DOWN, setting)
        try:
            frame = load(spark, node, prefix="push:")
            assert frame.where("key = binary('push:3')").count() == 1
            assert frame.count() == 10
            assert frame.where("key > binary('push:7')").count() == 2
        finally:
            spark.conf.unset(PUSH_DOWN)


def test_a_worker_killed_while_spark_reads_costs_no_row(
    spark: SparkSession, node: NodeUnderTest, filled: dict[bytes, bytes]
) -> None:
    frame = load(
        spark, node, start="scan:00001", end="scan:1", access="remote", maxRecordsPerPartition="150"
    )
    wanted = {key for key in filled if key >= b"scan:00001"}
    tracker, killed = spark.sparkContext.statusTracker(), []
    done = threading.Event()

    def kill_in_the_middle() -> None:
        while not done.is_set():
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if any(stage and stage.numCompletedTasks >= 3 for stage in stages):
                killed.append([stage.numCompletedTasks for stage in stages if stage])
                for shard in range(node.shards):
                    node.kill(shard)
                return
            done.wait(0.01)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    try:
        rows = frame.select("key").toArrow().column("key").to_pylist()
    finally:
        done.set()
        killer.join()
        node.wait_ready()
    assert killed, "the job ended before anybody was killed"
    assert len(rows) == len(set(rows))
    assert set(rows) == wanted


def test_a_schema_of_some_columns_ships_only_those(
    spark: SparkSession, node: NodeUnderTest, db: Client
) -> None:
    db.put_many({b"some:%d" % number: b"v" * number for number in range(5)})
    reader = spark.read.format("shardnode").option("connect", node.address)
    some = reader.option("prefix", "some:").schema("slot int, key binary").load()
    assert sorted(some.columns) == ["key", "slot"]
    assert {bytes(row.key) for row in some.collect()} == {b"some:%d" % n for n in range(5)}
    with pytest.raises(Exception, match="unknown column 'vlaue'"):
        reader.schema("vlaue binary").load().count()
    with pytest.raises(Exception, match="unknown option 'prefixx'; did you mean prefix"):
        load(spark, node, prefixx="some:")
