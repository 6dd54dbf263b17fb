"""Retention: what is too old or too much goes, by entries, and nothing else does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgpack
import pytest

from shardnode.raft import Membership, Raft, Role
from shardnode.shard.entries import PARTITIONS_SET, encode_entry
from shardnode.shard.letters import Trims
from shardnode.shard.masters import Elected, Fixed, Mastership, Nobody, master_of
from shardnode.shard.replica import Request
from shardnode.shard.retention import (
    AGAIN_MS_MAX,
    AHEAD_MS_MAX,
    LOOK_EVERY_MS,
    SILENT_MS,
    Retention,
    Trim,
)
from shardnode.wire.errors import Compacted
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import CONTROL_PARTITION
from shardnode.wire.streams import Append, MessagesFound, Read
from tests.shard.desk import WALL_MS, Counter
from tests.shard.test_stream_service import SPACE, bare, batch


def counter(**settings: int) -> Counter:
    desk = bare()
    payload = encode_entry(1, PARTITIONS_SET, msgpack.packb([1, [[SPACE, settings]], True]))
    desk.replica.propose([Request(0, CONTROL_PARTITION, payload)])
    desk.drain()
    return desk


def append(desk: Counter, *values: bytes) -> None:
    desk.ask(Kind.APPEND, Append(SPACE, len(values), batch(*values)))


def first_offset(desk: Counter) -> int:
    assert desk.effects.streams is not None
    return desk.effects.streams.mark_of(SPACE).first_offset


def wait(desk: Counter, ms: int) -> None:
    """Time passes in the steps of a loop that is awake now and then."""
    for _ in range(ms // LOOK_EVERY_MS):
        desk.drain(later_ms=LOOK_EVERY_MS)


def test_messages_go_when_they_are_too_old_and_readers_hear_where_the_rest_begins() -> None:
    desk = counter(retention_ms=10_000)
    append(desk, b"old", b"old too")
    wait(desk, 6_000)
    append(desk, b"young")
    wait(desk, 3_000)
    assert first_offset(desk) == 0
    wait(desk, 2_500)
    assert first_offset(desk) == 2
    with pytest.raises(Compacted) as error:
        desk.ask(Kind.READ, Read(SPACE, 0))
    assert error.value.first_available == 2
    found = desk.ask(Kind.READ, Read(SPACE, 2))
    assert isinstance(found, MessagesFound)
    assert (list(found.batches), found.first, found.end) == ([batch(b"young")], 2, 3)
    wait(desk, 8_000)
    assert first_offset(desk) == 3, "an empty partition keeps its end"
    append(desk, b"next")
    index = desk.replica.log.last_index
    wait(desk, 5_000)
    assert desk.replica.log.last_index == index, "nothing is proposed without need"


def test_oldest_segments_go_while_more_than_the_limit_is_left() -> None:
    desk = counter(retention_bytes=40_000, segment_bytes=10_000)
    for _ in range(100):
        append(desk, bytes(1_000))
    wait(desk, 2_000)
    streams = desk.effects.streams
    assert streams is not None
    stream = streams.of(SPACE)
    assert stream.log is not None
    assert 40_000 <= stream.log.size_bytes < 51_000
    assert 45 <= first_offset(desk) <= 64
    desk.effects.flush(b"members")
    append(desk, b"x")
    desk.effects.flush(b"members")
    files = [n for n in streams.files.listdir(streams.path(SPACE)) if n.endswith(".seg")]
    assert len(files) <= 6, "what no crash can bring back is removed"


def test_partitions_without_limits_keep_everything() -> None:
    desk = counter()
    append(desk, b"x")
    wait(desk, 2 * AGAIN_MS_MAX)
    assert first_offset(desk) == 0


def test_trim_is_replicated_and_outlives_a_restart() -> None:
    desk = counter()
    append(desk, b"a", b"b", b"c")
    desk.service.trim([Trim(SPACE, 2), Trim(SPACE, 1)])
    desk.drain()
    assert first_offset(desk) == 2, "a start never goes back"
    streams = desk.effects.streams
    assert streams is not None
    desk.effects.flush(b"members")
    streams.load(desk.effects.engine.blob("streams"))
    assert first_offset(desk) == 2
    desk.service.trim([Trim(SPACE, 99)])
    desk.drain()
    assert first_offset(desk) == 3, "nothing is trimmed that is not there"


def test_master_that_follows_is_believed_unless_its_clock_is_ahead() -> None:
    desk = counter(retention_ms=10_000)
    append(desk, b"a", b"b")
    me = desk.replica.raft.member
    ahead = WALL_MS + desk.now_ms + 2 * AHEAD_MS_MAX
    desk.service.take_trims(Trims(9, 2, me, ahead, [(SPACE, 1)]))
    desk.drain()
    assert first_offset(desk) == 0
    assert desk.service.counters["trims_ahead"] == 1
    desk.service.take_trims(Trims(9, 2, me, desk.effects.stamp, [(SPACE, 1)]))
    desk.drain()
    assert first_offset(desk) == 1


def test_work_is_the_masters_and_the_leaders_when_it_is_silent() -> None:
    desk = counter(retention_ms=1_000)
    append(desk, b"a")
    streams = desk.effects.streams
    assert streams is not None
    stamp_ms = desk.effects.stamp + 5_000
    one, two = 1, 2
    master = master_of(SPACE, [one, two], Elected())
    other = one + two - master

    def decided(me: int, role: Role, contact_ms: int, policy: Mastership) -> list[Trim]:
        leader = me if role is Role.LEADER else one + two - me
        raft = SimpleNamespace(
            role=role,
            member=me,
            leader=leader,
            now_ms=100_000,
            membership=Membership.of([one, two]),
            progress={one + two - me: SimpleNamespace(contact_ms=contact_ms)},
        )
        retention = Retention(cast(Raft, raft), policy)
        return [
            trim
            for turn in range(3)
            for trim in retention.due(streams, stamp_ms, 100_000 + turn * LOOK_EVERY_MS)
        ]

    todo = [Trim(SPACE, 1)]
    assert decided(master, Role.LEADER, 0, Elected()) == todo
    assert decided(master, Role.FOLLOWER, 0, Elected()) == todo
    assert decided(other, Role.FOLLOWER, 0, Elected()) == []
    assert decided(other, Role.LEADER, 99_000, Elected()) == [], "the master is there"
    assert decided(other, Role.LEADER, 100_000 - SILENT_MS, Elected()) == todo
    assert decided(other, Role.FOLLOWER, 0, Fixed(other)) == todo
    assert decided(other, Role.LEADER, 0, Nobody()) == []
