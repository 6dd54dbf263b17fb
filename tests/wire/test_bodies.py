"""Bodies of requests and replies: equal on both sides, strict about types and limits."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import astuple, replace
from types import NoneType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits, replies, requests
from shardnode.wire.codec import Answer, Body, parts_of
from shardnode.wire.frames import ReturnAddress, build_reply, parse_reply
from shardnode.wire.kinds import ChangeKind, Consistency, Kind, Operation
from shardnode.wire.requests import REQUESTS, Cas, DeleteMany, Get, GetMany, Put, PutMany, Scan
from tests.wire.make_vectors import EXAMPLES, STATUS, TOPOLOGY, TRANSACT

BODIES = {type(body): body for pair in EXAMPLES.values() for body in pair}
KEYS = st.binary(min_size=1, max_size=limits.key_bytes_max)
VALUES = st.binary(max_size=200)
U64 = st.integers(0, 2**64 - 1)


def pack(*fields: Any) -> bytes:
    """A body as a peer could send it that checks nothing."""
    packed: bytes = msgpack.packb(fields)
    return packed


def each(classes: Collection[type[Body]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cls", classes, ids=lambda cls: cls.__name__)


def test_every_kind_has_a_request_a_reply_and_an_example() -> None:
    assert set(REQUESTS) == set(replies.REPLIES) == set(EXAMPLES) == set(Kind)
    for kind, (request, reply) in EXAMPLES.items():
        assert (type(request), type(reply)) == (REQUESTS[kind], replies.REPLIES[kind])


@each(BODIES)
def test_body_arrives_as_it_was_sent(cls: type[Body]) -> None:
    encoded = BODIES[cls].encode()
    assert cls.decode(encoded) == BODIES[cls]
    assert cls.decode(memoryview(encoded)) == BODIES[cls]


@each(BODIES)
def test_body_is_its_fields_in_order(cls: type[Body]) -> None:
    """A client in another language needs nothing but msgpack and the table of fields."""
    assert msgpack.unpackb(BODIES[cls].encode()) == [
        list(field) if isinstance(field, tuple) else field for field in astuple(BODIES[cls])
    ]


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=50), st.integers(0, limits.ttl_ms_max))
def test_any_batch_of_distinct_keys_arrives(entries: dict[bytes, bytes], ttl_ms: int) -> None:
    batch = PutMany(list(entries), list(entries.values()), ttl_ms)
    assert PutMany.decode(batch.encode()) == batch


@given(st.lists(st.tuples(KEYS, VALUES, U64, U64), max_size=20), st.none() | KEYS, st.booleans())
def test_any_page_arrives(
    entries: list[tuple[Any, ...]], next_: bytes | None, keys_only: bool
) -> None:
    keys, values, versions, times = ([entry[n] for entry in entries] for n in range(4))
    page = replies.Page(keys, [] if keys_only else values, versions, times, next_)
    assert replies.Page.decode(page.encode()) == page


@given(st.lists(st.tuples(st.sampled_from(ChangeKind), KEYS, st.none() | VALUES, U64, U64)), U64)
def test_any_changes_arrive(changes: list[tuple[Any, ...]], next_: int) -> None:
    kinds, keys, values, versions, positions = ([change[n] for change in changes] for n in range(5))
    sent = replies.Changes(bytes(kinds), keys, values, versions, positions, next_, versions)
    assert replies.Changes.decode(sent.encode()) == sent


@given(st.lists(st.none() | VALUES, max_size=50))
def test_any_values_found_arrive(values: list[bytes | None]) -> None:
    assert replies.Found.decode(replies.Found(values).encode()).values == values


WRONG: tuple[object, ...] = ("text", b"bytes", 7, -1, 2**64 - 1, 1.5, None, True, [], [None], {})


@each(BODIES)
def test_no_field_takes_a_value_of_another_type(cls: type[Body]) -> None:
    """Whatever stands in a field's place is refused, or arrives as the very same value."""
    fields = list(astuple(BODIES[cls]))
    for at, (name, field) in enumerate(parts_of(cls)):
        arrived = []
        for wrong in WRONG:
            with suppress(errors.InvalidRequest):
                taken = cls.decode(pack(*fields[:at], wrong, *fields[at + 1 :]))
                arrived.append((getattr(taken, name), wrong))
        for value, wrong in arrived:
            assert value == wrong
            assert type(value) is type(wrong)
        # A field has at most one type besides nil, so one kind of value and nil at the most.
        assert len({type(value) for value, _ in arrived} - {NoneType}) <= 1, field.about


