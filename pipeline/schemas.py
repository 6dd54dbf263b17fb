"""The columns of what is read, and what of them a user wants.

One rule: a frame has the columns of its schema, in its order. A user who gives a schema of fewer
columns has only those shipped; one that is not known, or of another type, is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.wire.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shardnode.pipeline.options import Options

KEYS = "key binary, value binary, version bigint, expires_at timestamp, shard int, slot int"
CHANGES = f"{KEYS}, op string"
TOPIC = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string,"
    " partition int, offset bigint, timestamp timestamp, shard int"
)


def ddl_of(options: Options) -> str:
    """The whole schema, as Spark parses it."""
    if options.topic is not None:
        return TOPIC
    return CHANGES if options.changes else KEYS


def whole_schema(options: Options) -> StructType:
    """The whole schema without a JVM."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types = {
        "binary": BinaryType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "int": IntegerType(),
        "string": StringType(),
        "array<struct<key:string,value:binary>>": ArrayType(header),
    }
    columns = [column.strip().split(" ", 1) for column in ddl_of(options).split(", ")]
    return StructType([StructField(name, types[of]) for name, of in columns])


def check_schema(schema: StructType, options: Options) -> None:
    """Raise `InvalidRequest` unless these are columns of what is read."""
    known = {field.name: field.dataType for field in whole_schema(options).fields}
    for field in schema.fields:
        if field.name not in known:
            raise InvalidRequest(
                f"unknown column {field.name!r} in the schema; known are {', '.join(known)}"
            )
        if field.dataType != known[field.name]:
            raise InvalidRequest(
                f"column {field.name!r}: expected {known[field.name].simpleString()}, found"
                f" {field.dataType.simpleString()}; cast it in the query"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects each record batch to have, exactly."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
