"""Calls about topics on a simulated clock: what is repeated, what is not, and what callers get."""

from __future__ import annotations

import pytest

from shardnode.client import topics
from shardnode.client.topic_calls import AppendCall
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import (
    Corrupt,
    DeadlineExceeded,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    WrongShard,
)
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.placement import namespace_from_bytes, pack_namespace
from shardnode.wire.streams import Append, Appended, OffsetFound
from tests.client.kit import Bench

TOPIC = TopicFound("default/t", 1, 2, 4, 0, 0, 1)
ANEW = TopicFound("default/t", 1, 3, 4, 0, 0, 1)
GONE = NotFound("no such partition here")
SPACE = pack_namespace(1, 2, 3)


def append(bench: Bench, timeout_s: float = 5.0) -> AppendCall:
    call = topics.append(
        "default/t",
        [b"x"],
        key=None,
        partition=3,
        turn=0,
        compression=None,
        producer=None,
        sequence=None,
    )
    bench.start(call, timeout_s)
    return call


def begun() -> tuple[Bench, AppendCall]:
    """An append that knows its topic and is about to be sent."""
    bench = Bench()
    call = append(bench)
    described = bench.one()
    assert (described.kind, described.header.flags) == (Kind.TOPIC_DESCRIBE, 0)
    assert bytes(described.frames[0]) == bytes(4), "shard 0 keeps the topics"
    described.answer(TOPIC)
    return bench, call


def test_append_travels_to_the_shard_of_its_partition() -> None:
    bench, call = begun()
    sent = bench.one()
    assert (sent.kind, sent.header.flags) == (Kind.APPEND, Flag.NAMESPACE)
    assert namespace_from_bytes(sent.request.routing_key) == SPACE
    assert Append.decode(sent.request.body).namespace == SPACE
    sent.answer(Appended(7, 1))
    assert call.result() == (3, 7)


def test_partition_that_is_not_there_yet_is_waited_for() -> None:
    bench, call = begun()
    for _ in range(3):
        bench.one().answer(GONE)
        bench.one().answer(TOPIC)
        assert bench.sent() == [], "it pauses"
        bench.wait(0.3)
    bench.one().answer(Appended(0, 1))
    assert call.result() == (3, 0)


def test_partition_that_never_comes_is_not_found_when_time_is_up() -> None:
    bench, call = begun()
    while not call.done:
        for sent in bench.sent(without_sessions=True):
            sent.answer(GONE if sent.kind is Kind.APPEND else TOPIC)
        bench.wait(0.05)
    with pytest.raises(NotFound, match="no such partition"):
        call.result()
    assert bench.now - 1_000.0 <= 5.1


def test_topic_that_was_created_anew_is_used_without_a_pause() -> None:
    bench, call = begun()
    bench.one().answer(GONE)
    bench.one().answer(ANEW)
    sent = bench.one()
    assert Append.decode(sent.request.body).namespace == pack_namespace(1, 3, 3)
    sent.answer(Appended(0, 1))
    assert call.done


def test_topic_that_is_gone_ends_it() -> None:
    bench, call = begun()
    bench.one().answer(GONE)
    bench.one().answer(NotFound("no such topic"))
    with pytest.raises(NotFound, match="no such topic"):
        call.result()
    append(bench)
    assert bench.one().kind is Kind.TOPIC_DESCRIBE, "it is not believed in any more"


def test_append_that_may_have_run_is_never_built_anew() -> None:
    """A shard that catches up says "not found" before it looks at sessions: the first copy may
    still be the one that counts."""
    bench, call = begun()
    first = bench.one()
    bench.wait(1.1)
    second = bench.one()
    assert second.frames == first.frames
    second.answer(GONE)
    third = bench.next()
    assert third.frames == first.frames, "the same bytes, which the session recognises"
    third.answer(Appended(5, 1))
    assert call.result() == (3, 5)


def test_append_that_may_have_run_and_is_never_answered_is_unknown() -> None:
    bench, call = begun()
    bench.one()
    while not call.done:
        for sent in bench.sent():
            assert sent.kind is Kind.APPEND
            sent.answer(GONE)
        bench.wait(0.05)
    with pytest.raises(OutcomeUnknown):
        call.result()


def test_damage_ends_it() -> None:
    bench, call = begun()
    bench.one().answer(Corrupt("fenced"))
    with pytest.raises(Corrupt):
        call.result()


def test_stale_table_is_renewed_first() -> None:
    bench, call = begun()
    sent = bench.one()
    bench.new_table(bytes(len(bench.table.owners)))
    sent.answer(WrongShard("moved", epoch=2), epoch=2)
    asked = bench.one()
    assert asked.kind is Kind.TOPOLOGY
    asked.answer(bench.topology())
    again = bench.one()
    assert (again.kind, again.request.prefix) == (Kind.APPEND, 0)
    again.answer(Appended(0, 1))
    assert call.done


def test_created_topic_waits_for_all_its_partitions_and_asks_only_those_left() -> None:
    bench = Bench()
    call = topics.create("t", 4, None, None, exist_ok=False)
    bench.start(call)
    bench.one().answer(TOPIC)
    asked = bench.sent()
    assert [sent.kind for sent in asked] == [Kind.OFFSET_LOOKUP] * 4
    for sent in asked[1:]:
        sent.answer(OffsetFound(0, 0, 0))
    asked[0].answer(GONE)
    bench.one().answer(TOPIC)
    bench.wait(0.3)
    [left] = bench.sent()
    assert left.request.routing_key == asked[0].request.routing_key
    assert not call.done
    left.answer(OffsetFound(0, 0, 0))
    assert call.result() == TOPIC


def test_error_of_one_partition_waits_for_the_others_and_is_told_in_context() -> None:
    bench = Bench()
    call = topics.create("t", 4, None, None, exist_ok=False)
    bench.start(call)
    bench.one().answer(TOPIC)
    first, *others = bench.sent()
    first.answer(Corrupt("fenced"))
    assert not call.done
    for sent in others:
        sent.answer(OffsetFound(0, 0, 0))
    with pytest.raises(Unavailable, match=r"default/t is as it was wanted.*fenced"):
        call.result()


def test_description_that_nobody_answers_fails_the_call_in_time() -> None:
    bench = Bench()
    call = append(bench, timeout_s=2.0)
    while not call.done:
        bench.sent()
        bench.wait(0.5)
    with pytest.raises(DeadlineExceeded, match="TOPIC_DESCRIBE"):
        call.result()