@each([cls for cls in BODIES if parts_of(cls)])
def test_body_with_a_field_less_is_refused(cls: type[Body]) -> None:
    fields = astuple(BODIES[cls])
    with pytest.raises(errors.MalformedFrame, match=f"{len(fields)} fields of"):
        cls.decode(pack(*fields[:-1]))


@each(BODIES)
def test_only_replies_may_have_a_field_more(cls: type[Body]) -> None:
    """Ignoring what a request adds could change what it means."""
    body = pack(*astuple(BODIES[cls]), {"newer": [1, [2, [3]]]})
    if issubclass(cls, Answer):
        assert cls.decode(body) == BODIES[cls]
    else:
        with pytest.raises(errors.MalformedFrame, match="fields of"):
            cls.decode(body)


@each(BODIES)
def test_nothing_may_follow_a_body(cls: type[Body]) -> None:
    with pytest.raises(errors.MalformedFrame, match="end of the body, found 1 more"):
        cls.decode(BODIES[cls].encode() + b"\xc0")


@each(BODIES)
def test_no_body_nests_deeper_than_the_limit(cls: type[Body]) -> None:
    """Level one is the body, two its columns; a container inside those is refused."""
    fields = list(astuple(BODIES[cls]))
    for at in range(len(fields)):
        for deeper in ([[1]], [{1: 1}], {1: 1}):
            with pytest.raises(errors.InvalidRequest):
                cls.decode(pack(*fields[:at], deeper, *fields[at + 1 :]))
    assert limits.body_depth_max == 2


LONG_KEY = b"k" * (limits.key_bytes_max + 1)
BIG_VALUE = bytes(limits.value_bytes_max + 1)
MANY_KEYS = [b"%d" % n for n in range(limits.batch_keys_max + 1)]

TOO_LARGE: list[tuple[str, Body]] = [
    ("key_bytes_max", Put(LONG_KEY, b"")),
    ("key_bytes_max", PutMany([b"a", LONG_KEY], [b"", b""])),
    ("key_bytes_max", GetMany([b"a", LONG_KEY])),
    ("key_bytes_max", Scan(start=LONG_KEY)),
    ("value_bytes_max", Put(b"k", BIG_VALUE)),
    ("value_bytes_max", PutMany([b"a", b"b"], [b"", BIG_VALUE])),
    ("value_bytes_max", Cas(b"k", BIG_VALUE, 0)),
    ("value_bytes_max", replace(TRANSACT, compare_operands=[7, BIG_VALUE])),
    ("value_bytes_max", replies.Found([None, BIG_VALUE])),
    ("batch_keys_max", DeleteMany(MANY_KEYS)),
    ("batch_keys_max", replies.Found([None] * (limits.batch_keys_max + 1))),
    ("ttl_ms_max", Put(b"k", b"", ttl_ms=limits.ttl_ms_max + 1)),
    ("ttl_ms_max", replace(TRANSACT, then_ttls_ms=[limits.ttl_ms_max + 1, 0])),
    ("scan_page_entries_max", Scan(limit=limits.scan_page_entries_max + 1)),
    ("scan_page_bytes_max", Scan(page_bytes=limits.scan_page_bytes_max + 1)),
    ("watch_wait_ms_max", requests.Watch(wait_ms=limits.watch_wait_ms_max + 1)),
    ("session_ttl_ms_max", requests.SessionOpen(limits.session_ttl_ms_max + 1)),
    ("transact_operations_max", replace(TRANSACT, compare_kinds=b"\1" * 1001)),
    ("transact_operations_max", replace(TRANSACT, then_keys=[b"%d" % n for n in range(1001)])),
]


@pytest.mark.parametrize(("limit", "body"), TOO_LARGE)
def test_what_is_too_large_is_refused_on_both_sides_by_the_name_of_its_limit(
    limit: str, body: Body
) -> None:
    with pytest.raises(errors.LimitExceeded, match=f"at most .*{limit}.*found") as sending:
        body.encode()
    with pytest.raises(errors.LimitExceeded) as receiving:
        type(body).decode(pack(*astuple(body)))
    for error in (sending.value, receiving.value):
        assert (error.limit_name, error.limit) == (limit, getattr(limits, limit))


