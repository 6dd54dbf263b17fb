"""Members of groups against a fake node: what they share and commit, and how they end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardnode import Client, Consumer
from shardnode.wire.errors import Conflict, InvalidRequest, Unavailable
from shardnode.wire.kinds import Kind
from tests.client.consumer_kit import SESSION_S, filled, read, threads, until
from tests.client.fake import FakeNode


@contextmanager
def another(node: FakeNode, group: str = "g", **options: Any) -> Iterator[Consumer]:
    """A consumer of another program."""
    with (
        Client(node.address) as db,
        db.topic("t").consumer(group, session_timeout=SESSION_S, **options) as consumer,
    ):
        yield consumer


def assigned(*consumers: Consumer) -> list[int]:
    """The partitions of all, polled so that errors are heard; nothing is given out."""
    return sorted(number for each in consumers for number in each.assignment)


def test_group_goes_on_behind_what_it_committed(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=2)
    with topic.consumer("g") as consumer:
        found = read(consumer, 10)
        [third] = [m for m in found if (m.partition, m.offset) == (0, 2)]
        consumer.commit(third)
        consumer.commit([m for m in found if m.partition == 1])
        assert (consumer.committed(0), consumer.committed(1)) == (3, 5)
    assert threads() == []
    assert Kind.GROUP_LEAVE in node.kinds_seen()
    with topic.consumer("g") as consumer:
        assert [(m.partition, m.offset) for m in read(consumer, 2)] == [(0, 3), (0, 4)]
        consumer.commit()
        assert consumer.committed(0) == 5
    with topic.consumer("another") as consumer:
        assert consumer.poll(5)


def test_commit_without_waiting_is_sent_and_its_error_is_heard_later(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g") as consumer:
        found = read(consumer, 5)
        for message in found[:3]:
            consumer.commit(message, wait=False)
        until(lambda: consumer.committed(0) == 3)
        node.rule("refuse", InvalidRequest("no"), kind=Kind.OFFSET_COMMIT, times=1)
        consumer.commit(found[3], wait=False)
        with pytest.raises(InvalidRequest, match="no"):
            until(lambda: consumer.poll(0.05))
        consumer.commit(found[4])


def test_error_of_a_commit_that_nobody_waited_for_is_heard_at_the_end(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=1)
    consumer = topic.consumer("g")
    found = read(consumer, 5)
    node.rule("refuse", InvalidRequest("no"), kind=Kind.OFFSET_COMMIT, times=1)
    consumer.commit(found[3], wait=False)
    with pytest.raises(InvalidRequest, match="no"):
        consumer.close()
    assert threads() == []
    assert Kind.GROUP_LEAVE in node.kinds_seen()
    consumer.close()


def test_members_share_partitions_and_hand_them_over(node: FakeNode, db: Client) -> None:
    topic = filled(db)
    with topic.consumer("g", session_timeout=SESSION_S) as consumer:
        found = read(consumer, 20)
        consumer.commit()
        with another(node) as second:
            until(lambda: (len(consumer.assignment), len(second.assignment)) == (2, 2))
            assert assigned(consumer, second) == [0, 1, 2, 3]
            for number in range(4):
                topic.append([b"new"], partition=number)
            mine, others = read(consumer, 2), read(second, 2)
            assert {m.partition for m in mine} == set(consumer.assignment)
            assert {m.partition for m in others} == set(second.assignment)
            lost = next(m for m in found if m.partition in second.assignment)
            with pytest.raises(Conflict, match="does not belong"):
                consumer.commit(lost)
            second.commit()
        until(lambda: assigned(consumer) == [0, 1, 2, 3])
        with pytest.raises(InvalidRequest):
            consumer.position(7)
        assert consumer.poll(0.3) == [], "what the other one committed is not read again"


def test_member_that_dies_is_replaced_within_its_session(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=2)
    with Client(node.address) as others:
        dying = others.topic("t").consumer("g", session_timeout=SESSION_S)
        read(dying, 10)
        with topic.consumer("g", session_timeout=SESSION_S) as consumer:
            until(lambda: len(consumer.assignment) == 1)
            assert dying._keeper is not None
            dying._keeper.stop()  # as if its process were gone: nobody says goodbye
            dead_at = time.monotonic()
            until(lambda: len(consumer.assignment) == 2)
            assert time.monotonic() - dead_at < 2.5 * SESSION_S
            assert len(read(consumer, 10)) == 10, "nothing was committed"


def test_member_whose_heartbeats_are_lost_for_a_moment_keeps_what_it_holds(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=2)
    with topic.consumer("g", session_timeout=3.0) as consumer:
        read(consumer, 10)
        rule = node.rule("refuse", Unavailable("electing"), kind=Kind.GROUP_HEARTBEAT, times=3)
        until(lambda: rule.times == 0)
        beats = len(node.groups.beats)
        until(lambda: len(node.groups.beats) > beats)
        assert consumer.assignment == [0, 1]
        assert node.kinds_seen().count(Kind.GROUP_JOIN) == 1


def test_member_that_was_given_up_joins_again_and_goes_on(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=2)
    with topic.consumer("g", session_timeout=SESSION_S) as consumer:
        found = read(consumer, 10)
        consumer.commit(found)

        def give_up() -> None:
            node.groups.groups.expire(1 << 60, 0)

        node.do(give_up)
        until(lambda: node.kinds_seen().count(Kind.GROUP_JOIN) == 2)
        until(lambda: consumer.assignment == [0, 1])
        topic.append([b"new"], partition=1)
        assert [m.value for m in read(consumer, 1)] == [b"new"]
        consumer.commit()


def test_fenced_commit_is_a_conflict_and_the_partition_is_claimed_anew(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g", session_timeout=SESSION_S) as consumer:
        found = read(consumer, 5)
        [space] = node.streams.partitions

        def move() -> None:
            """What `seek_group` does."""
            told = node.groups.groups.join("g", "seeker", [], 1_000, int(time.monotonic() * 1000))
            generation = told.generation
            node.groups.offsets.commit(
                "g", generation, [space], [1], back=True, end_of=lambda _: 1 << 40
            )
            node.groups.groups.release("g", [space])
            node.groups.groups.leave("g", "seeker")

        node.do(move)
        with pytest.raises(Conflict):
            consumer.commit(found)
        assert [m.offset for m in read(consumer, 4)] == [1, 2, 3, 4]
        consumer.commit()
        assert consumer.committed(0) == 5


def test_start_that_depends_on_the_moment_is_kept_for_who_takes_over(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g", start="latest") as consumer:
        until(lambda: consumer.assignment)
        assert consumer.committed(0) == 5
    topic.append([b"in between"])
    with topic.consumer("g", start="latest") as consumer:
        assert [m.value for m in read(consumer, 1)] == [b"in between"]
    with topic.consumer("h") as consumer:
        until(lambda: consumer.assignment)
        assert consumer.committed(0) is None
    assert node.kinds_seen().count(Kind.OFFSET_COMMIT) == 1


def test_partitions_that_are_added_are_read_from_their_beginning(
    db: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardnode.client.selection.LOOK_AGAIN_S", 0.05)
    topic = filled(db, partitions=1)
    with (
        topic.consumer(start="latest") as alone,
        topic.consumer("g", session_timeout=SESSION_S) as member,
    ):
        until(lambda: alone.poll(0.01) or alone.assignment)
        read(member, 5)
        db.alter_topic("t", partitions=2)
        topic.append([b"first"], partition=1)
        assert [m.value for m in read(alone, 1)] == [b"first"]
        assert [m.value for m in read(member, 1)] == [b"first"]


def test_forgotten_consumer_keeps_no_thread(node: FakeNode) -> None:
    with Client(node.address) as db:
        consumer = filled(db, partitions=1).consumer("g", session_timeout=SESSION_S)
        read(consumer, 5)
        assert threads()
        del consumer
        gc.collect()
        until(lambda: threads() == [])


def test_child_process_makes_its_own(db: Client) -> None:
    with filled(db, partitions=1).consumer("g") as consumer:
        read(consumer, 5)
        consumer._consuming._process = os.getppid()
        with pytest.raises(InvalidRequest, match="parent process"):
            consumer.poll()
        consumer._consuming._process = os.getpid()


def test_program_that_forgets_to_close_ends_all_the_same(node: FakeNode, db: Client) -> None:
    filled(db, partitions=1)
    program = (
        "import sys; from shardnode import Client\n"
        "consumer = Client(sys.argv[1]).topic('t').consumer('g')\n"
        "assert len(consumer.poll(10)) == 5\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, node.address], capture_output=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, b"")
