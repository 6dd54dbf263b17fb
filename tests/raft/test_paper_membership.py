"""Changes of membership, rule by rule: paper, 6; thesis, 4.1 to 4.3."""

from __future__ import annotations

import pytest

from shardnode.raft import BadTarget, ChangePending, Membership, NotLeader, Role
from shardnode.raft.membership import MEMBERS_MAX
from shardnode.raft.messages import VoteReply
from tests.raft.host import CLUSTER, Host
from tests.raft.kit import HEARTBEAT_MS, TIMEOUT_MS, Group, only, role_of, vote


def joined(group: Group, *members: int) -> None:
    """Empty members that know nobody yet."""
    for member in members:
        group.add(member, voters=())


def led_by_1(group: Group, *voters: int) -> Host:
    return group.start(*voters).elect(1)


def test_configuration_is_in_force_as_soon_as_it_is_in_the_log(group: Group) -> None:
    """6: a server always uses the latest configuration in its log, committed or not."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4)
    index = group.change(1, [1, 2, 3, 4])
    assert host.raft.membership == Membership.of([1, 2, 3, 4], [1, 2, 3])
    assert host.raft.commit_index < index
    group.deliver(1, 2)
    assert group[2].raft.membership == host.raft.membership
    assert group[3].raft.membership == Membership.of([1, 2, 3])


def test_change_passes_through_the_joint_configuration_to_the_new_one(group: Group) -> None:
    """6, figure 11: C(old), then C(old, new), then C(new), which the leader appends by itself."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4, 5)
    group.change(1, [1, 4, 5])
    group.advance(TIMEOUT_MS)
    seen = [Membership.decode(entry.payload) for entry in host.applied if entry.payload]
    assert seen == [Membership.of([1, 4, 5], [1, 2, 3]), Membership.of([1, 4, 5])]
    assert group[4].raft.membership == group[5].raft.membership == Membership.of([1, 4, 5])


