"""The [limits] of a node: what asks for too much is refused by name, and nothing else is."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from shardnode.node.config import Limits
from shardnode.shard.bounds import Bounds
from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.control import TopicAlter, TopicCreate
from shardnode.wire.errors import LimitExceeded, Overloaded
from shardnode.wire.frames import build_request
from shardnode.wire.kinds import Kind, Operation
from shardnode.wire.placement import initial_table
from shardnode.wire.replies import decode_reply
from shardnode.wire.requests import (
    Cas,
    DeleteMany,
    GetMany,
    Put,
    PutMany,
    SessionOpen,
    Transact,
)
from shardnode.wire.streams import Append
from tests.shard.desk import CLIENT, Counter
from tests.shard.test_stream_service import SPACE, bare, batch, counter

SMALL = {"value_bytes": 3, "batch_keys": 2, "batch_messages": 2, "batch_bytes": 20, "sessions": 1}
PUT = bytes([Operation.PUT])


def test_every_setting_of_the_section_is_a_bound_of_a_worker() -> None:
    assert {part.name for part in fields(Bounds)} == {part.name for part in fields(Limits)}
    assert asdict(Bounds()) == asdict(Limits())
    assert Bounds.of(SMALL) == Bounds(**SMALL)


@pytest.mark.parametrize(
    ("name", "fits", "asks_too_much"),
    [
        ("value_bytes", Put(b"k", b"123"), Put(b"k", b"1234")),
        ("value_bytes", Cas(b"k", b"123", 0), Cas(b"k", b"1234", 0)),
        ("value_bytes", PutMany([b"a", b"b"], [b"", b"123"]), PutMany([b"a"], [b"1234"])),
        (
            "value_bytes",
            Transact(b"", [], [], PUT, [b"k"], [b"123"], [0], b"", [], [], []),
            Transact(b"", [], [], b"", [], [], [], PUT, [b"k"], [b"1234"], [0]),
        ),
        ("batch_keys", GetMany([b"a", b"b"]), GetMany([b"a", b"b", b"c"])),
        ("batch_keys", DeleteMany([b"a", b"b"]), DeleteMany([b"a", b"b", b"c"])),
        ("batch_messages", Append(1, 2, b"x"), Append(1, 3, b"x")),
        ("batch_bytes", Append(1, 1, bytes(20)), Append(1, 1, bytes(21))),
    ],
)
def test_too_much_is_refused_by_name_and_what_fits_is_not(
    name: str, fits: Body, asks_too_much: Body
) -> None:
    bounds = Bounds.of(SMALL)
    bounds.check(fits, 0)
    with pytest.raises(LimitExceeded, match=rf"limits\.{name}"):
        bounds.check(asks_too_much, 0)
    Bounds().check(asks_too_much, 0)


def tight(desk: Counter, **section: Any) -> Counter:
    desk.service._bounds = Bounds.of(section)
    return desk


def test_sessions_beyond_the_limit_are_refused_before_they_are_logged() -> None:
    desk = tight(Counter(), sessions=1)
    desk.ask(Kind.SESSION_OPEN, SessionOpen(1_000), client_id=CLIENT)
    index = desk.replica.log.last_index
    with pytest.raises(LimitExceeded, match=r"limits\.sessions"):
        desk.ask(Kind.SESSION_OPEN, SessionOpen(1_000), client_id=bytes(15) + b"\x09")
    assert desk.replica.log.last_index == index


def test_full_partition_refuses_more_and_delays_no_other() -> None:
    desk = tight(counter(), inflight_requests=2)
    put = build_request(Kind.PUT, Put(b"k", b"v").encode(), prefix=0)
    append = build_request(Kind.APPEND, Append(SPACE, 1, batch(b"x")).encode(), prefix=0)
    replies = desk.drain(put, put, put, append)
    assert [reply.header.code for reply in replies].count(0) == 3
    (refused,) = [reply for reply in replies if reply.header.code]
    with pytest.raises(Overloaded) as error:
        decode_reply(refused)
    assert (error.value.lag, error.value.limit) == (2, 2)
    assert all(reply.header.code == 0 for reply in desk.drain(put, put)), "room again"


def test_topics_that_would_fill_a_shard_are_refused_with_its_number() -> None:
    desk = tight(bare(), partitions=3)
    desk.ask(Kind.TOPIC_CREATE, TopicCreate("a/b", 2))
    with pytest.raises(LimitExceeded, match=r"limits\.partitions\), found 4 in shard 0"):
        desk.ask(Kind.TOPIC_CREATE, TopicCreate("a/c", 2))
    with pytest.raises(LimitExceeded, match=r"limits\.partitions"):
        desk.ask(Kind.TOPIC_ALTER, TopicAlter("a/b", partitions=4))
    desk.ask(Kind.TOPIC_ALTER, TopicAlter("a/b", retention_ms=5))
    desk.ask(Kind.TOPIC_CREATE, TopicCreate("a/c", 1))
    topics = desk.effects.control.topics
    wanted = topics.partitions_with(TopicCreate("x/y", 8), initial_table(4))
    assert sum(wanted.values()) == 11
    assert max(wanted.values()) <= 5, "they spread"


def test_what_was_recovered_is_compared_with_the_limit_and_named() -> None:
    bounds = Bounds.of({"partitions": 2})
    assert bounds.recovered([5, 6]) == ""
    assert "limits.partitions), found 3, the first beyond it namespace 0x7" in bounds.recovered(
        [7, 5, 6]
    )


def test_defaults_are_not_above_the_protocol() -> None:
    assert Bounds().value_bytes == limits.value_bytes_max
    assert Bounds().batch_bytes == limits.batch_bytes_max
