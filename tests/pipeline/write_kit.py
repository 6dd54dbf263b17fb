"""Schemas, record batches and tasks for tests of writes, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardnode.pipeline.options import parse
from shardnode.pipeline.write_identity import Author
from shardnode.pipeline.writes import BatchWriter, StreamWriter, Wrote, batch_writer, stream_writer

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "decimal(10,2)": DecimalType(10, 2),
    "timestamp": TimestampType(),
    "headers": ArrayType(_HEADER),
    "map<string,binary>": MapType(StringType(), BinaryType()),
}

KEYS = {"key": "binary", "value": "binary"}

Rows = Sequence[tuple[Any, ...]]


def schema(columns: Mapping[str, str]) -> StructType:
    return StructType([StructField(name, TYPES[of]) for name, of in columns.items()])


def batches(columns: Mapping[str, str], rows: Rows, size: int = 0) -> list[pa.RecordBatch]:
    """Record batches of `size` rows, as Spark would give them."""
    from shardnode.pipeline.schemas import arrow_schema

    fields = arrow_schema(schema(columns))
    found = []
    for at in range(0, len(rows), size or len(rows) or 1):
        some = rows[at : at + (size or len(rows))]
        arrays = [pa.array(c, f.type) for c, f in zip(zip(*some, strict=True), fields, strict=True)]
        found.append(pa.RecordBatch.from_arrays(arrays, names=fields.names))
    return found


def batch_task(
    writer: BatchWriter, given: Iterable[pa.RecordBatch], partition: int = 0, job: bytes = b""
) -> Wrote:
    """A task of a batch write."""
    return writer._write(Author(job or writer._job, partition), given)


def stream_task(
    writer: StreamWriter, given: Iterable[pa.RecordBatch], batch: int, query: bytes
) -> Wrote:
    """A task of a micro-batch."""
    return writer._write(Author(query.ljust(16), 0, batch, is_stream=True), given)


def keys_batch(address: str, columns: Mapping[str, str] = KEYS, **options: str) -> BatchWriter:
    return batch_writer(parse({"connect": address, **options}), schema(columns))


def keys_stream(address: str, columns: Mapping[str, str] = KEYS, **options: str) -> StreamWriter:
    return stream_writer(parse({"connect": address, **options}), schema(columns))
