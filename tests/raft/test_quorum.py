"""Counting, against definitions that are slow and plain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.raft.quorum import Verdict, majority, reached, verdict

VOTERS = st.sets(st.integers(1, 9), max_size=7)
VALUES = st.fixed_dictionaries({voter: st.integers(0, 5) for voter in range(1, 10)})
VOTES = st.dictionaries(st.integers(1, 9), st.booleans())


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority_is_more_than_half(size: int, needed: int) -> None:
    assert majority(size) == needed


def decides(half: set[int], members: set[int]) -> bool:
    return not half or 2 * len(half & members) > len(half)


@given(VOTERS, VOTERS, VALUES)
def test_reached_is_the_highest_value_that_a_majority_of_each_half_has(
    incoming: set[int], outgoing: set[int], values: dict[int, int]
) -> None:
    def agreed(value: int) -> bool:
        have = {voter for voter in values if values[voter] >= value}
        return decides(incoming, have) and decides(outgoing, have)

    expected = max(value for value in range(6) if agreed(value)) if incoming | outgoing else 0
    assert reached((incoming, outgoing), values.__getitem__) == expected


@given(VOTERS, VOTERS, VOTES)
def test_verdict_is_won_by_both_halves_and_lost_by_one(
    incoming: set[int], outgoing: set[int], votes: dict[int, bool]
) -> None:
    yes = {voter for voter, granted in votes.items() if granted}
    open_or_yes = yes | (set(range(1, 10)) - set(votes))
    possible = decides(incoming, open_or_yes) and decides(outgoing, open_or_yes)
    won = decides(incoming, yes) and decides(outgoing, yes) and bool(incoming | outgoing)
    expected = Verdict.WON if won else Verdict.PENDING if possible else Verdict.LOST
    assert verdict((incoming, outgoing), votes) is expected


def test_nobody_wins_in_a_group_without_voters() -> None:
    assert verdict(((), ()), {1: True}) is Verdict.PENDING
    assert reached(((), ()), lambda _: 9) == 0
