"""Append requests as a shard takes them apart: the same as decoding them, without copies."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import limits
from shardnode.wire.appends import (
    check_batches,
    pack_append_many,
    view_append,
    view_append_many,
)
from shardnode.wire.batches import ZSTD_MAGIC, pack_batch
from shardnode.wire.errors import InvalidRequest, LimitExceeded, MalformedFrame
from shardnode.wire.streams import Append, AppendMany, MessageBatch

ASKS = st.builds(
    Append,
    st.integers(0, limits.namespace_max),
    st.integers(1, limits.batch_messages_max),
    st.binary(min_size=1, max_size=70_000),
    st.binary(max_size=limits.name_bytes_max),
    st.integers(0, (1 << 64) - 1),
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(0, 1 << 63) | st.binary(max_size=9) | st.text(),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=8,
)


def decoded(body: bytes) -> Append | type[Exception]:
    try:
        return Append.decode(body)
    except InvalidRequest as error:
        return type(error)


def viewed(body: bytes) -> Append | type[Exception]:
    try:
        return view_append(body)
    except InvalidRequest as error:
        return type(error)


@given(ASKS)
def test_every_request_is_taken_apart_as_it_was_sent(ask: Append) -> None:
    found = view_append(ask.encode())
    assert found == ask
    assert type(found.batch).__name__ == "memoryview", "a view, not a copy"
    assert view_append(memoryview(ask.encode())) == ask


@given(st.lists(ANY, max_size=6) | ANY)
def test_anything_else_gets_the_error_of_the_decoder(value: Any) -> None:
    body = msgpack.packb(value)
    assert viewed(body) == decoded(body)


def test_damaged_bodies_are_never_taken_for_others() -> None:
    random = Random(5)
    body = Append(1 << 40, 300, bytes(300), b"producer", 70_000).encode()
    for cut in range(len(body)):
        assert viewed(body[:cut]) == decoded(body[:cut])
    for _ in range(2_000):
        changed = bytearray(body)
        changed[random.randrange(len(body))] = random.randrange(256)
        assert viewed(bytes(changed)) == decoded(bytes(changed))


def many_decoded(body: bytes) -> AppendMany | type[Exception]:
    try:
        return AppendMany.decode(body)
    except InvalidRequest as error:
        return type(error)


def many_viewed(body: bytes) -> AppendMany | type[Exception]:
    try:
        return view_append_many(body)
    except InvalidRequest as error:
        return type(error)


@given(
    st.integers(0, limits.namespace_max),
    st.lists(
        st.tuples(st.integers(1, limits.batch_messages_max), st.binary(min_size=1, max_size=9_000)),
        min_size=1,
        max_size=limits.append_batches_max,
    ),
)
def test_several_batches_are_packed_and_taken_apart(
    space: int, given: list[tuple[int, bytes]]
) -> None:
    counts, batches = map(list, zip(*given, strict=True))
    body = pack_append_many(space, counts, batches)
    ask = AppendMany(space, counts, [*map(len, batches)], b"".join(batches))
    assert body == ask.encode()
    found = view_append_many(memoryview(body))
    assert found == ask
    assert type(found.batches).__name__ == "memoryview", "a view, not a copy"
    assert [*found.each()] == given


@given(st.lists(ANY, max_size=6) | ANY)
def test_anything_else_instead_of_several_gets_the_error_of_the_decoder(value: Any) -> None:
    body = msgpack.packb(value)
    assert many_viewed(body) == many_decoded(body)


def test_damaged_bodies_of_several_are_never_taken_for_others() -> None:
    random = Random(6)
    body = pack_append_many(1 << 40, [1, 300, 7], [bytes(9), bytes(300), bytes(70)])
    for cut in range(len(body)):
        assert many_viewed(body[:cut]) == many_decoded(body[:cut])
    for _ in range(2_000):
        changed = bytearray(body)
        changed[random.randrange(40)] = random.randrange(256)
        assert many_viewed(bytes(changed)) == many_decoded(bytes(changed))


def test_each_of_several_batches_is_looked_at() -> None:
    good, other = MessageBatch([b"a", b"b"]).encode(), b"no batch"
    view = view_append_many(pack_append_many(0, [2, 2], [good, good]))
    check_batches(view)
    for counts, batches in (([2, 3], [good, good]), ([2, 1], [good, other])):
        with pytest.raises(MalformedFrame):
            check_batches(view_append_many(pack_append_many(0, counts, batches)))


@pytest.mark.parametrize("count", [1, 15, 16, 1_000, 10_000])
def test_batch_begins_with_its_count(count: int) -> None:
    encoded = MessageBatch([b"m" * 3] * count).encode()
    check_batches(Append(0, count, encoded))
    check_batches(Append(0, count, pack_batch(encoded, "zstd")))
    for other in (1 + count % limits.batch_messages_max, max(1, count - 1)):
        if other != count:
            with pytest.raises(MalformedFrame, match=f"found one of {count}"):
                check_batches(Append(0, other, encoded))


@pytest.mark.parametrize("batch", [b"\x95", b"\x94\x91", b"no batch", b"\x95\xc0", b"\x95\xdc\x00"])
def test_what_begins_otherwise_is_no_batch(batch: bytes) -> None:
    with pytest.raises(MalformedFrame, match="MessageBatch"):
        check_batches(Append(0, 1, batch))


def test_frame_has_to_say_its_size_within_the_limit() -> None:
    head = ZSTD_MAGIC + b"\xa0"
    check_batches(Append(0, 1, head + limits.batch_bytes_max.to_bytes(4, "little") + bytes(9)))
    with pytest.raises(LimitExceeded):
        check_batches(Append(0, 1, head + (1 << 31).to_bytes(4, "little") + bytes(9)))
    with pytest.raises(MalformedFrame):
        check_batches(Append(0, 1, ZSTD_MAGIC))
