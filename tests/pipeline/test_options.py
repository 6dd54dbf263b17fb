"""What a user says to the data source, and what is wrong with it."""

from __future__ import annotations

import pytest

from shardnode.pipeline.options import Options, check, parse
from shardnode.wire.errors import InvalidRequest


def test_nothing_said_is_the_table_of_keys_on_the_default_port() -> None:
    assert parse({}) == Options(connect=("127.0.0.1:7400",))


def test_names_are_known_whatever_their_case_and_aliases_too() -> None:
    found = parse({"SUBSCRIBE": "shop/orders", "maxOffsetsPerTrigger": "10", "Mode": "LOCAL"})
    assert (found.topic, found.maxrowspertrigger, found.access) == ("shop/orders", 10, "local")


def test_keys_are_text_or_what_the_encoding_says() -> None:
    assert parse({"prefix": "ü"}).prefix == "ü".encode()
    assert parse({"start": "00ff", "keyEncoding": "hex"}).start == b"\x00\xff"
    assert parse({"end": "AP8=", "keyEncoding": "base64"}).end == b"\x00\xff"


def test_offsets_are_words_times_or_numbers_by_partition() -> None:
    assert parse({"startingOffsets": "earliest"}).startingoffsets == "earliest"
    assert parse({"startingOffsets": "-10m"}).startingoffsets == "-10m"
    found = parse({"endingOffsets": '{"0": 23, "1": -2, "2": -1}'})
    assert found.endingoffsets == {0: 23, 1: -2, 2: -1}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prefx": "a"}, "did you mean prefix"),
        ({"topic": "a", "subscribe": "b"}, "given twice"),
        ({"connect": "a:1", "path": "d"}, "not both"),
        ({"topic": "a", "changes": "true"}, "not both"),
        ({"topic": "a", "prefix": "b"}, "no option of a topic"),
        ({"changes": "maybe"}, "true or false"),
        ({"minPartitions": "0"}, "from 1 up"),
        ({"prefix": "zz", "keyEncoding": "hex"}, "a key in hex"),
        ({"prefix": "zz", "keyEncoding": "rot13"}, "utf8, hex or base64"),
        ({"startingOffsets": "soon"}, "earliest, latest"),
        ({"startingOffsets": '{"0": "x"}'}, "JSON of partitions"),
        ({"startingOffsets": '{"0": -3}'}, "JSON of partitions"),
        ({"access": "teleport"}, "auto or local or remote"),
        ({"timeout": "-1"}, "above 0"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse(given)


def test_an_option_of_reading_is_refused_when_writing_and_the_other_way_round() -> None:
    with pytest.raises(InvalidRequest, match="prefix: no option when writing"):
        check({"prefix": "a"}, "write")
    with pytest.raises(InvalidRequest, match="ttl: no option when reading"):
        check({"ttl": "5"}, "readStream")
    check({"checkpointLocation": "x", "topic": "t"}, "writeStream")
