"""Groups through a worker's service: topics, time and partitions as entries of the log."""

from __future__ import annotations

import pytest

from shardnode.shard.duties import MEMBERS_EVERY_MS, SET_EVERY_MS
from shardnode.shard.effects import Effects
from shardnode.shard.streams import Streams
from shardnode.storage.engine import MemoryEngine
from shardnode.wire.control import TopicAlter, TopicCreate, TopicDelete, TopicFound
from shardnode.wire.errors import InvalidRequest, NotFound, SessionExpired, Unavailable, WrongShard
from shardnode.wire.groups import (
    GroupAssigned,
    GroupDescribe,
    GroupFound,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupList,
    GroupRelease,
    GroupsFound,
    OffsetClaim,
    OffsetCommit,
    OffsetFetch,
    OffsetsFound,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import initial_table, pack_namespace
from shardnode.wire.streams import Append
from tests.engine.kit import SMALL
from tests.shard.desk import Counter
from tests.shard.test_stream_service import bare, batch


def counter(partitions: int = 3) -> tuple[Counter, list[int]]:
    """A desk of shard 0 with a topic, and the namespaces of its partitions."""
    desk = bare()
    desk.service.topics = desk.effects.control.topics
    created = desk.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", partitions))
    assert isinstance(created, TopicFound)
    settle(desk)
    return desk, [pack_namespace(created.stream, created.topic, n) for n in range(partitions)]


def settle(desk: Counter) -> None:
    desk.drain(later_ms=SET_EVERY_MS)
    desk.drain()


def join(desk: Counter, member: str | None = "a", ttl_ms: int = 5_000) -> GroupAssigned:
    found = desk.ask(Kind.GROUP_JOIN, GroupJoin("g", member, ["shop/orders"], ttl_ms))
    assert isinstance(found, GroupAssigned)
    return found


def beat(desk: Counter, told: GroupAssigned) -> GroupAssigned:
    body = GroupHeartbeat("g", told.member, told.generation, told.assigned)
    found = desk.ask(Kind.GROUP_HEARTBEAT, body)
    assert isinstance(found, GroupAssigned)
    return found


def offsets(desk: Counter, *spaces: int) -> list[int | None]:
    found = desk.ask(Kind.OFFSET_FETCH, OffsetFetch("g", spaces))
    assert isinstance(found, OffsetsFound)
    return list(found.offsets)


def test_member_gets_partitions_claims_them_and_commits() -> None:
    desk, spaces = counter()
    told = join(desk, None)
    assert told.member.startswith("member-")
    assert list(told.assigned) == spaces
    claimed = desk.ask(Kind.OFFSET_CLAIM, OffsetClaim("g", told.generation, spaces))
    assert claimed == OffsetsFound([None, None, None])
    desk.ask(Kind.APPEND, Append(spaces[0], 2, batch(b"x", b"y")))
    desk.ask(Kind.OFFSET_COMMIT, OffsetCommit("g", told.generation, spaces[:1], [2]))
    assert offsets(desk, *spaces) == [2, None, None]
    with pytest.raises(InvalidRequest, match="up to 2"):
        desk.ask(Kind.OFFSET_COMMIT, OffsetCommit("g", told.generation, spaces[:1], [3]))
    found = desk.ask(Kind.GROUP_DESCRIBE, GroupDescribe("g"))
    assert found == GroupFound(told.generation, [told.member], spaces, [0, 0, 0])
    listed = desk.ask(Kind.GROUP_LIST, GroupList())
    assert listed == GroupsFound(["g"], [told.generation], [1], None)
    desk.ask(Kind.GROUP_RELEASE, GroupRelease("g", spaces[:1]))
    assert list(beat(desk, told).assigned) == spaces[1:]


def test_topic_that_nobody_has_heard_of_may_be_asked_for_again() -> None:
    desk = bare()
    with pytest.raises(Unavailable, match=r"has not heard of topic shop/orders"):
        join(desk)
    with pytest.raises(NotFound):
        desk.ask(Kind.GROUP_DESCRIBE, GroupDescribe("g"))


def test_silent_member_is_given_up_by_log_time_and_its_partitions_go_on() -> None:
    desk, spaces = counter()
    silent = join(desk, "a", ttl_ms=1_000)
    other = join(desk, "b", ttl_ms=60_000)
    desk.drain(later_ms=900)
    assert list(beat(desk, other).assigned) == []
    desk.drain(later_ms=MEMBERS_EVERY_MS + 1)
    desk.drain(later_ms=MEMBERS_EVERY_MS + 1)
    assert list(beat(desk, other).assigned) == spaces
    with pytest.raises(SessionExpired):
        beat(desk, silent)


def test_partitions_that_are_added_or_deleted_reach_the_members_and_their_offsets() -> None:
    desk, spaces = counter()
    told = join(desk)
    desk.ask(Kind.OFFSET_COMMIT, OffsetCommit("g", told.generation, spaces[:1], [0]))
    desk.ask(Kind.TOPIC_ALTER, TopicAlter("shop/orders", partitions=4))
    settle(desk)
    told = beat(desk, told)
    assert len(told.assigned) == 4
    assert offsets(desk, spaces[0]) == [0]
    desk.ask(Kind.TOPIC_DELETE, TopicDelete("shop/orders"))
    settle(desk)
    assert list(beat(desk, told).assigned) == []
    assert len(desk.effects.coordination.offsets) == 0
    with pytest.raises(NotFound):
        desk.ask(Kind.OFFSET_CLAIM, OffsetClaim("g", told.generation, spaces))


def test_group_of_another_shard_is_refused() -> None:
    table = initial_table(4)
    name = next(n for n in map(str, range(99)) if table.shard_of_key(n.encode()) != 0)
    desk = bare(shards=4)
    with pytest.raises(WrongShard):
        desk.ask(Kind.GROUP_LEAVE, GroupLeave(name, "a"))


def test_groups_and_offsets_outlive_a_restart_and_travel_in_a_snapshot() -> None:
    desk, spaces = counter()
    told = join(desk)
    desk.ask(Kind.OFFSET_COMMIT, OffsetCommit("g", told.generation, spaces[:1], [0]))
    effects = desk.effects
    effects.flush(b"members")
    state = effects.coordination.encode()
    assert state
    streams = effects.streams
    assert streams is not None
    parts = {name: b"".join(pieces) for name, pieces in effects.snapshot().items()}
    assert parts["groups"] == state
    again = Effects(effects.engine, "", Streams(streams.files, "shard-0"))
    assert again.coordination.encode() == state
    streams.files.mkdir("shard-9")
    fresh = Effects(MemoryEngine(SMALL), "", Streams(streams.files, "shard-9"))
    fresh.restore(effects.applied_index, b"members", list(parts), lambda name: [parts[name]])
    assert fresh.coordination.encode() == state
    assert fresh.coordination.groups.rows() == effects.coordination.groups.rows()
