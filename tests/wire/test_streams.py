"""Streams, groups and control: batches stored as sent, names, and what belongs together."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits
from shardnode.wire.appends import check_batches
from shardnode.wire.cluster import Route
from shardnode.wire.codec import Body
from shardnode.wire.control import LeaderTransfer, MemberAdd, TopicCreate, TopicList, TopicsFound
from shardnode.wire.groups import (
    GroupDescribe,
    GroupFound,
    GroupJoin,
    GroupsFound,
    OffsetCommit,
    OffsetFetch,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import namespace_from_bytes, namespace_to_bytes, pack_namespace
from shardnode.wire.streams import (
    Append,
    AppendMany,
    MessageBatch,
    MessagesFound,
    Read,
    open_batch,
    pack_values,
)
from tests.wire.make_vectors import BATCH, EXAMPLES

VALUES = st.binary(max_size=50)
HEADERS = st.lists(st.tuples(st.text(max_size=20), VALUES), max_size=3)
MESSAGES = st.lists(st.tuples(VALUES, st.none() | VALUES, HEADERS), min_size=1, max_size=20)


@given(MESSAGES)
def test_any_batch_of_messages_arrives(messages: list[tuple[Any, ...]]) -> None:
    headers = [header for message in messages for header in message[2]]
    batch = MessageBatch(
        values=[message[0] for message in messages],
        keys=[message[1] for message in messages],
        header_counts=[len(message[2]) for message in messages],
        header_names=[name for name, _ in headers],
        header_values=[value for _, value in headers],
    )
    sent = Append(0, len(messages), batch.encode())
    assert open_batch(Append.decode(sent.encode()).batch, len(messages)) == batch


def test_batch_without_keys_and_headers_pays_for_neither() -> None:
    batch = MessageBatch([b"m"] * 1_000)
    assert len(batch.encode()) == 1_000 * len(msgpack.packb(b"m")) + len(b"\x95\xdc\x03\xe8") + 4
    assert MessageBatch.decode(batch.encode()).values == [b"m"] * 1_000


@given(st.lists(VALUES, min_size=1, max_size=40))
def test_values_alone_are_packed_as_any_batch(values: list[bytes]) -> None:
    assert pack_values(values) == MessageBatch(values).encode()


def test_values_that_are_too_many_or_too_large_are_refused_when_packed() -> None:
    with pytest.raises(errors.LimitExceeded, match="batch_messages_max"):
        pack_values([b""] * (limits.batch_messages_max + 1))
    with pytest.raises(errors.LimitExceeded, match="value_bytes_max"):
        pack_values([bytes(limits.value_bytes_max + 1)])
    with pytest.raises(errors.MalformedFrame):
        pack_values([])


@pytest.mark.parametrize("count", [1, 3])
def test_batch_with_another_count_than_it_says_is_refused(count: int) -> None:
    with pytest.raises(errors.MalformedFrame, match=f"a batch of {count} messages.*found 2"):
        open_batch(BATCH.encode(), count)
    with pytest.raises(errors.MalformedFrame, match=f"a batch of {count} messages.*found one of 2"):
        check_batches(Append(0, count, BATCH.encode()))


def test_batch_that_nobody_could_read_is_refused() -> None:
    with pytest.raises(errors.MalformedFrame):
        open_batch(BATCH.encode()[:-1], 2)


INVALID: list[tuple[str, Body]] = [
    ("at least one message", MessageBatch([])),
    ("no keys and header counts, or 2", replace(BATCH, keys=[None])),
    ("no keys and header counts, or 2", replace(BATCH, header_counts=[2])),
    ("2 headers.*found 2 names and 1 values", replace(BATCH, header_values=[b""])),
    ("2 headers.*found 1 names", replace(BATCH, header_names=["trace"])),
    ("0 headers.*found 2 names", replace(BATCH, header_counts=[])),
    ("batch as bin 1", Append(0, 1, b"")),
    ("count as int 1", Append(0, 0, b"\x90")),
    ("a count and a size for each batch", AppendMany(0, [1, 1], [1], b"x")),
    ("a count and a size for each batch", AppendMany(0, [1], [1], b"xx")),
    ("counts as array of int 1", AppendMany(0, [0], [1], b"x")),
    ("sizes as array of int 1", AppendMany(0, [1, 1], [0, 1], b"x")),
    ("one offset, count and time", MessagesFound([1], [1], [1], [], 0, 0, 0)),
    ("distinct partitions", OffsetCommit("g", 1, [], [])),
    ("distinct partitions", OffsetCommit("g", 1, [7, 7], [1, 2])),
    ("distinct partitions", OffsetCommit("g", 1, [7, 8], [1])),
    ("a generation and a number", GroupsFound(["g"], [1], [], None)),
    ("a member of the group", GroupFound(1, ["a"], [7], [1])),
    ("a member of the group", GroupFound(1, ["a"], [7, 8], [0])),
    ("the partitions of each topic", TopicsFound(["a/b"], [1], [1], [], None)),
    ("partitions as int 1", TopicCreate("a/b", 0)),
    ("node as int 1", LeaderTransfer(0)),
    ("topics as stream/topic", GroupJoin("g", None, ["orders"], 30_000)),
]
LONG = "n" * (limits.name_bytes_max + 1)
TOO_LARGE: list[tuple[str, Body]] = [
    ("value_bytes_max", MessageBatch([bytes(limits.value_bytes_max + 1)])),
    ("batch_messages_max", MessageBatch([b""] * (limits.batch_messages_max + 1))),
    ("key_bytes_max", MessageBatch([b""], [bytes(limits.key_bytes_max + 1)])),
    ("name_bytes_max", replace(BATCH, header_names=["ok", LONG])),
    ("name_bytes_max", replace(BATCH, header_names=["ok", "ü" * 128])),
    ("batch_bytes_max", Append(0, 1, bytes(limits.batch_bytes_max + 1))),
    ("append_batches_max", AppendMany(0, [1] * 65, [1] * 65, bytes(65))),
    ("namespace_max", Read(limits.namespace_max + 1, 0)),
    ("namespace_max", OffsetFetch("g", [0, limits.namespace_max + 1])),
    ("read_page_bytes_max", Read(0, 0, page_bytes=limits.read_page_bytes_max + 1)),
    ("read_wait_ms_max", Read(0, 0, wait_ms=limits.read_wait_ms_max + 1)),
    ("partitions_max", TopicCreate("a/b", limits.partitions_max + 1)),
    ("name_bytes_max", TopicCreate(f"{LONG}/b", 1)),
    ("name_bytes_max", TopicCreate(f"a/{LONG}", 1)),
    ("name_bytes_max", GroupDescribe(LONG)),
    ("endpoint_bytes_max", MemberAdd(1, "e" * 256)),
    ("list_entries_max", TopicList(limit=limits.list_entries_max + 1)),
]


@pytest.mark.parametrize(("said", "body"), INVALID)
def test_invalid_body_is_refused_on_both_sides(said: str, body: Body) -> None:
    with pytest.raises(errors.MalformedFrame, match=said):
        body.encode()
    with pytest.raises(errors.MalformedFrame, match=said):
        type(body).decode(msgpack.packb(astuple(body)))


@pytest.mark.parametrize(("limit", "body"), TOO_LARGE)
def test_what_is_too_large_is_refused_on_both_sides(limit: str, body: Body) -> None:
    with pytest.raises(errors.LimitExceeded) as sending:
        body.encode()
    with pytest.raises(errors.LimitExceeded) as receiving:
        type(body).decode(msgpack.packb(astuple(body)))
    assert {sending.value.limit_name, receiving.value.limit_name} == {limit}


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "...", ".hidden", "n" * 255])
def test_name_is_taken(name: str) -> None:
    assert GroupDescribe(name).encode()
    assert TopicCreate(f"default/{name}", 1).encode()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "a\n", "a\0", "{a}", "\udcff"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(errors.MalformedFrame, match="group as name"):
        GroupDescribe(name).encode()
    with pytest.raises(errors.MalformedFrame, match="name as stream/topic"):
        TopicCreate(f"default/{name}", 1).encode()
    with pytest.raises(errors.MalformedFrame, match="name as stream/topic"):
        TopicCreate(f"{name}/default", 1).encode()


def test_every_namespace_fits_its_limit_and_none_above_it_is_one() -> None:
    largest = pack_namespace(limits.stream_id_max, limits.topic_id_max, limits.partition_id_max)
    assert largest == limits.namespace_max
    with pytest.raises(errors.MalformedFrame):
        namespace_from_bytes(namespace_to_bytes(limits.namespace_max + 1))


def test_fullest_read_fits_into_a_body() -> None:
    """A page is closed once it has reached its size, so the last batch may be a largest one."""
    small = limits.read_page_batches_max - 1
    batches = [bytes(limits.read_page_bytes_max // small)] * small
    numbers = [2**64 - 1] * (small + 1)
    page = MessagesFound(
        numbers, numbers, numbers, [*batches, bytes(limits.batch_bytes_max)], 0, 0, 0
    )
    assert len(page.encode()) <= limits.body_bytes_max


def test_largest_message_fits_into_a_batch() -> None:
    largest = MessageBatch([bytes(limits.value_bytes_max)], [bytes(limits.key_bytes_max)])
    assert len(Append(0, 1, largest.encode()).encode()) <= limits.batch_bytes_max


def test_route_is_told_while_the_worker_is_down() -> None:
    _, route = EXAMPLES[Kind.EXPLAIN]
    assert isinstance(route, Route)
    down = replace(route, pid=None, core=None)
    assert Route.decode(down.encode()) == down