@pytest.mark.parametrize("reachable", [[2, 3], [4, 5]], ids=["old", "new"])
def test_joint_configuration_needs_both_majorities_to_commit(
    group: Group, reachable: list[int]
) -> None:
    """6: agreement requires separate majorities from the old and the new configuration."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4, 5, 6)
    cut_off = {2, 3, 4, 5, 6} - set(reachable)
    for member in cut_off:
        group.cut(1, member)
    index = group.change(1, [4, 5, 6])
    group.advance(TIMEOUT_MS // 2)
    assert [group[member].raft.log.last_index for member in reachable] == [index, index]
    assert host.raft.commit_index < index
    group.heal()
    group.advance(4 * TIMEOUT_MS)
    assert group.leader().raft.commit_index > index


def test_joint_configuration_needs_both_majorities_to_elect(group: Group) -> None:
    """6: elections too require separate majorities from both configurations."""
    led_by_1(group, 1, 2, 3)
    joined(group, 4, 5, 6)
    group.change(1, [4, 5, 6])
    group.deliver(1, 2)
    group.crash(1)
    group.drop()
    host = group[2]
    assert host.raft.membership.joint
    host.tick(TIMEOUT_MS)
    host.raft.campaign_for_real(forced=False)
    host.drain()
    term = host.raft.term
    for voter in (3, 4):
        host.receive(VoteReply(CLUSTER, voter, 2, term, True))
    assert role_of(host) is Role.CANDIDATE, "a majority of the old, not of the new"
    host.receive(VoteReply(CLUSTER, 5, 2, term, True))
    assert role_of(host) is Role.LEADER


def test_leader_outside_the_new_configuration_does_not_count_itself(group: Group) -> None:
    """6, thesis 4.2.2: it manages a group that does not include itself, until C(new) commits."""
    host = led_by_1(group, 1, 2, 3, 4)
    group.change(1, [2, 3, 4])
    while host.raft.membership.joint:
        group.deliver()
    group.cut(1, 3)
    group.cut(1, 4)
    group.settle()
    assert group[2].raft.log.last_index == host.raft.history.index
    assert host.raft.role is Role.LEADER, "members 1 and 2 are no majority of 2 3 4"


def test_leader_outside_the_new_configuration_steps_down_when_it_is_committed(
    group: Group,
) -> None:
    """6, thesis 4.2.2: the leader steps down once C(new) is committed, and never comes back."""
    host = led_by_1(group, 1, 2, 3)
    group.change(1, [2, 3])
    group.settle()
    assert (host.raft.role, host.raft.leader) == (Role.FOLLOWER, 0)
    assert host.raft.membership == Membership.of([2, 3])
    with pytest.raises(NotLeader):
        host.propose(b"a")
    group.advance(10 * TIMEOUT_MS)
    assert group.leader().member in (2, 3)
    assert host.raft.role is Role.FOLLOWER


def test_removed_member_campaigns_while_its_removal_may_not_be_committed(group: Group) -> None:
    """4.2.2: it may be the only one whose log is good enough to let the change finish."""
    host = led_by_1(group, 1, 2, 3)
    group.change(1, [3], [1, 2])
    while host.raft.membership.joint:
        group.deliver()
    group.cut(1, 3)
    group.settle()
    assert group[2].raft.membership == Membership.of([3], (), [1, 2])
    assert group[3].raft.membership.joint, "3 lacks the entry, so neither 1 nor 2 votes for it"
    group.restart(1)
    group.heal()
    group.advance(10 * TIMEOUT_MS)
    assert group.leader().member == 3
    assert group[3].raft.membership == Membership.of([3], (), [1, 2])
    assert [role_of(group[member]) for member in (1, 2)] == [Role.FOLLOWER, Role.FOLLOWER]


def test_new_leader_finishes_the_change_of_its_predecessor(group: Group) -> None:
    """6: C(old, new) in the log of a new leader is committed with its no-op, then left."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4)
    group.change(1, [1, 2, 3, 4])
    group.deliver(1)
    group.crash(1)
    group.drop()
    assert host.raft.membership.joint
    group.elect(2)
    group.advance(TIMEOUT_MS)
    assert group[2].raft.membership == Membership.of([1, 2, 3, 4])
    assert group[4].raft.membership == group[2].raft.membership


