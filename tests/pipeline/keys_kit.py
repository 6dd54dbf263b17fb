"""Reading keys as Spark's tasks do, without Spark, and what a client says of the same keys."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from shardnode import Client
from shardnode.pipeline.keys_scan import KeyReader
from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import whole_schema
from shardnode.wire.placement import slot_of_key
from tests.pipeline.sending import as_sent

Row = Mapping[str, Any]


class Frame:
    """What one `load()` gives."""

    def __init__(self, given: Mapping[str, str], columns: Iterable[str] = ()) -> None:
        options = parse(given)
        schema = whole_schema(options)
        if columns:
            schema = StructType([schema[name] for name in columns])
        self.reader = KeyReader(options, schema)
        self.partitions: Sequence[InputPartition] = as_sent(self.reader.partitions())

    def batches(self) -> list[Any]:
        return [batch for part in self.partitions for batch in self.reader.read(part)]

    def rows(self) -> dict[bytes, Row]:
        """By key; no key may come twice."""
        found = [row for batch in self.batches() for row in batch.to_pylist()]
        by_key = {row["key"]: row for row in found}
        assert len(by_key) == len(found), "a key came twice"
        return by_key

    def values(self) -> dict[bytes, bytes]:
        return {key: row["value"] for key, row in self.rows().items()}


def known(db: Client, prefix: bytes = b"") -> dict[bytes, Row]:
    """The rows that a frame of now must have."""
    table = db.topology().table
    rows: dict[bytes, Row] = {}
    for entry in db.scan(prefix=prefix):
        slot = slot_of_key(entry.key)
        rows[entry.key] = {
            "key": entry.key,
            "value": entry.value,
            "version": entry.version,
            "expires_at": entry.expires_at,
            "shard": table.shard_of_slot(slot),
            "slot": slot,
        }
    return rows


def fill(
    db: Client, prefix: bytes, count: int, size: int = 100, seed: int = 1
) -> dict[bytes, bytes]:
    """So many keys; their values."""
    draw = random.Random(seed)
    written: dict[bytes, bytes] = {}
    for first in range(0, count, 2_000):
        numbers = range(first, min(count, first + 2_000))
        batch = {b"%s%08d" % (prefix, number): draw.randbytes(size) for number in numbers}
        db.put_many(batch)
        written |= batch
    return written
