"""Slot and shard are the same in the JVM as in every client."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from shardnode.pipeline.placement import by_shard, shard_of, slot_of
from shardnode.wire.placement import PlacementTable, initial_table, slot_of_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = 100_000


def random_keys(count: int) -> list[bytes]:
    """Of 1 to 60 bytes: text, any bytes, tags, braces that are no tags, ends of lines."""
    rng = Random(7)
    parts = [b"{", b"}", b"{}", b"{user:1}", b"\n", b"\r\n", b"\x00", b"\xff\xfe", "ü{ä}".encode()]
    keys = []
    for number in range(count):
        key = rng.randbytes(rng.randint(0, 20))
        for _ in range(number % 4):
            key += rng.choice(parts) + rng.randbytes(rng.randint(0, 4))
        keys.append(key or b"k")
    return keys


def test_slot_and_shard_agree_with_the_clients_on_a_hundred_thousand_keys(
    spark: SparkSession,
) -> None:
    keys = random_keys(KEYS)
    rng = Random(11)
    moved = PlacementTable(2, 7, bytes(rng.randrange(7) for _ in range(16_384)))
    frame = spark.createDataFrame([(key,) for key in keys], "key binary")
    columns = [slot_of("key"), shard_of("key", 4), shard_of("key", moved), shard_of("key", 1)]
    rows = frame.select("key", *columns).collect()
    four = initial_table(4)
    assert len(rows) == KEYS
    for key, slot, shard, other, only in rows:
        expected = slot_of_key(bytes(key))
        assert (slot, shard, other, only) == (
            expected,
            four.shard_of_slot(expected),
            moved.shard_of_slot(expected),
            0,
        ), key


def test_rows_by_shard_are_in_one_partition_of_one_shard_and_in_order(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    keys = random_keys(2_000)
    frame = spark.createDataFrame([(key,) for key in keys], "key binary")
    placed = by_shard(frame, 4, partitions=8).select(
        f.spark_partition_id().alias("part"), shard_of("key", 4).alias("shard"), "key"
    )
    rows = placed.collect()
    assert len(rows) == len(keys)
    by_part: dict[int, list[bytes]] = {}
    for row in rows:
        assert row.part // 2 == row.shard
        by_part.setdefault(row.part, []).append(bytes(row.key))
    assert len(by_part) == 8
    assert all(part == sorted(part) for part in by_part.values())
