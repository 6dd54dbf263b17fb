"""Batches become columns: those that are wanted, of the offsets that are wanted."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from pyspark.sql.types import StructType

from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import arrow_schema, whole_schema
from shardnode.pipeline.topics_rows import Damaged, Origin, Rows, Stored, record_batches
from shardnode.wire.batches import pack_batch
from shardnode.wire.streams import MessageBatch

SCHEMA = whole_schema(parse({"topic": "s/t"}))
ORIGIN = Origin("s/t", 3, 1)
PLAIN = MessageBatch([b"a", b"b", b"c"])
FULL = MessageBatch(
    [b"d", b"e", b"f"], [b"k", None, b"l"], [1, 0, 2], ["x", "y", "y"], [b"1", b"2", b"3"]
)


def rows_of(batches: list[Stored], start: int, end: int, *columns: str) -> list[dict[str, Any]]:
    schema = StructType([f for f in SCHEMA.fields if not columns or f.name in columns])
    rows = Rows(arrow_schema(schema), ORIGIN)
    found = list(record_batches(rows, iter(batches), start, end))
    assert all(each.schema == arrow_schema(schema) for each in found)
    return [row for each in found for row in each.to_pylist()]


def stored() -> list[Stored]:
    frame = pack_batch(MessageBatch([b"g" * 99] * 4, [b"m"] * 4).encode(), "zstd")
    assert len(frame) < 99
    return [
        Stored(10, 3, 1000, PLAIN.encode()),
        Stored(13, 3, 2000, FULL.encode()),
        Stored(16, 4, 2001, frame),
    ]


def test_keys_headers_and_compressed_batches_are_rows_like_all_others() -> None:
    rows = rows_of(stored(), 10, 20)
    assert [row["offset"] for row in rows] == [*range(10, 20)]
    assert b"".join(row["value"][:1] for row in rows) == b"abcdefgggg"
    assert [row["key"] for row in rows] == [None] * 3 + [b"k", None, b"l"] + [b"m"] * 4
    assert [len(row["headers"]) for row in rows] == [0, 0, 0, 1, 0, 2, 0, 0, 0, 0]
    assert rows[5]["headers"] == [{"key": "y", "value": b"2"}, {"key": "y", "value": b"3"}]
    assert [int(row["timestamp"].timestamp() * 1000) for row in rows] == (
        [1000] * 3 + [2000] * 3 + [2001] * 4
    )
    assert {(row["topic"], row["partition"], row["shard"]) for row in rows} == {("s/t", 3, 1)}


@pytest.mark.parametrize(("start", "end"), [(10, 12), (14, 15), (15, 17), (12, 20), (18, 99)])
def test_a_range_may_begin_and_end_inside_of_batches(start: int, end: int) -> None:
    whole = rows_of(stored(), 10, 20)
    assert rows_of(stored(), start, end) == [r for r in whole if start <= r["offset"] < end]


def test_columns_that_nobody_wants_are_not_made_and_batches_not_opened() -> None:
    spoiled = [Stored(0, 2, 5, b"spoiled")]
    assert rows_of(spoiled, 0, 2, "offset", "partition") == [
        {"partition": 3, "offset": 0},
        {"partition": 3, "offset": 1},
    ]
    assert rows_of(stored(), 13, 14, "key") == [{"key": b"k"}]


@pytest.mark.parametrize(
    "data",
    [
        b"spoiled",
        PLAIN.encode()[:-1],
        MessageBatch([b"one"]).encode(),
        msgpack.packb([[b"a", "b"], [], [], [], []]),
        msgpack.packb([[b"a", b"b"], [b"k"], [], [], []]),
        msgpack.packb([[b"a", b"b"], [], [1, 1], ["x"], [b"1"]]),
        msgpack.packb([[b"a", b"b"], [], [2, -1], ["x"], [b"1"]]),
        pack_batch(PLAIN.encode() * 9, "zstd")[:-3],
    ],
)
def test_a_spoiled_batch_is_told_with_its_place_after_what_was_whole(data: bytes) -> None:
    rows = Rows(arrow_schema(SCHEMA), ORIGIN)
    batches = [Stored(10, 3, 1000, PLAIN.encode()), Stored(13, 2, 1000, data)]
    found = record_batches(rows, iter(batches), 10, 20)
    assert next(found).num_rows == 3
    with pytest.raises(Damaged, match=r"partition 3: the 2 messages from offset 13 to 14") as error:
        next(found)
    assert error.value.after == 15
