"""Changes of keys as a stream: each once and in order, the same when a micro-batch is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardnode import Client
from shardnode.pipeline.changes_stream import ChangesStreamReader, Stretch
from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import whole_schema
from shardnode.testing.node import NodeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


def run(frame: DataFrame, checkpoint: Path) -> list[list[Row]]:
    """The rows of all that there is now, by micro-batch."""
    batches: list[list[Row]] = []

    def take(rows: DataFrame, _: int) -> None:
        batches.append([row.asDict() for row in rows.collect()])

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    return batches


def by_key(batches: list[list[Row]]) -> dict[bytes, list[tuple[str, bytes | None]]]:
    found: dict[bytes, list[tuple[str, bytes | None]]] = {}
    for row in (row for rows in batches for row in rows):
        value = None if row["value"] is None else bytes(row["value"])
        found.setdefault(bytes(row["key"]), []).append((row["op"], value))
    return found


def stream(spark: SparkSession, node: NodeUnderTest, prefix: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("shardnode").option("connect", node.address)
    reader = reader.option("changes", "true").option("prefix", prefix)
    return reader.options(**{k: str(v) for k, v in options.items()}).load()


def test_puts_deletions_and_expiries_come_once_and_in_order_over_restarts(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    db.put("changes/before", "1")
    frame = stream(spark, node, "changes/")
    assert by_key(run(frame, tmp_path)) == {}
    names = [b"changes/%d" % number for number in range(40)]
    versions = dict(zip(names, db.put_many(dict.fromkeys(names, b"a")), strict=True))
    db.put_many(dict.fromkeys(names[:20], b"b"))
    db.delete_many(names[:10])
    db.put("changes/ttl", "x", ttl=1.0)
    kept = db.get_entry("changes/ttl")
    assert kept is not None
    assert kept.expires_at is not None
    while db.get("changes/ttl") is not None:
        pass  # a shard says when, and nobody else
    batches = run(frame, tmp_path)
    found = by_key(batches)
    assert found.pop(b"changes/ttl") == [("put", b"x"), ("expire", None)]
    for number, name in enumerate(names):
        expected: list[tuple[str, bytes | None]] = [("put", b"a")]
        expected += [("put", b"b")] if number < 20 else []
        expected += [("delete", None)] if number < 10 else []
        assert found[name] == expected
    rows = [row for batch in batches for row in batch]
    first = {bytes(row["key"]): row for row in reversed(rows)}
    route = db.explain(names[3])
    assert (first[names[3]]["shard"], first[names[3]]["slot"]) == (route.shard, route.slot)
    assert {name: first[name]["version"] for name in names} == versions
    assert first[b"changes/ttl"]["expires_at"] == kept.expires_at.replace(tzinfo=None)
    assert first[names[0]]["expires_at"] is None
    assert by_key(run(frame, tmp_path)) == {}


def test_limited_micro_batches_bring_everything_and_no_entry_in_two(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    frame = stream(spark, node, "limited/", maxRowsPerTrigger=30)
    run(frame, tmp_path)
    for number in range(8):
        db.put_many({b"limited/%d/%d" % (number, each): b"v" for each in range(12)})
    batches = [rows for rows in run(frame, tmp_path) if rows]
    rows = [row for batch in batches for row in batch]
    assert len(by_key(batches)) == len(rows) == 96
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 36
    for shard in range(3):
        entries = [{row["version"] for row in rows if row["shard"] == shard} for rows in batches]
        assert sum(map(len, entries)) == len(set[int]().union(*entries))


def test_what_is_no_longer_kept_is_told_and_a_stretch_is_always_the_same() -> None:
    with NodeUnderTest(1) as own:
        with own.client() as db:
            db.put_many({b"k%d" % number: b"old" for number in range(10)})
        own.stop()
        own.start()  # what was flushed is not told any more
        with own.client() as db:
            db.put_many({b"k%d" % number: b"new" for number in range(10)})
        options = parse({"connect": own.address, "changes": "true", "startingOffsets": '{"0": 1}'})
        reader = ChangesStreamReader(options, whole_schema(options))
        [part] = reader.partitions(reader.initialOffset(), reader.latestOffset())
        with pytest.raises(Exception, match="changes of shard 0 from log index 2 to") as error:
            list(reader.read(part))
        assert error.value.__class__.__name__ == "Compacted"
        options = parse({"connect": own.address, "changes": "true", "startingOffsets": "earliest"})
        reader = ChangesStreamReader(options, whole_schema(options))
        [part] = reader.partitions(reader.initialOffset(), reader.latestOffset())
        assert isinstance(part, Stretch)
        rows = [batch.to_pylist() for batch in reader.read(part)]
        own.kill(0)
        assert [batch.to_pylist() for batch in reader.read(part)] == rows
        assert [row["value"] for page in rows for row in page] == [b"new"] * 10
        reader.stop()
