"""Counting: pure functions over sets of voters, with no idea of who they are.

The one rule: a joint configuration decides only when both halves decide. An empty half agrees
with everything, so a simple configuration is a joint one with an empty half.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

Halves = tuple[Collection[int], Collection[int]]
"""Incoming and outgoing voters; the second is empty outside of a change."""


class Verdict(Enum):
    """How far a vote has come."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(size: int) -> int:
    """How many of `size` voters decide."""
    return size // 2 + 1


def reached(halves: Halves, value_of: Callable[[int], int]) -> int:
    """The highest value that a majority of each half has reached. Both empty: 0.

    With match indexes this is what may be committed; with stamps, what a round has proven; with
    times of contact, when a quorum was last heard of.
    """
    values = [_half_reached(half, value_of) for half in halves if half]
    return min(values, default=0)


def _half_reached(half: Collection[int], value_of: Callable[[int], int]) -> int:
    values = sorted(map(value_of, half), reverse=True)
    return values[majority(len(values)) - 1]


def verdict(halves: Halves, votes: dict[int, bool]) -> Verdict:
    """Won when both halves have a majority of yes; lost as soon as one half cannot any more."""
    results = [_half_verdict(half, votes) for half in halves if half]
    if any(result is Verdict.LOST for result in results):
        return Verdict.LOST
    if results and all(result is Verdict.WON for result in results):
        return Verdict.WON
    return Verdict.PENDING


def _half_verdict(half: Collection[int], votes: dict[int, bool]) -> Verdict:
    needed = majority(len(half))
    yes = sum(1 for member in half if votes.get(member) is True)
    no = sum(1 for member in half if votes.get(member) is False)
    if yes >= needed:
        return Verdict.WON
    if no > len(half) - needed:
        return Verdict.LOST
    return Verdict.PENDING