def test_batch_larger_than_a_body_is_refused_before_it_is_sent() -> None:
    keys = [b"%d" % n for n in range(5)]
    with pytest.raises(errors.LimitExceeded, match="body_bytes_max"):
        PutMany(keys, [bytes(limits.value_bytes_max)] * 5).encode()


INVALID: list[tuple[str, Body]] = [
    ("key as bin 1..key_bytes_max, found b''", Put(b"", b"")),
    ("keys as .* found b''", GetMany([b"a", b""])),
    ("keys that are distinct", PutMany([b"a", b"a"], [b"", b""])),
    ("keys that are distinct", DeleteMany([b"a", b"b", b"a"])),
    ("as many keys as values, found 2 keys, 1 values", PutMany([b"a", b"b"], [b""])),
    ("at least one key", PutMany([], [])),
    ("at least one key", GetMany([])),
    ("at least one key", DeleteMany([])),
    ("at least one key", requests.Transact(b"", [], [], b"", [], [], [], b"", [], [], [])),
    ("ttl_ms as int 0", Put(b"k", b"", ttl_ms=-1)),
    ("ttl_ms as int 1000", requests.SessionOpen(limits.session_ttl_ms_min - 1)),
    ("an int to compare by VERSION_EQUAL", replace(TRANSACT, compare_operands=[b"7", b"old"])),
    ("bytes to compare by VALUE_NOT", replace(TRANSACT, compare_operands=[7, 8])),
    ("as many compare_kinds as", replace(TRANSACT, compare_kinds=b"\1")),
    ("as many kinds as keys", replace(TRANSACT, then_kinds=bytes([Operation.PUT]))),
    ("each key once", replace(TRANSACT, then_keys=[b"{a}:1", b"{a}:1"])),
    ("PUT without a value", replace(TRANSACT, then_values=[None, None])),
    ("DELETE with a value", replace(TRANSACT, then_values=[b"new", b""])),
    ("GET without a value, TTL 5", replace(TRANSACT, otherwise_ttls_ms=[5])),
    (r"then_kinds as .*Operation, found \[4\]", replace(TRANSACT, then_kinds=b"\1\4")),
    ("a page of 1 keys", replies.Page([b"a"], [b"", b""], [1], [0], None)),
    ("a page of 1 keys", replies.Page([b"a"], [b""], [], [0], None)),
    ("one kind, key, value", replies.Changes(b"\1", [b"a"], [None], [1], [], 0)),
    ("an endpoint for each", replace(TOPOLOGY, node_ids=[1])),
    ("an endpoint for each", replace(TOPOLOGY, replica_shards=[1])),
    ("columns of 2 shards", replace(STATUS, terms=[1])),
]


@pytest.mark.parametrize(("said", "body"), INVALID)
def test_invalid_body_is_refused_on_both_sides_with_what_was_expected(
    said: str, body: Body
) -> None:
    with pytest.raises(errors.MalformedFrame, match=said):
        body.encode()
    with pytest.raises(errors.MalformedFrame, match=said):
        type(body).decode(pack(*astuple(body)))


def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.MalformedFrame, match="cluster as str"):
        replace(STATUS, cluster="\udcff").encode()


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"1 PUT, 2 PUT_MANY.*found 77"):
        requests.decode_request(77, b"\x90")


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_body_is_decoded_by_the_kind_of_its_header(kind: Kind) -> None:
    request, answer = EXAMPLES[kind]
    assert requests.decode_request(int(kind), request.encode()) == request
    address = ReturnAddress(False, True, kind, 1)
    reply = parse_reply(build_reply(address, answer.encode(), shard=0))
    assert replies.decode_reply(reply) == answer


def test_reply_to_an_unknown_kind_is_refused() -> None:
    reply = parse_reply(build_reply(ReturnAddress(False, True, 77, 1), b"\x90", shard=0))
    with pytest.raises(errors.MalformedFrame, match="kind 77"):
        replies.decode_reply(reply)


@given(st.binary(max_size=6), st.binary(max_size=8))
def test_prefix_range_holds_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    start, end = requests.prefix_range(prefix)
    for candidate in (key, prefix, prefix + key, prefix[:-1] + key):
        inside = candidate >= start and (end is None or candidate < end)
        assert inside == candidate.startswith(prefix)


def test_defaults_ask_for_the_strongest_read() -> None:
    assert Get(b"k").consistency is Scan().consistency is Consistency.LINEARIZABLE
    assert GetMany.decode(pack([b"k"], 2)).consistency is Consistency.STALE
