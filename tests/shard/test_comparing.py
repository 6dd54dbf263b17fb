"""Replicas that differ: the minority knows, and says why."""

from __future__ import annotations

from itertools import permutations

from shardnode.raft import Membership
from shardnode.shard.comparing import KEPT, Comparing
from shardnode.shard.letters import Check

THREE = Membership.of([1, 2, 3])


class Room:
    """Members that hear everything the others say."""

    def __init__(self, membership: Membership = THREE) -> None:
        self.membership = membership
        self.members = {m: Comparing(9, m) for m in membership.everyone}

    def check(self, index: int, digests: dict[int, int], order: tuple[int, ...] = ()) -> None:
        letters: list[Check] = []
        for member in order or tuple(digests):
            letters += self.members[member].own(index, digests[member], self.membership)
        for letter in letters:
            self.members[letter.target].heard(letter, self.membership)

    def verdicts(self) -> dict[int, str]:
        return {m: each.verdict(self.membership) for m, each in self.members.items()}


def test_equal_states_are_agreed_on() -> None:
    room = Room()
    room.check(10, {1: 7, 2: 7, 3: 7})
    assert set(room.verdicts().values()) == {""}
    assert {each.agreed_index for each in room.members.values()} == {10}


def test_minority_fences_itself_whoever_it_is_and_whenever_it_speaks() -> None:
    for odd in (1, 2, 3):
        for order in permutations((1, 2, 3)):
            room = Room()
            room.check(10, {m: 8 if m == odd else 7 for m in (1, 2, 3)}, order)
            verdicts = room.verdicts()
            assert "expected the state of index 10" in verdicts.pop(odd)
            assert set(verdicts.values()) == {""}


def test_nobody_is_fenced_without_a_majority_against_it() -> None:
    room = Room()
    room.check(10, {1: 7, 2: 8})
    assert set(room.verdicts().values()) == {""}
    room.check(11, {1: 7, 2: 8, 3: 9})
    assert set(room.verdicts().values()) == {""}


def test_learner_that_differs_is_fenced_and_has_no_say() -> None:
    room = Room(Membership.of([1, 2], learners=[3, 4, 5]))
    room.check(10, {1: 7, 2: 7, 3: 8, 4: 8, 5: 8})
    verdicts = room.verdicts()
    assert [m for m, why in verdicts.items() if why] == [3, 4, 5]


def test_stranger_is_not_heard_and_memory_is_bounded() -> None:
    room = Room()
    one = room.members[1]
    one.own(10, 7, THREE)
    for source in (4, 5, 6):
        one.heard(Check(9, source, 1, 10, 8), THREE)
    assert not one.verdict(THREE)
    for index in range(1_000):
        one.heard(Check(9, 2, 1, index, index), THREE)
    assert len(one._said) == len(one._order) == KEPT
    one.heard(Check(9, 2, 1, 3, 3), THREE)
    assert 3 not in one._said, "what is long gone does not push out what is new"
