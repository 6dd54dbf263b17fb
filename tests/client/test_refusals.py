"""What becomes of a refused request, refusal by refusal, on a simulated clock."""

from __future__ import annotations

import pytest

from shardnode.client import operations
from shardnode.client.calls import Call
from shardnode.wire.errors import (
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    SessionExpired,
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.frames import build_reply
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import Written
from tests.client.kit import DIRECT, Bench

KEY = b"user:1"  # of shard 0


def put(bench: Bench, timeout_s: float = 5.0) -> Call[int]:
    call = operations.put(KEY, b"Ada", None)
    bench.start(call, timeout_s)
    return call


def get(bench: Bench, timeout_s: float = 5.0) -> Call[bytes | None]:
    call = operations.get(KEY, "linearizable")
    bench.start(call, timeout_s)
    return call


def test_not_leader_is_followed_with_the_same_bytes() -> None:
    bench = Bench(nodes=3)
    call = put(bench)
    first = bench.one()
    first.answer(NotLeader(leader=3))
    again = bench.one()
    assert (again.endpoint, again.frames) == (DIRECT[0, 3], first.frames)
    again.answer(Written(6))
    assert call.result() == 6
    put(bench)
    assert bench.one().endpoint == DIRECT[0, 3]


def test_unknown_leader_is_looked_for_among_the_others_after_a_pause() -> None:
    bench = Bench(nodes=3)
    call = put(bench)
    bench.one().answer(NotLeader())
    topology = bench.one()
    assert topology.kind is Kind.TOPOLOGY
    topology.answer(bench.topology(leader=0))
    again = bench.next()
    assert again.kind is Kind.PUT
    assert again.endpoint != DIRECT[0, 1]
    again.answer(Written(7))
    assert call.result() == 7


def test_group_without_a_leader_is_unavailable_in_the_end() -> None:
    bench = Bench(nodes=3)
    call = put(bench, 1.0)
    while not call.done:
        for message in bench.sent(without_sessions=True):
            asked = message.kind is Kind.TOPOLOGY
            message.answer(bench.topology(leader=0) if asked else NotLeader())
        bench.wait(0.05)
    with pytest.raises(Unavailable, match="leader"):
        call.result()


def test_wrong_shard_gets_the_table_and_goes_to_the_new_owner() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    bench.new_table(bytes([1]) * len(bench.table.owners))
    first.answer(WrongShard(epoch=2))
    asked = bench.one()
    assert asked.kind is Kind.TOPOLOGY
    asked.answer(bench.topology())
    again = bench.one()
    assert (again.endpoint, again.header.epoch) == (DIRECT[1, 1], 2)
    assert again.header.sequence > first.header.sequence
    again.answer(Written(8))
    assert call.result() == 8


def test_table_that_is_not_yet_published_is_asked_for_again() -> None:
    bench = Bench()
    call = put(bench)
    bench.one().answer(WrongShard(epoch=2), epoch=2)
    bench.one().answer(bench.topology())  # still epoch 1
    asked = bench.next()
    assert asked.kind is Kind.TOPOLOGY
    bench.new_table(bytes([1]) * len(bench.table.owners))
    asked.answer(bench.topology())
    bench.one().answer(Written(1))
    assert call.result() == 1


def test_shard_with_an_older_table_is_given_time() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    first.answer(WrongShard(epoch=1))
    asked = bench.one()
    assert asked.kind is Kind.TOPOLOGY
    asked.answer(bench.topology())
    again = bench.next()
    assert again.frames == first.frames
    again.answer(Written(1))
    assert call.result() == 1


def test_wrong_shard_after_a_silent_copy_is_unknown() -> None:
    bench = Bench()
    call = put(bench)
    bench.one()
    bench.wait(1.0)
    bench.one().answer(WrongShard(epoch=2))
    with pytest.raises(OutcomeUnknown):
        call.result()


@pytest.mark.parametrize("error", [Overloaded("full", lag=9, limit=9), Unavailable("restarting")])
def test_refusal_for_now_is_repeated_after_growing_pauses(error: ShardnodeError) -> None:
    bench = Bench()
    call = put(bench)
    message = bench.one()
    frames, times = message.frames, []
    for _ in range(8):
        message.answer(error)
        assert not bench.sent(), "it must pause"
        before = bench.now
        message = bench.next()
        times.append(bench.now - before)
        assert message.frames == frames
    assert times[-1] > 10 * times[0]
    message.answer(Written(3))
    assert call.result() == 3


def test_overload_that_lasts_is_what_the_caller_gets() -> None:
    bench = Bench()
    call = put(bench, 0.5)
    while not call.done:
        for message in bench.sent(without_sessions=True):
            message.answer(Overloaded("full", lag=9, limit=9))
        bench.wait(0.03)
    with pytest.raises(Overloaded, match="full"):
        call.result()


def test_expired_session_is_replaced_without_a_word() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    first.answer(SessionExpired())
    opening, again = bench.sent()
    assert opening.kind is Kind.SESSION_OPEN
    assert opening.header.client_id == again.header.client_id != first.header.client_id
    assert again.header.sequence > first.header.sequence
    again.answer(Written(2))
    assert call.result() == 2


def test_expired_session_after_a_silent_copy_is_unknown() -> None:
    bench = Bench()
    call = put(bench)
    bench.one()
    bench.wait(1.0)
    bench.one().answer(SessionExpired())
    with pytest.raises(OutcomeUnknown):
        call.result()
    put(bench)
    assert bench.sent()[0].kind is Kind.SESSION_OPEN


def test_expiry_on_one_shard_renews_the_id_on_all_and_spares_what_is_under_way() -> None:
    bench = Bench()
    elsewhere = operations.put(b"b", b"", None)  # of shard 1
    bench.start(elsewhere)
    other = bench.one()
    put(bench)
    bench.one().answer(SessionExpired())
    renewed = bench.one()
    bench.wait(1.0)
    repeated = {m.exchange: m for m in bench.sent(without_sessions=True)}
    assert repeated[other.exchange].frames == other.frames
    assert renewed.header.client_id != other.header.client_id


def test_session_that_is_denied_fails_the_write_with_that() -> None:
    bench = Bench()
    call = put(bench)
    opening, write = bench.sent()
    opening.answer(Denied("no"))
    write.answer(SessionExpired())
    with pytest.raises(Denied):
        call.result()


def test_unknown_outcome_of_a_shard_is_resolved_by_asking_again() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    first.answer(OutcomeUnknown("lost leadership"))
    again = bench.next()
    assert again.frames == first.frames
    again.answer(Written(5))
    assert call.result() == 5


def test_unknown_outcome_that_stays_so_is_told() -> None:
    bench = Bench()
    call = put(bench, 1.0)
    bench.one().answer(OutcomeUnknown("lost leadership"))
    bench.wait(1.0)
    with pytest.raises(OutcomeUnknown):
        call.result()


@pytest.mark.parametrize("error", [Conflict("c"), Denied("d"), InvalidRequest("i"), Corrupt("x")])
def test_final_refusal_reaches_the_caller(error: ShardnodeError) -> None:
    bench = Bench()
    call = put(bench)
    bench.one().answer(error)
    with pytest.raises(type(error)):
        call.result()


@pytest.mark.parametrize("error", [Denied("d"), Corrupt("x"), InvalidRequest("i")])
def test_final_refusal_of_a_repeat_leaves_the_first_copy_unknown(error: ShardnodeError) -> None:
    bench = Bench()
    call = put(bench)
    bench.one()
    bench.wait(1.0)
    bench.one().answer(error)
    with pytest.raises(OutcomeUnknown):
        call.result()


def test_conflict_of_a_repeat_is_the_outcome_of_the_first_copy() -> None:
    bench = Bench()
    call = operations.cas(KEY, b"x", 3, None)
    bench.start(call)
    bench.one()
    bench.wait(1.0)
    bench.one().answer(Conflict("c", key=KEY, version=9))
    with pytest.raises(Conflict):
        call.result()


def test_refusal_of_every_copy_means_no_effect() -> None:
    bench = Bench()
    call = put(bench, 2.0)
    first = bench.one()
    bench.wait(1.0)
    again = bench.one()
    again.answer(Unavailable("down"))
    first.answer(Unavailable("down"))
    bench.wait(1.0)
    with pytest.raises(Unavailable):
        call.result()


def test_too_late_at_the_shard_after_a_silent_copy_keeps_listening() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    bench.wait(1.0)
    bench.one().answer(DeadlineExceeded("late"))
    assert not call.done
    first.answer(Written(4))
    assert call.result() == 4


def test_unexpected_error_of_a_write_is_unknown_and_of_a_read_itself() -> None:
    bench = Bench()
    write, read = put(bench), get(bench)
    for message in bench.sent(without_sessions=True):
        message.answer(ShardnodeError("oops"))
    with pytest.raises(OutcomeUnknown, match="oops"):
        write.result()
    with pytest.raises(ShardnodeError, match="oops") as caught:
        read.result()
    assert type(caught.value) is ShardnodeError


def test_unreadable_answer_to_a_write_is_unknown() -> None:
    bench = Bench()
    call = put(bench)
    message = bench.one()
    frames = build_reply(message.request.return_address(), b"\xc1", shard=0)
    bench.core.received(frames, bench.now)
    with pytest.raises(OutcomeUnknown):
        call.result()