def test_one_change_at_a_time(group: Group) -> None:
    """4.1: the next change waits until the one before has left the joint configuration."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4)
    group.change(1, [1, 2, 3, 4])
    with pytest.raises(ChangePending, match="not finished"):
        host.raft.change_config([1, 2])
    group.settle()
    group.change(1, [1, 2, 3], [4])
    group.settle()
    assert host.raft.membership == Membership.of([1, 2, 3], (), [4])


def test_change_of_learners_has_to_be_committed_before_the_next_change(group: Group) -> None:
    """4.1: one at a time, also when nothing is joint."""
    host = led_by_1(group, 1, 2, 3)
    group.change(1, [1, 2, 3], [4])
    with pytest.raises(ChangePending, match="not finished"):
        host.raft.change_config([1, 2])


def test_no_change_before_a_commit_in_this_term(group: Group) -> None:
    """4.1 (and the correction to it): a new leader first commits an entry of its own term."""
    group.start(1, 2, 3)
    host = group[1]
    host.tick(2 * TIMEOUT_MS)
    while host.raft.role is not Role.LEADER:
        group.deliver()
    with pytest.raises(ChangePending, match="no entry of this term"):
        host.raft.change_config([1, 2])
    group.settle()
    assert host.raft.change_config([1, 2]) == 2


def test_overwritten_configuration_is_no_longer_in_force(group: Group) -> None:
    """4.1: a server falls back to the previous configuration in its log."""
    host = led_by_1(group, 1, 2, 3)
    joined(group, 4)
    group.isolate(1)
    group.change(1, [1, 2, 3, 4])
    group.drop()
    group.elect(2)
    group.commit(2, b"a")
    assert host.raft.membership.joint
    group.heal()
    group.advance(TIMEOUT_MS)
    assert host.raft.membership == Membership.of([1, 2, 3])
    assert host.applied == group[2].applied


def test_only_voter_waits_when_its_configuration_may_not_be_committed(group: Group) -> None:
    """4.1: the leader of the configuration before may still lead, so a restart is in no hurry."""
    led_by_1(group, 1, 2)
    group.change(1, [1])
    group.settle()
    host = group.restart(1)
    assert host.raft.membership == Membership.of([1])
    assert host.raft.commit_index < host.raft.history.index
    host.tick()
    assert role_of(host) is Role.FOLLOWER
    host.tick(2 * TIMEOUT_MS)
    assert role_of(host) is Role.LEADER


def test_configuration_in_the_log_outlives_a_restart(group: Group) -> None:
    """4.1: it is part of the log, so a restart finds it again, committed or not."""
    led_by_1(group, 1, 2, 3)
    joined(group, 4)
    group.change(1, [1, 2, 3, 4])
    group.deliver(1, 2)
    assert group.restart(2).raft.membership == Membership.of([1, 2, 3, 4], [1, 2, 3])


def test_learner_receives_everything_and_decides_nothing(group: Group) -> None:
    """4.2.1: a new server catches up as a non-voting member."""
    host = led_by_1(group, 1, 2, 3)
    group.commit(1, *[b"%d" % i for i in range(20)])
    joined(group, 4)
    group.change(1, [1, 2, 3], [4])
    group.advance(HEARTBEAT_MS)
    assert group[4].applied == host.applied
    for member in (2, 3):
        group.cut(1, member)
    index = group.propose(1, b"a")
    group.settle()
    assert group[4].raft.log.last_index == index
    assert host.raft.commit_index == index - 1
    group.isolate(4)
    group[4].tick(20 * TIMEOUT_MS)
    assert group[4].raft.role is Role.FOLLOWER


def test_change_of_learners_is_one_step(group: Group) -> None:
    """4.2.1: no majority changes, so nothing has to be joint."""
    host = led_by_1(group, 1, 2, 3)
    group.change(1, [1, 2, 3], [4])
    assert not host.raft.membership.joint


def test_removed_member_does_not_disrupt(group: Group) -> None:
    """4.2.3: a server that was not told of its removal keeps asking, and nobody listens."""
    host = led_by_1(group, 1, 2, 3, 4)
    group.isolate(4)
    group.change(1, [1, 2, 3])
    group.settle()
    group.heal()
    group.advance(20 * TIMEOUT_MS)
    assert group[4].raft.membership == Membership.of([1, 2, 3, 4])
    assert (group.leader(), host.raft.term) == (host, 1)
    assert group[2].raft.counters["loyal"] > 0


def test_vote_is_given_to_whoever_asks_in_a_configuration_not_known_yet(group: Group) -> None:
    """6: servers grant votes to, and accept appends from, members that they do not know."""
    host = group.start(1, 2, 3)[3]
    assert only(VoteReply, host.receive(vote(9, 3, 1))).granted


OTHER_SHARD = 1 << 48


@pytest.mark.parametrize(
    ("voters", "learners", "reason"),
    [
        ([], [], "needs a voter"),
        ([1, 2], [2], "either voter or learner"),
        ([0, 1], [], "begin at 1"),
        ([1, 2], [0], "begin at 1"),
        ([1, OTHER_SHARD | 2], [], "another shard"),
        (range(1, MEMBERS_MAX + 2), [], "at most"),
    ],
)
def test_configuration_that_cannot_work_is_refused(
    group: Group, voters: list[int], learners: list[int], reason: str
) -> None:
    """4.1: nothing is appended for a change that makes no sense."""
    host = led_by_1(group, 1, 2, 3)
    before = host.raft.log.last_index
    with pytest.raises(BadTarget, match=reason):
        host.raft.change_config(voters, learners)
    assert host.raft.log.last_index == before


def test_only_the_leader_changes_the_configuration(group: Group) -> None:
    """4.1: a change is an entry, and entries come from the leader."""
    led_by_1(group, 1, 2, 3)
    with pytest.raises(NotLeader) as refusal:
        group[2].raft.change_config([1, 2])
    assert refusal.value.leader == 1
