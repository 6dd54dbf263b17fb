"""What a leader knows of a member: the table at the top of `progress.py`, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.raft.progress import Mode, Progress

WINDOW = 3


def streaming(match: int = 5) -> Progress:
    progress = Progress(match + 1, 0)
    progress.accepted(match, 0)
    assert progress.mode is Mode.REPLICATE
    return progress


def test_probe_sends_one_append_and_waits() -> None:
    progress = Progress(6, 0)
    assert progress.may_send(WINDOW)
    progress.sent(9, 1)
    assert not progress.may_send(WINDOW)
    assert progress.next == 6, "a probe is repeated from the same place"


def test_accepted_probe_begins_to_stream_after_the_match() -> None:
    progress = Progress(6, 0)
    progress.sent(9, 1)
    assert progress.accepted(9, 2)
    assert (progress.mode, progress.match, progress.next) == (Mode.REPLICATE, 9, 10)


def test_stream_is_optimistic_until_the_window_is_full() -> None:
    progress = streaming()
    for last in (6, 7, 8):
        assert progress.may_send(WINDOW)
        progress.sent(last, 1)
    assert progress.next == 9
    assert not progress.may_send(WINDOW)


def test_one_answer_makes_room_for_all_that_it_covers() -> None:
    progress = streaming()
    for last in (6, 7, 8):
        progress.sent(last, 1)
    assert progress.accepted(7, 2)
    assert list(progress.inflight) == [8]
    assert (progress.match, progress.next) == (7, 9)


def test_refusal_ends_the_stream() -> None:
    progress = streaming()
    progress.sent(9, 1)
    assert progress.refused(9, 6, 2)
    assert (progress.mode, progress.next, len(progress.inflight)) == (Mode.PROBE, 6, 0)


def test_refusal_of_what_is_proven_is_an_old_one() -> None:
    progress = streaming()
    assert not progress.refused(5, 3, 2)
    assert (progress.mode, progress.match) == (Mode.REPLICATE, 5)


def test_refused_probe_steps_back_to_the_hint() -> None:
    progress = Progress(20, 0)
    progress.sent(19, 1)
    assert progress.refused(19, 7, 2)
    assert progress.next == 8
    assert progress.may_send(WINDOW)


def test_refused_probe_always_steps_back() -> None:
    progress = Progress(20, 0)
    progress.sent(19, 1)
    assert progress.refused(19, 25, 2)
    assert progress.next == 19


def test_refusal_of_another_probe_is_an_old_one() -> None:
    progress = Progress(20, 0)
    progress.sent(19, 1)
    assert not progress.refused(12, 7, 2)
    assert progress.next == 20
    assert not progress.may_send(WINDOW)


def test_snapshot_stops_everything_until_it_is_installed() -> None:
    progress = Progress(6, 0)
    progress.await_snapshot(50, 1)
    assert not progress.may_send(WINDOW)
    assert not progress.refused(5, 1, 2)
    assert progress.accepted(40, 3)
    assert progress.mode is Mode.SNAPSHOT
    assert progress.accepted(50, 4)
    assert (progress.mode, progress.next) == (Mode.REPLICATE, 51)


def test_member_that_lost_its_log_is_believed_nothing() -> None:
    progress = streaming()
    progress.sent(9, 1)
    progress.restart(4, 2)
    assert (progress.mode, progress.match, progress.next) == (Mode.PROBE, 0, 4)
    assert progress.may_send(WINDOW)


@pytest.mark.parametrize("match", [3, 5])
def test_old_answer_is_no_news(match: int) -> None:
    progress = streaming()
    assert not progress.accepted(match, 9)
    assert (progress.match, progress.progress_ms) == (5, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["sent", "accepted", "refused", "snapshot"]), st.integers(0, 30)),
    max_size=40,
)


@given(STEPS)
def test_match_never_goes_back_and_next_is_above_it(steps: list[tuple[str, int]]) -> None:
    progress = Progress(10, 0)
    for name, number in steps:
        before = progress.match
        if name == "sent":
            if progress.may_send(WINDOW):
                progress.sent(max(number, progress.next), 1)
        elif name == "accepted":
            progress.accepted(number, 1)
        elif name == "refused":
            progress.refused(number, number // 2, 1)
        else:
            progress.await_snapshot(number, 1)
        assert progress.match >= before
        assert progress.next > progress.match
        assert len(progress.inflight) <= WINDOW
        assert all(last > progress.match for last in progress.inflight)
