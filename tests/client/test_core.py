"""Every way an exchange can go, on a simulated clock: what is sent, when, and what callers get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.client import lanes, operations
from shardnode.client.calls import Call
from shardnode.client.transactions import Do
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
from shardnode.wire.replies import Entry, SessionGranted, Written
from tests.client.kit import DIRECT, ROUTER, Bench

KEY = b"user:1"  # of shard 0


def put(bench: Bench, timeout_s: float = 5.0) -> Call[int]:
    call = operations.put(KEY, b"Ada", None)
    bench.start(call, timeout_s)
    return call


def get(bench: Bench, timeout_s: float = 5.0) -> Call[bytes | None]:
    call = operations.get(KEY, "linearizable")
    bench.start(call, timeout_s)
    return call


def test_write_travels_behind_the_opening_of_its_session_without_waiting() -> None:
    bench = Bench()
    put(bench)
    opening, write = bench.sent()
    assert (opening.kind, write.kind) == (Kind.SESSION_OPEN, Kind.PUT)
    assert opening.endpoint == write.endpoint == DIRECT[0, 1]
    assert opening.header.client_id == write.header.client_id != bytes(16)


def test_session_is_opened_once_per_shard() -> None:
    bench = Bench()
    put(bench)
    opening, first = bench.sent()
    put(bench)
    [second] = bench.sent()
    opening.answer(SessionGranted(1))
    first.answer(Written(1))
    second.answer(Written(2))
    put(bench)
    [third] = bench.sent()
    assert third.kind is Kind.PUT


def test_read_needs_no_session() -> None:
    bench = Bench()
    call = get(bench)
    [read] = bench.sent()
    assert read.header.client_id == bytes(16)
    read.answer(Entry(b"Ada", 1, 0))
    assert call.result() == b"Ada"


def test_acked_below_rises_only_past_answered_writes() -> None:
    bench = Bench()
    put(bench)
    first = bench.one()
    put(bench)
    second = bench.one()
    second.answer(Written(2))
    put(bench)
    third = bench.one()
    assert third.header.acked_below == first.header.sequence
    first.answer(Written(1))
    put(bench)
    assert bench.one().header.acked_below == third.header.sequence


def test_silence_is_answered_by_the_same_bytes_another_way() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    bench.wait(1.0)
    again = bench.one()
    assert again.frames == first.frames
    assert (first.endpoint, again.endpoint) == (DIRECT[0, 1], ROUTER)
    again.answer(Written(9))
    assert call.result() == 9


def test_late_and_doubled_answers_are_dropped() -> None:
    bench = Bench()
    call = put(bench)
    first = bench.one()
    bench.wait(1.0)
    again = bench.one()
    first.answer(Written(9))
    again.answer(Written(10))
    assert call.result() == 9
    assert bench.core.finished == [call]


def test_write_that_was_sent_and_never_answered_is_unknown() -> None:
    bench = Bench()
    call = put(bench)
    bench.one()
    bench.wait(5.0)
    with pytest.raises(OutcomeUnknown, match="shard 0"):
        call.result()


def test_write_that_never_left_had_no_effect() -> None:
    bench = Bench()
    call = put(bench)
    bench.wait(5.0)
    with pytest.raises(Unavailable, match="no connection"):
        call.result()


def test_read_that_was_never_answered_is_out_of_time() -> None:
    bench = Bench()
    call = get(bench)
    bench.one()
    bench.wait(5.0)
    with pytest.raises(DeadlineExceeded):
        call.result()


def test_call_without_topology_fails_at_its_deadline() -> None:
    bench = Bench(topology=False)
    call = put(bench, 0.5)
    bench.wait(0.5)
    with pytest.raises(Unavailable, match="no topology"):
        call.result()


def test_nothing_listening_is_told_at_once_and_tried_again_later() -> None:
    bench = Bench(topology=False)
    call = put(bench)
    bench.core.refused(ROUTER, bench.now)
    with pytest.raises(Unavailable, match="shardnode start"):
        call.result()
    put(bench)
    assert bench.one().kind is Kind.TOPOLOGY


def test_outage_after_a_first_contact_is_waited_out() -> None:
    bench = Bench()
    call = put(bench)
    for endpoint in (DIRECT[0, 1], ROUTER):
        bench.core.refused(endpoint, bench.now)
    bench.wait(2.0)
    assert not call.done
    bench.core.connected(DIRECT[0, 1])
    bench.next().answer(Written(3))
    assert call.result() == 3


def test_refused_direct_port_falls_back_to_the_router_with_the_shards_prefix() -> None:
    bench = Bench()
    call = put(bench)
    bench.core.refused(DIRECT[0, 1], bench.now)
    write = bench.one()
    assert write.endpoint == ROUTER
    assert write.request.prefix == 0
    write.answer(Written(4))
    assert call.result() == 4


def test_broken_connection_repeats_what_was_sent_over_it_with_its_session() -> None:
    bench = Bench()
    call = put(bench)
    _, first = bench.sent()
    bench.core.disconnected(DIRECT[0, 1], bench.now)
    opening, again = bench.sent()
    assert (opening.kind, again.frames) == (Kind.SESSION_OPEN, first.frames)
    assert again.endpoint == ROUTER
    opening.answer(SessionGranted(1))
    again.answer(Written(5))
    assert call.result() == 5


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
        bench.next().answer(Overloaded("full", lag=9, limit=9))
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


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_garbage_is_dropped(frames: list[bytes]) -> None:
    bench = Bench()
    call = put(bench)
    message = bench.one()
    bench.core.received(frames, bench.now)
    message.answer(Written(1))
    assert call.result() == 1


def test_newer_epoch_in_any_answer_refreshes_the_table() -> None:
    bench = Bench()
    call = get(bench)
    bench.one().answer(Entry(None, 0, 0), epoch=2)
    assert call.result() is None
    assert bench.one().kind is Kind.TOPOLOGY


def test_lane_bounds_what_is_under_way_and_the_rest_follows() -> None:
    bench = Bench()
    calls = [get(bench) for _ in range(lanes.REQUESTS_MAX + 10)]
    messages = bench.sent()
    assert len(messages) == lanes.REQUESTS_MAX
    for message in messages:
        message.answer(Entry(b"", 1, 0))
    rest = bench.sent()
    assert len(rest) == 10
    for message in rest:
        message.answer(Entry(b"", 1, 0))
    assert all(call.done for call in calls)


def test_write_that_waited_for_room_until_the_end_had_no_effect() -> None:
    bench = Bench()
    for _ in range(lanes.REQUESTS_MAX):
        put(bench)
    last = put(bench)
    bench.sent()
    bench.wait(5.0)
    with pytest.raises(Unavailable):
        last.result()


def test_closing_tells_what_may_have_happened() -> None:
    bench = Bench()
    sent = put(bench)
    bench.one()
    queued = put(bench)
    bench.core.give_up("closed", bench.now)
    with pytest.raises(OutcomeUnknown):
        sent.result()
    with pytest.raises(Unavailable):
        queued.result()


def test_cancelled_call_leaves_nothing_behind() -> None:
    bench = Bench()
    call = put(bench)
    message = bench.one()
    bench.core.cancel(call, bench.now)
    message.answer(Written(1))
    assert bench.core.finished == []
    assert bench.core.wake_at() is None
    put(bench)
    write = bench.one()
    assert write.header.acked_below == write.header.sequence


def test_transaction_over_two_shards_is_refused_before_it_is_sent() -> None:
    bench = Bench()
    call = operations.transact((), [Do.put(KEY, b""), Do.put(b"b", b"")], ())
    bench.start(call)
    with pytest.raises(InvalidRequest, match="braces"):
        call.result()
    assert not bench.sent()
