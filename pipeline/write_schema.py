"""The columns of a frame that is written.

One rule: a column is used, or is known to say only where the rows came from, or is refused. So a
frame that was read from one table or topic can be written to another as it is, and no column is
lost without a word.

    to keys      key, value; perhaps ttl (seconds) or expires_at
                 left out: version, shard, slot
    to a topic   value; perhaps key, headers, partition
                 left out: topic, offset, timestamp, shard
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.wire.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from shardnode.pipeline.options import Options

BYTES = ("binary", "string")
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
WHOLE = ("tinyint", "smallint", "int", "bigint")
HEADERS = (
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
)

OF_KEYS = {"key": BYTES, "value": BYTES, "ttl": NUMBERS, "expires_at": ("timestamp",)}
OF_TOPICS = {"value": BYTES, "key": BYTES, "headers": HEADERS, "partition": WHOLE}
LEFT_OUT_OF_KEYS = ("version", "shard", "slot")
LEFT_OUT_OF_TOPICS = ("topic", "offset", "timestamp", "shard")


def used_columns(schema: StructType, options: Options) -> tuple[str, ...]:
    """The columns that are written; raises `InvalidRequest` for a frame that cannot be."""
    to_topic = options.topic is not None
    known = OF_TOPICS if to_topic else OF_KEYS
    left_out = LEFT_OUT_OF_TOPICS if to_topic else LEFT_OUT_OF_KEYS
    needed = ("value",) if to_topic else ("key", "value")
    where = "a topic is" if to_topic else "keys are"
    names = [field.name for field in schema.fields]
    missing = [name for name in needed if name not in names]
    if missing:
        raise InvalidRequest(
            f"expected a column {missing[0]!r}, found {', '.join(names) or 'none'}; {where} written"
            f" from {', '.join(known)}: rename or select them"
        )
    for field in schema.fields:
        if names.count(field.name) > 1:
            raise InvalidRequest(f"column {field.name!r} is there twice; select one of them")
        if field.name in known:
            _check_type(field.name, field.dataType, known[field.name])
        elif field.name not in left_out:
            raise InvalidRequest(
                f"unknown column {field.name!r}; {where} written from {', '.join(known)}"
                f" ({', '.join(left_out)} are left out): drop it, or make it part of the value"
            )
    if "ttl" in names and "expires_at" in names and not to_topic:
        raise InvalidRequest("expected ttl or expires_at, found both columns; drop one of them")
    _check_options(options, names)
    return tuple(name for name in names if name in known)


def _check_type(name: str, found: DataType, known: tuple[str, ...]) -> None:
    spelt = found.simpleString().split(" collate ")[0]
    kind = "string" if spelt.startswith(("varchar", "char")) else spelt
    if kind in known or (known is NUMBERS and kind.startswith("decimal")):
        return
    expected = "a number" if known is NUMBERS else " or ".join(known)
    raise InvalidRequest(
        f"column {name!r}: expected {expected}, found {spelt}; cast it in the query"
    )


def _check_options(options: Options, names: list[str]) -> None:
    if options.topic is not None and options.ttl is not None:
        raise InvalidRequest("ttl: no option of a topic, whose messages go by its retention")
    if options.topic is None and options.compression is not None:
        raise InvalidRequest("compression: an option of topics; values of keys are kept as given")
    if options.topic is None and options.identity is not None:
        raise InvalidRequest("identity: an option of topics; keys that are put again stay the same")
    if options.ttl is not None and "expires_at" in names:
        raise InvalidRequest("expected the option ttl or a column expires_at, found both")
