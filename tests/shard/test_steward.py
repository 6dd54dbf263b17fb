"""What a leader does for its group, one step at a time, from whatever it finds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest

from shardnode.raft import Membership
from shardnode.shard.control import Wish
from shardnode.shard.replica import Fate
from shardnode.shard.steward import (
    AGAIN_MS,
    LOOK_EVERY_MS,
    STEADY_MS,
    Step,
    Steward,
    next_step,
    should_lead,
)
from tests.shard.kit import OPEN, Group, Host, put


@pytest.mark.parametrize(
    ("now", "wanted", "caught_up", "step"),
    [
        (Membership.of([1, 2, 3]), [1, 2, 3], [2, 3], None),
        (Membership.of([1]), [1, 2], [], Step({1}, {2})),
        (Membership.of([1], learners=[2]), [1, 2], [], None),
        (Membership.of([1], learners=[2]), [1, 2], [2], Step({1, 2}, set())),
        (Membership.of([1], learners=[2, 3]), [1, 2, 3], [3], Step({1, 3}, {2})),
        (Membership.of([1, 2, 3]), [1, 2], [2, 3], Step({1, 2}, set())),
        (Membership.of([1, 2], learners=[3]), [1, 2], [2, 3], Step({1, 2}, set())),
        (Membership.of([1, 2, 3]), [1, 2, 4], [2], Step({1, 2, 3}, {4})),
        (Membership.of([1, 2, 3], outgoing=[1, 2]), [1], [2, 3], None),
        # Nobody is left who could vote: the wish waits for somebody who has caught up.
        (Membership.of([1], learners=[2]), [2], [], None),
        (Membership.of([1], learners=[2]), [2], [2], Step({1, 2}, set())),
    ],
)
def test_next_step(
    now: Membership, wanted: Collection[int], caught_up: Collection[int], step: Step | None
) -> None:
    assert next_step(now, wanted, caught_up) == step


def test_any_wish_comes_true_in_steps_that_each_keep_a_voter() -> None:
    rng = Random(5)
    for _ in range(500):
        everyone = range(1, 8)
        now = Membership.of(rng.sample(everyone, rng.randint(1, 5)))
        wanted = rng.sample(everyone, rng.randint(1, 5))
        for _ in range(20):
            step = next_step(now, wanted, caught_up=everyone)
            if step is None:
                break
            assert step.voters
            assert not set(step.voters) & set(step.learners)
            now = now.toward(step.voters, step.learners).settled()
        assert (set(now.voters), now.learners) == (set(wanted), ())


class Tended(Group):
    """A group whose members have stewards, and all of them hear of every wish."""

    def __init__(self, size: int, nodes: int = 0) -> None:
        super().__init__(size)
        self.wish = Wish(1, {node: f"tcp://n{node}" for node in range(1, size + 1)})
        for member in range(size + 1, nodes + 1):
            settings = replace(self.settings, bootstrap=Membership.of(()), blank=True)
            self.settings, kept = settings, self.settings
            self.hosts[member] = Host(self, member)
            self.settings = kept
        self.stewards = {member: Steward(host.up, 0) for member, host in self.hosts.items()}

    def want(self, *nodes: int) -> None:
        self.wish = Wish(self.wish.version + 1, {node: f"tcp://n{node}" for node in nodes})

    def tend(self, for_ms: int) -> None:
        for _ in range(0, for_ms, LOOK_EVERY_MS):
            for member, steward in self.stewards.items():
                if self.hosts[member].replica is not None and member not in self.blocked:
                    steward.tend(self.wish, self.now_ms)
            self.run(LOOK_EVERY_MS)

    def voters(self) -> tuple[int, ...]:
        return self.leader().up.raft.membership.voters


def test_lead_drifts_to_whom_it_belongs_and_only_when_it_is_steady() -> None:
    group = Tended(3)
    leader = group.leader()
    if leader.member == 1:
        leader.up.transfer(2)
        group.run(500)
    assert group.leader().member != 1
    group.tend(STEADY_MS - 2 * LOOK_EVERY_MS)
    assert group.leader().member != 1
    group.tend(STEADY_MS)
    assert group.leader().member == 1
    term = group.leader().up.raft.term
    group.tend(2 * AGAIN_MS)
    assert group.leader().up.raft.term == term, "and there it stays"


def test_lead_given_by_hand_stays_until_another_wish() -> None:
    group = Tended(3)
    group.leader()
    group.tend(2 * STEADY_MS)
    leader = group.leader()
    assert leader.member == 1
    group.stewards[3].handed(leader.up.raft.term)
    leader.up.transfer(3)
    group.tend(3 * AGAIN_MS)
    assert group.leader().member == 3
    group.want(1, 2, 3)
    group.tend(2 * STEADY_MS)
    assert group.leader().member == 1


def test_node_that_is_wanted_learns_then_votes_and_one_that_is_not_leaves() -> None:
    group = Tended(3, nodes=4)
    group.propose(OPEN, put(1))
    group.want(1, 2, 3, 4)
    group.tend(2_000)
    assert group.voters() == (1, 2, 3, 4)
    assert not group.hosts[4].up.raft.recovering
    assert group.hosts[4].machine.get(b"k")[0] == b"v"
    group.want(2, 3, 4)
    group.tend(4_000)
    assert group.leader().member != 1
    assert group.voters() == (2, 3, 4)
    assert [outcome.fate for outcome in group.propose(put(2))] == [Fate.APPLIED]


def test_node_that_cannot_be_reached_stays_a_learner_and_hinders_nobody() -> None:
    group = Tended(2, nodes=3)
    group.propose(OPEN)
    group.blocked.add(3)
    group.want(1, 2, 3)
    group.tend(2_000)
    membership = group.leader().up.raft.membership
    assert (membership.voters, membership.learners) == ((1, 2), (3,))
    assert [outcome.fate for outcome in group.propose(put(1))] == [Fate.APPLIED]
    group.blocked.clear()
    group.tend(2_000)
    assert group.voters() == (1, 2, 3)


def test_change_goes_on_when_its_leader_dies_in_the_middle() -> None:
    for moment_ms in range(0, 2_000, 200):
        group = Tended(3, nodes=5)
        group.propose(OPEN, put(1))
        group.want(2, 3, 4, 5)
        group.tend(moment_ms)
        dead = group.leader()
        dead.crash()
        group.tend(6_000)
        dead.boot()
        group.stewards[dead.member] = Steward(dead.up, 0)
        group.tend(10_000)
        assert group.voters() == (2, 3, 4, 5)
        assert [outcome.fate for outcome in group.propose(put(2))] == [Fate.APPLIED]
        assert group.leader().machine.get(b"k")[0] == b"v"


def test_leaders_take_turns() -> None:
    group = Group(3)
    raft = group.leader().up.raft
    assert [should_lead(raft, shard, [1, 2, 3]) for shard in range(4)] == [1, 2, 3, 1]
    assert [should_lead(raft, shard, [1, 3]) for shard in range(4)] == [1, 3, 1, 3]
    assert should_lead(raft, 0, []) == raft.member
