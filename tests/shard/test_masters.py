"""Every member finds the same master; a change of members moves few partitions."""

from __future__ import annotations

from collections import Counter

from shardnode.shard.masters import Elected, Fixed, Nobody, acting_master, master_of

VOTERS = (11, 12, 13)


def test_partitions_are_spread_and_the_order_of_members_does_not_matter() -> None:
    masters = {number: master_of(number, VOTERS, Elected()) for number in range(3_000)}
    assert masters == {n: master_of(n, VOTERS[::-1], Elected()) for n in range(3_000)}
    counts = Counter(masters.values())
    assert set(counts) == set(VOTERS)
    assert min(counts.values()) > 900


def test_a_member_that_leaves_moves_only_what_was_its_own() -> None:
    for number in range(1_000):
        before = master_of(number, VOTERS, Elected())
        after = master_of(number, VOTERS[:2], Elected())
        assert before == after or before == VOTERS[2]


def test_fixed_and_disabled() -> None:
    assert master_of(1, VOTERS, Fixed(12)) == 12
    assert master_of(1, VOTERS, Fixed(99)) == 0
    assert master_of(1, VOTERS, Nobody()) == 0
    assert master_of(1, (), Elected()) == 0


def test_leader_stands_in_for_a_master_that_is_down_but_for_nobody_else() -> None:
    def acting(policy: Elected | Fixed | Nobody, in_touch: tuple[int, ...]) -> int:
        return acting_master(1, VOTERS, policy, leader=11, in_touch=in_touch)

    assert acting(Fixed(12), (12, 13)) == 12
    assert acting(Fixed(12), (13,)) == 11
    assert acting(Fixed(99), (12, 13)) == 11
    assert acting(Fixed(11), ()) == 11
    assert acting(Nobody(), (12, 13)) == 0
