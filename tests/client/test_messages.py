"""Messages to batches and back: nothing is lost, and plain ones cost no Python each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.client.messages import (
    NO_HEADERS,
    Headers,
    Message,
    OutgoingMessage,
    to_batch,
    to_messages,
)
from shardnode.wire.batches import pack_batch
from shardnode.wire.errors import Corrupt, InvalidRequest, LimitExceeded
from shardnode.wire.streams import MessageBatch, MessagesFound
from tests.wire.test_cost import steps

STAMP_MS = 1_700_000_000_123
DATA = st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3)
OUTGOING = st.builds(OutgoingMessage, DATA, st.none() | DATA, st.none() | HEADERS)


def page(*batches: bytes, base: int = 0) -> MessagesFound:
    counts = [len(MessageBatch.decode(batch).values) for batch in batches]
    bases = [base + sum(counts[:place]) for place in range(len(counts))]
    end = base + sum(counts)
    stamps = [STAMP_MS + place for place in range(len(counts))]
    return MessagesFound(bases, counts, stamps, batches, end, base, end)


def values(messages: Sequence[Message]) -> list[bytes]:
    return [message.value for message in messages]


@given(st.lists(DATA | OUTGOING, min_size=1, max_size=20), st.none() | DATA)
def test_what_is_appended_is_what_is_read(messages: list[Any], key: bytes | None) -> None:
    batch = to_batch(messages, key)
    assert batch.size == len(messages)
    found = to_messages(page(batch.encoded, base=7), 3, 7)
    assert [message.offset for message in found] == [*range(7, 7 + len(messages))]
    for sent, got in zip(messages, found, strict=True):
        plain = isinstance(sent, bytes)
        assert got.value == (sent if plain else sent.value)
        assert got.key == (key if plain or sent.key is None else sent.key)
        assert got.headers.pairs == (() if plain else tuple(sent.headers or ()))
        assert got.headers == dict(got.headers.pairs)
        assert (got.partition, type(got)) == (3, Message)


def test_key_of_the_call_is_that_of_every_message_without_its_own() -> None:
    own = OutgoingMessage(b"2", "own")
    batch = to_batch(["1", own, OutgoingMessage(b"3", headers={"a": "1"})], "common")
    assert batch.key == b"common"
    found = to_messages(page(batch.encoded), 0, 0)
    assert [message.key for message in found] == [b"common", b"own", b"common"]
    assert to_batch([own, b"x"], None).key == b"own"
    assert to_batch([b"x", own], None).key is None
    assert MessageBatch.decode(to_batch([b"x", "y"], None).encoded).keys == []


def test_messages_know_when_they_were_appended() -> None:
    [one, other] = to_messages(
        page(to_batch([b"a"], None).encoded, to_batch([b"b"], None).encoded), 0, 0
    )
    assert one.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert other.timestamp > one.timestamp
    many = to_messages(page(to_batch([b"a"] * 100, None).encoded), 0, 0)
    assert len({id(message.timestamp) for message in many}) == 1


@pytest.mark.parametrize(
    ("start", "limit", "expected"),
    [(0, None, b"abcdef"), (1, None, b"bcdef"), (2, 3, b"cde"), (0, 3, b"abc"), (4, 1, b"e")],
)
def test_page_is_cut_to_what_was_asked_for(start: int, limit: int | None, expected: bytes) -> None:
    batches = [
        to_batch([b"%c" % letter for letter in part], b"k").encoded for part in (b"abc", b"def")
    ]
    found = to_messages(page(*batches), 0, start, limit)
    assert b"".join(values(found)) == expected
    assert [message.offset for message in found] == [*range(start, start + len(expected))]
    assert {message.key for message in found} == {b"k"}


def test_headers_of_a_cut_page_stay_with_their_messages() -> None:
    sent = [OutgoingMessage(b"%d" % n, headers=[("n", b"%d" % n)] * (n % 3)) for n in range(7)]
    found = to_messages(page(to_batch(sent, None).encoded), 0, 2, 3)
    assert [(m.value, m.headers.pairs) for m in found] == [
        (b"%d" % n, (("n", b"%d" % n),) * (n % 3)) for n in (2, 3, 4)
    ]


def test_compressed_batches_are_opened() -> None:
    encoded = to_batch([b"x" * 100] * 50, None).encoded
    packed = pack_batch(encoded, "zstd")
    assert packed != encoded
    found = MessagesFound([5], [50], [STAMP_MS], [packed], 55, 0, 55)
    assert values(to_messages(found, 0, 5)) == [b"x" * 100] * 50


def test_batch_that_nobody_can_read_is_told_with_its_place_and_the_one_behind_it() -> None:
    encoded = to_batch([b"a", b"b"], None).encoded
    for batch in (encoded, encoded[:-2], b"\x95\x93" + encoded[2:]):
        found = MessagesFound([5], [3], [STAMP_MS], [batch], 8, 0, 8)
        with pytest.raises(Corrupt, match=r"the 3 messages from offset 5 of partition 0.*offset 8"):
            to_messages(found, 0, 5)


def test_last_of_two_headers_counts_and_both_are_there() -> None:
    headers = Headers([("a", b"1"), ("b", b"2"), ("a", b"3")])
    assert headers == {"a": b"3", "b": b"2"}
    assert headers.pairs == (("a", b"1"), ("b", b"2"), ("a", b"3"))
    again = to_batch([OutgoingMessage(b"", headers=headers)], None)
    assert to_messages(page(again.encoded), 0, 0)[0].headers.pairs == headers.pairs


def test_headers_that_many_messages_share_cannot_be_changed() -> None:
    changes: list[Callable[[Any], object]] = [
        lambda h: h.update(a=b"1"),
        lambda h: h.setdefault("a", b"1"),
        lambda h: h.__setitem__("a", b"1"),
        lambda h: h.__delitem__("a"),
        lambda h: h.__ior__({"a": b"1"}),
        lambda h: h.pop("a"),
        lambda h: h.popitem(),
        lambda h: h.clear(),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="cannot be changed"):
            change(NO_HEADERS)
    assert NO_HEADERS == {}
    assert (NO_HEADERS | {"a": b"1"}) == {"a": b"1"}


def test_messages_survive_copies() -> None:
    sent = to_batch([OutgoingMessage(b"v", b"k", [("a", b"1"), ("a", b"2")])], None)
    [message] = to_messages(page(sent.encoded), 0, 0)
    for other in (copy.copy(message), copy.deepcopy(message)):
        assert other == message
        assert other.headers.pairs == message.headers.pairs


@pytest.mark.parametrize(
    "messages",
    [b"x", "x", bytearray(b"x"), memoryview(b"x"), OutgoingMessage(b"x"), 7, [7], [None]],
)
def test_what_is_no_list_of_messages_is_a_type_error(messages: Any) -> None:
    with pytest.raises(TypeError):
        to_batch(messages, None)
    with pytest.raises(TypeError):
        to_batch([OutgoingMessage(b"", headers={1: b""})], None)  # type: ignore[arg-type]


def test_batch_that_nobody_takes_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        to_batch([], None)
    with pytest.raises(LimitExceeded) as refused:
        to_batch([b""] * 10_001, None)
    assert refused.value.limit_name == "batch_messages_max"


def test_plain_messages_cost_no_python_each() -> None:
    def work(count: int) -> Callable[[], object]:
        batch = [b"%0100d" % number for number in range(count)]
        return lambda: to_messages(page(to_batch(batch, b"key").encoded), 0, 0)

    work(100)()
    # The kit's own look at the page costs the same for both.
    assert 0 < steps(work(100)) == steps(work(2_000))
