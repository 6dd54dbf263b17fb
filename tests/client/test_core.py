"""Every way an exchange can go, on a simulated clock: what is sent, when, and what callers get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.client import lanes, operations
from shardnode.client.calls import Call
from shardnode.client.transactions import Do
from shardnode.wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
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


def test_node_that_hangs_is_left_for_one_that_knows_its_successor() -> None:
    bench = Bench(nodes=3)
    call = put(bench)
    first = bench.one()
    assert first.endpoint == DIRECT[0, 1]
    bench.wait(1.0)
    asked = []
    for _ in range(4):  # they have not noticed yet, and still believe in the one that hangs
        message = bench.next()
        asked.append(message.endpoint)
        message.answer(NotLeader("ask node 1", leader=1))
    assert set(asked) == {DIRECT[0, 2], DIRECT[0, 3]}
    bench.next().answer(NotLeader("ask node 3", leader=3))
    successor = bench.next()
    assert successor.endpoint == DIRECT[0, 3]
    successor.answer(Written(9))
    assert call.result() == 9
    assert bench.now < 1_001.5


def test_slow_leader_is_asked_again_after_its_answer_has_come() -> None:
    bench = Bench(nodes=3)
    call = put(bench)
    first = bench.one()
    bench.wait(1.0)
    assert bench.one().endpoint == DIRECT[0, 2]
    first.answer(Written(9))
    assert call.result() == 9
    get(bench)
    assert bench.one().endpoint == DIRECT[0, 1]


def test_leader_that_answered_is_believed_more_than_a_node_that_knows_none() -> None:
    bench = Bench(nodes=3)
    call = put(bench)
    bench.one().answer(NotLeader("deposed, and cut off"))
    [asked] = bench.sent()
    assert asked.kind is Kind.TOPOLOGY
    message = bench.next()
    assert message.endpoint == DIRECT[0, 2]
    message.answer(Written(9))
    assert call.result() == 9
    asked.answer(bench.topology(leader=0))
    put(bench)
    assert bench.one().endpoint == DIRECT[0, 2]


def test_refusals_do_not_make_the_next_attempt_more_patient() -> None:
    bench = Bench(nodes=3)
    put(bench, 30.0)
    for _ in range(6):
        bench.next().answer(NotLeader("ask node 2", leader=2))
    bench.next()
    begin = bench.now
    bench.next()
    assert bench.now - begin <= 1.0


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


def test_answered_request_keeps_no_bytes_alive() -> None:
    bench = Bench()
    put(bench)
    message = bench.one()
    message.answer(Written(1))
    assert (message.exchange.body, message.exchange.frames) == (b"", ())
