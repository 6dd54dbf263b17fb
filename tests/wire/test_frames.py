"""Frames: what is built is parsed again, and whatever else comes is refused by type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits
from shardnode.wire.frames import (
    NO_CLIENT,
    NO_SHARD,
    PLACE_FOR_ME,
    REPLY_HEADER_BYTES,
    REQUEST_HEADER_BYTES,
    Frame,
    ReturnAddress,
    build_reply,
    build_request,
    parse_reply,
    parse_request,
    return_address,
)
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.replies import build_error, decode_reply

U64 = st.integers(0, 2**64 - 1)
PREFIXES = st.none() | st.integers(0, limits.shard_id_max) | st.just(PLACE_FOR_ME)


def simple(prefix: int | None = 3, delimited: bool = False) -> list[bytes]:
    message = build_request(
        Kind.PUT, b"body", prefix=prefix, routing_key=b"key", sequence=5, delimited=delimited
    )
    return [bytes(frame) for frame in message]


@given(
    prefix=PREFIXES,
    delimited=st.booleans(),
    kind=st.integers(0, 2**16 - 1),
    flags=st.sampled_from([0, Flag.NAMESPACE, Flag.FORWARDED, 1 << 31]),
    deadline_ms=st.integers(0, limits.deadline_ms_max),
    epoch=U64,
    client_id=st.binary(min_size=16, max_size=16),
    counters=st.tuples(U64, U64).map(sorted),
    routing_key=st.binary(max_size=limits.routing_key_bytes_max),
    body=st.binary(max_size=100),
    views=st.booleans(),
)
def test_request_is_parsed_as_it_was_built(
    prefix: int | None,
    delimited: bool,
    kind: int,
    flags: int,
    deadline_ms: int,
    epoch: int,
    client_id: bytes,
    counters: list[int],
    routing_key: bytes,
    body: bytes,
    views: bool,
) -> None:
    acked_below, sequence = counters
    message = build_request(
        kind,
        body,
        prefix=prefix,
        routing_key=routing_key,
        flags=flags,
        deadline_ms=deadline_ms,
        epoch=epoch,
        client_id=client_id,
        sequence=sequence,
        acked_below=acked_below,
        delimited=delimited,
    )
    request = parse_request([memoryview(frame) for frame in message] if views else message)
    header = (1, kind, flags, deadline_ms, epoch, client_id, sequence, acked_below)
    address = request.return_address()
    assert type(request.routing_key) is bytes
    assert request == (prefix, delimited, header, routing_key, body)
    assert address == return_address(message) == (delimited, prefix is not None, kind, sequence)


@given(
    to=st.builds(ReturnAddress, st.booleans(), st.booleans(), st.integers(0, 2**16 - 1), U64),
    shard=st.none() | st.integers(0, limits.shard_id_max),
    code=st.integers(0, 2**16 - 1),
    epoch=U64,
    log_index=U64,
    body=st.binary(max_size=100),
)
def test_reply_is_parsed_as_it_was_built(
    to: ReturnAddress, shard: int | None, code: int, epoch: int, log_index: int, body: bytes
) -> None:
    message = build_reply(to, body, shard=shard, code=code, epoch=epoch, log_index=log_index)
    reply = parse_reply(message)
    assert reply.shard == (shard if to.sharded else None)
    assert (reply.delimited, reply.body) == (to.delimited, body)
    assert reply.header == (1, to.kind, code, 0, 1, 1, epoch, log_index, to.sequence)


def test_layouts_are_as_long_as_documented_and_never_like_a_prefix() -> None:
    assert (REQUEST_HEADER_BYTES, REPLY_HEADER_BYTES) == (56, 40)


def test_prefix_is_big_endian() -> None:
    assert simple(prefix=3)[0] == b"\x00\x00\x00\x03"
    assert simple(prefix=PLACE_FOR_ME)[0] == b"\xff\xff\xff\xff"


def test_reply_has_a_prefix_exactly_when_the_request_had_one() -> None:
    for prefix, first in ((7, b"\0\0\0\x07"), (None, b"SNRP")):
        address = parse_request(simple(prefix)).return_address()
        assert bytes(build_reply(address, b"", shard=7)[0][:4]) == first


def test_delimiter_is_echoed() -> None:
    address = parse_request(simple(delimited=True)).return_address()
    assert build_reply(address, b"", shard=3)[:2] == [b"", b"\0\0\0\x03"]


def test_reply_of_the_router_names_no_shard() -> None:
    message = build_reply(ReturnAddress(False, True, 1, 1), b"", shard=None)
    assert int.from_bytes(message[0], "big") == NO_SHARD
    assert parse_reply(message).shard is None


def changed(at: int, frame: bytes) -> list[bytes]:
    message = simple()
    message[at] = frame
    return message


HEADER = simple()[1]
REFUSED: dict[str, tuple[list[bytes], type[errors.InvalidRequest], str]] = {
    "short prefix": (changed(0, b"\0\0\3"), errors.MalformedFrame, "exactly 4 bytes, found 3"),
    "long prefix": (changed(0, bytes(5)), errors.MalformedFrame, "exactly 4 bytes, found 5"),
    "unknown prefix": (changed(0, b"\0\0\0\x64"), errors.MalformedFrame, "shard_id_max.*found 100"),
    "short legacy header": (
        [HEADER[:4], b"key", b"body"],
        errors.MalformedFrame,
        "3 frames, or 4 with a shard prefix.*found 3 of",
    ),
    "wrong magic": (changed(1, b"HTTP" + HEADER[4:]), errors.MalformedFrame, "b'SNRQ', found b'HT"),
    "empty header": (changed(1, b""), errors.MalformedFrame, "b'SNRQ', found b''"),
    "short header": (changed(1, HEADER[:-1]), errors.MalformedFrame, "56 bytes, found 55"),
    "long header": (changed(1, HEADER + b"\0"), errors.MalformedFrame, "56 bytes.*found 57"),
    "unknown version": (
        changed(1, HEADER[:4] + b"\0\x02" + HEADER[6:] + b"more"),
        errors.UnsupportedVersion,
        "from 1 to 1, found 2",
    ),
    "version 0": (
        changed(1, HEADER[:4] + b"\0\0" + HEADER[6:]),
        errors.UnsupportedVersion,
        "from 1 to 1, found 0",
    ),
    "unknown flag that matters": (
        changed(1, HEADER[:8] + b"\0\0\x80\0" + HEADER[12:]),
        errors.MalformedFrame,
        "only flags known.*0x8000",
    ),
    "deadline too long": (
        changed(1, HEADER[:12] + b"\xff" * 4 + HEADER[16:]),
        errors.LimitExceeded,
        "deadline_ms_max",
    ),
    "acked beyond itself": (
        changed(1, HEADER[:-8] + b"\xff" * 8),
        errors.MalformedFrame,
        "with sequence 5",
    ),
    "routing key too long": (
        changed(2, bytes(limits.routing_key_bytes_max + 1)),
        errors.LimitExceeded,
        "routing_key_bytes_max",
    ),
    "body too long": (
        changed(3, bytes(limits.body_bytes_max + 1)),
        errors.LimitExceeded,
        "body_bytes_max",
    ),
    "no frames": ([], errors.MalformedFrame, "found 0"),
    "only a delimiter": ([b""], errors.MalformedFrame, "found 0"),
    "frame missing": (simple()[:3], errors.MalformedFrame, "found 3 of"),
    "frame too many": ([*simple(), b""], errors.MalformedFrame, "found 5 of"),
    "many frames": ([b""] * 1000, errors.LimitExceeded, "frames_max"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_request_is_refused_with_what_was_expected(name: str) -> None:
    message, error, said = REFUSED[name]
    with pytest.raises(error, match=said) as raised:
        parse_request(message)
    assert type(raised.value) is error
    assert "; " in str(raised.value)  # … and what to do


def test_any_later_version_can_be_answered_with_the_range_spoken_here() -> None:
    message: list[Frame] = [*changed(1, HEADER[:4] + b"\0\x07" + HEADER[6:] + b"newer fields")]
    with pytest.raises(errors.UnsupportedVersion) as raised:
        parse_request(message)
    reply = parse_reply(build_error(return_address(message), raised.value, shard=None))
    assert (reply.header.kind, reply.header.sequence) == (Kind.PUT, 5)
    assert (reply.header.version_min, reply.header.version_max) == (1, 1)
    with pytest.raises(errors.UnsupportedVersion) as told:
        decode_reply(reply)
    assert (told.value.version_min, told.value.version_max) == (1, 1)


@pytest.mark.parametrize(
    ("message", "address"),
    [
        ([], (False, False, 0, 0)),
        ([b""], (True, False, 0, 0)),
        ([b"\0\0\0\1"], (False, True, 0, 0)),
        ([b"", b"\0\0\0\1", b"garbage"], (True, True, 0, 0)),
        ([b"", b"\0\0\0\1", bytes(56)], (True, True, 0, 0)),
        ([HEADER], (False, False, Kind.PUT, 5)),
    ],
)
def test_return_address_is_read_as_far_as_it_goes(
    message: list[bytes], address: ReturnAddress
) -> None:
    assert return_address(message) == address


def test_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.LimitExceeded, match="deadline_ms_max"):
        build_request(Kind.GET, b"", prefix=0, deadline_ms=limits.deadline_ms_max + 1)
    with pytest.raises(errors.MalformedFrame, match="shard_id_max"):
        build_request(Kind.GET, b"", prefix=limits.shards_max)
    with pytest.raises(AssertionError):
        build_request(Kind.GET, b"", prefix=0, client_id=b"short")
    with pytest.raises(errors.LimitExceeded, match="body_bytes_max"):
        build_reply(ReturnAddress(False, True, 1, 1), bytes(limits.body_bytes_max + 1), shard=0)


def test_request_is_no_reply_and_a_reply_no_request() -> None:
    request = simple()
    with pytest.raises(errors.MalformedFrame, match="SNRP"):
        parse_reply([request[0], request[1], request[3]])
    reply = build_reply(ReturnAddress(False, True, 1, 1), b"", shard=0)
    with pytest.raises(errors.MalformedFrame, match="SNRQ"):
        parse_request([*reply[:2], b"key", b"body"])


def test_no_client_is_the_id_of_requests_without_a_session() -> None:
    assert parse_request(simple()).header.client_id == NO_CLIENT == bytes(16)
