"""Which frames can be written, and what is said of the others."""

from __future__ import annotations

import pytest

from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import whole_schema
from shardnode.pipeline.write_schema import used_columns
from shardnode.wire.errors import InvalidRequest
from tests.pipeline.write_kit import schema


def test_what_was_read_can_be_written() -> None:
    keys, topic = parse({}), parse({"topic": "t"})
    assert used_columns(whole_schema(keys), keys) == ("key", "value", "expires_at")
    assert used_columns(whole_schema(topic), topic) == ("key", "value", "headers", "partition")


@pytest.mark.parametrize(
    "columns",
    [
        {"key": "string", "value": "binary"},
        {"value": "string", "key": "binary", "ttl": "int"},
        {"key": "binary", "value": "binary", "ttl": "decimal(10,2)"},
    ],
)
def test_text_numbers_and_any_order_of_columns_are_taken(columns: dict[str, str]) -> None:
    assert used_columns(schema(columns), parse({})) == tuple(columns)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"key": "binary"}, {}, r"expected a column 'value', found key; keys are written from"),
        ({"key": "binary"}, {"topic": "t"}, r"expected a column 'value', found key; a topic is"),
        ({"key": "bigint", "value": "binary"}, {}, r"'key': expected binary or string, found big"),
        (
            {"key": "binary", "value": "binary", "ttl": "string"},
            {},
            r"column 'ttl': expected a number, found string; cast it in the query",
        ),
        (
            {"value": "binary", "headers": "map<string,binary>"},
            {"topic": "t"},
            r"column 'headers': expected array<struct<key:string,value:binary>> or",
        ),
        (
            {"key": "binary", "value": "binary", "colour": "string"},
            {},
            r"unknown column 'colour'; .* \(version, shard, slot are left out\)",
        ),
        ({"value": "binary", "ttl": "int"}, {"topic": "t"}, r"unknown column 'ttl'"),
        (
            {"key": "binary", "value": "binary", "ttl": "int", "expires_at": "timestamp"},
            {},
            r"expected ttl or expires_at, found both",
        ),
        (
            {"key": "binary", "value": "binary", "expires_at": "timestamp"},
            {"ttl": "3"},
            r"the option ttl or a column expires_at, found both",
        ),
        ({"value": "binary"}, {"topic": "t", "ttl": "3"}, r"ttl: no option of a topic"),
        ({"key": "binary", "value": "binary"}, {"compression": "zstd"}, r"an option of topics"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_column(
    columns: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        used_columns(schema(columns), parse(options))
