"""A partition's entries count as acknowledged when its policy says so, and never before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardnode.shard.acks import MAJORITY, AckTracker, Custom, Threshold

PART, OTHER = 7, 8


def tracker(policy: Threshold | Custom, voters: int = 3) -> AckTracker:
    acks = AckTracker()
    acks.register(PART, policy)
    acks.begin(1, range(1, voters + 1))
    for number in range(1, 6):
        acks.appended(PART, number, 10 * number)
    return acks


def test_threshold_waits_for_so_many_and_for_the_commit() -> None:
    acks = tracker(Threshold(3))
    acks.ack(1, 1, 50)
    acks.ack(2, 1, 50)
    assert acks.advance(50) == {}
    acks.ack(3, 1, 25)
    assert acks.advance(15) == {PART: 1}
    assert acks.advance(50) == {PART: 2}
    assert acks.pending == {PART: 30}
    assert (acks.satisfied(PART, 5), acks.satisfied(PART, 1)) == (2, 1)


def test_threshold_beyond_the_group_means_all_of_it() -> None:
    acks = tracker(Threshold(9), voters=2)
    for member in (1, 2):
        acks.ack(member, 1, 50)
    assert acks.advance(50) == {PART: 5}


def test_custom_policy_decides_by_who_holds_it() -> None:
    acks = tracker(Custom(lambda holders: 3 in holders))
    for member in (1, 2):
        acks.ack(member, 1, 50)
    assert acks.advance(50) == {}
    acks.ack(3, 1, 10)
    assert acks.advance(50) == {PART: 1}


def test_strangers_old_terms_and_lower_indexes_never_count() -> None:
    acks = tracker(Threshold(2))
    assert acks.ack(1, 1, 50)
    for member, term, index in [(9, 1, 50), (2, 0, 50), (2, 2, 50), (1, 1, 50), (1, 1, 40)]:
        assert not acks.ack(member, term, index)
    assert acks.advance(50) == {}


def test_new_term_forgets_acknowledgements_and_what_was_pending() -> None:
    acks = tracker(Threshold(2))
    acks.ack(1, 1, 50)
    acks.ack(2, 1, 50)
    acks.begin(2, (1, 2, 3))
    acks.appended(PART, 1, 10)
    assert acks.advance(50) == {}
    acks.ack(1, 2, 10)
    acks.ack(2, 2, 10)
    assert acks.advance(50) == {PART: 1}


def test_member_that_left_counts_no_more() -> None:
    acks = tracker(Threshold(2))
    acks.ack(3, 1, 50)
    acks.begin(1, (1, 2))
    acks.ack(1, 1, 50)
    assert acks.advance(50) == {}


def test_registering_again_keeps_what_is_pending_and_majority_tracks_nothing() -> None:
    acks = tracker(Threshold(3))
    acks.register(PART, Threshold(1))
    acks.ack(2, 1, 20)
    assert acks.advance(50) == {PART: 2}
    acks.register(OTHER, MAJORITY)
    assert len(acks) == 1
    assert acks.satisfied(OTHER, 4) == 4
    acks.register(PART, MAJORITY)
    assert len(acks) == 0


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 60)), max_size=40),
    st.integers(1, 4),
    st.integers(0, 60),
)
def test_it_agrees_with_counting(
    said: list[tuple[int, int, int]], needed: int, committed: int
) -> None:
    acks = tracker(Threshold(needed))
    held = dict.fromkeys((1, 2, 3), 0)
    for member, term, index in said:
        acks.ack(member, term, index)
        if term == 1 and member in held:
            held[member] = max(held[member], index)
    acks.advance(committed)
    limit = sorted(held.values(), reverse=True)[min(needed, 3) - 1]
    assert acks.satisfied(PART, 5) == min(5, min(limit, committed) // 10)
