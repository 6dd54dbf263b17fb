"""Groups from outside: listed, described with their lag, and moved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardnode import AsyncClient, Client
from shardnode.client import operations
from shardnode.client.values import GroupPartition
from shardnode.wire import limits
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import Conflict, Corrupt, InvalidRequest, NotFound, Unavailable
from shardnode.wire.groups import (
    GroupAssigned,
    GroupLeft,
    GroupReleased,
    OffsetCommit,
    OffsetsCommitted,
)
from shardnode.wire.kinds import Kind
from tests.client.consumer_kit import filled, read, until
from tests.client.fake import FakeNode
from tests.client.kit import Bench

TOPIC = TopicFound("default/t", 1, 2, 4, 0, 0, 1)


def test_groups_of_all_shards_are_listed_page_by_page(node: FakeNode, db: Client) -> None:
    def join(count: int) -> None:
        for number in range(count):
            node.groups.groups.join(f"g{number:05}", "m", [], 10_000, 0)

    node.do(lambda: join(limits.list_entries_max + 3))
    names = db.list_groups()
    assert names == [f"g{number:05}" for number in range(limits.list_entries_max + 3)]
    assert node.kinds_seen().count(Kind.GROUP_LIST) == 3


def test_group_is_described_with_members_offsets_and_lag(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=2)
    db.create_topic("other")
    with pytest.raises(NotFound):
        db.describe_group("g")
    with topic.consumer("g") as consumer:
        found = read(consumer, 10)
        consumer.commit([m for m in found if m.partition == 1][:3])
        info = db.describe_group("g")
        [member] = info.members
        assert (info.name, info.generation > 0) == ("g", True)
        assert list(info.partitions) == [
            GroupPartition("default/t", 0, member, None, 5),
            GroupPartition("default/t", 1, member, 3, 5),
        ]
        assert [each.lag for each in info.partitions] == [None, 2]
        node.rule("refuse", Corrupt("fenced"), kind=Kind.OFFSET_LOOKUP, times=1)
        ends = sorted(str(each.end) for each in db.describe_group("g").partitions)
        assert ends == ["5", "None"], "one that cannot be used does not hide the others"
        node.rule("refuse", Corrupt("fenced"), kind=Kind.GROUP_DESCRIBE, times=1)
        with pytest.raises(Corrupt):
            db.describe_group("g")
        node.rule("drop", kind=Kind.OFFSET_FETCH)
        with pytest.raises(Exception, match="OFFSET_FETCH"):
            db.describe_group("g", timeout=0.3)
        node.forget_rules()
    left = db.describe_group("g")
    assert left.members == ()
    assert [each.committed for each in left.partitions] == [None, 3]


@pytest.mark.parametrize(
    ("offset", "meant"), [(1, 1), ("earliest", 0), ("latest", 5), ("last", 4), ("-1h", 5)]
)
def test_group_is_moved_back_and_forward(
    node: FakeNode, db: Client, offset: Any, meant: int
) -> None:
    topic = filled(db, partitions=2)
    with topic.consumer("g") as consumer:
        read(consumer, 10)
        consumer.commit()
    assert db.seek_group("g", "t", 1, offset) == meant
    info = db.describe_group("g")
    assert [each.committed for each in info.partitions] == [5, meant]
    assert info.members == ()
    with topic.consumer("g") as consumer:
        found = read(consumer, 5 - meant) if meant < 5 else consumer.poll(0.2)
        assert [m.offset for m in found] == list(range(meant, 5))
        assert {m.partition for m in found} <= {1}
    assert node.kinds_seen().count(Kind.GROUP_LEAVE) == 3


def test_reader_hears_of_a_move_with_its_next_heartbeat(db: Client) -> None:
    topic = filled(db, partitions=2)
    with topic.consumer("g", session_timeout=1.0) as consumer:
        read(consumer, 10)
        consumer.commit()
        db.seek_group("g", "default/t", 0, 3)
        assert [(m.partition, m.offset) for m in read(consumer, 2)] == [(0, 3), (0, 4)]
        consumer.commit()
        assert consumer.committed(0) == 5
        until(lambda: consumer.assignment == [0, 1])


def test_move_that_cannot_be_is_refused_and_leaves_nobody_behind(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g") as consumer:
        read(consumer, 5)
        consumer.commit()
    with pytest.raises(InvalidRequest, match="up to 5"):
        db.seek_group("g", "t", 0, 6)
    assert db.describe_group("g").members == ()
    with pytest.raises(NotFound, match="below 1, found 3"):
        db.seek_group("g", "t", 3, 0)
    with pytest.raises(NotFound):
        db.seek_group("g", "none", 0, 0)
    joins = node.kinds_seen().count(Kind.GROUP_JOIN)
    for wrong in [("a/b", "t", 0, 0), ("g", "t", -1, 0), ("g", "t", 0, "x"), ("g", "a/b/c", 0, 0)]:
        with pytest.raises(InvalidRequest):
            db.seek_group(*wrong)  # type: ignore[arg-type]
    assert node.kinds_seen().count(Kind.GROUP_JOIN) == joins


def test_move_that_is_overtaken_begins_again() -> None:
    bench = Bench()
    call = operations.seek_group("g", "t", 0, 7)
    bench.start(call)
    bench.one().answer(TOPIC)
    for generation in (5, 9):
        join = bench.next()
        assert (join.kind, join.request.routing_key) == (Kind.GROUP_JOIN, b"g")
        join.answer(GroupAssigned("m", generation, [], 10_000))
        commit = bench.one()
        body = OffsetCommit.decode(commit.request.body)
        assert (body.generation, list(body.offsets), body.back) == (generation, [7], True)
        if generation == 5:
            commit.answer(Conflict("generation 6"))
            bench.wait(0.1)
    commit.answer(OffsetsCommitted())
    bench.one().answer(GroupReleased())
    bench.one().answer(GroupLeft())
    assert call.result() == 7


def test_move_whose_farewell_fails_is_done_all_the_same() -> None:
    bench = Bench()
    call = operations.seek_group("g", "t", 0, 7)
    bench.start(call)
    for answer in (TOPIC, GroupAssigned("m", 1, [], 10_000), OffsetsCommitted(), GroupReleased()):
        bench.one().answer(answer)
    leave = bench.one()
    assert leave.kind is Kind.GROUP_LEAVE
    leave.answer(InvalidRequest("whatever"))
    assert call.result() == 7


def test_async_methods_mean_the_same(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g") as consumer:
        read(consumer, 5)
        consumer.commit()

    async def main() -> None:
        async with AsyncClient(node.address) as other:
            assert await other.list_groups() == ["g"]
            assert await other.seek_group("g", "t", 0, "earliest") == 0
            assert (await other.describe_group("g")).partitions[0].lag == 5

    asyncio.run(asyncio.wait_for(main(), 30))


def test_shard_that_is_away_is_told(node: FakeNode, db: Client) -> None:
    node.rule("refuse", Unavailable("away"), kind=Kind.GROUP_LIST, shard=1)
    with pytest.raises(Unavailable):
        db.list_groups(timeout=0.3)
