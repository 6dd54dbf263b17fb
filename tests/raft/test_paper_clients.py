"""Reads and leadership transfer, rule by rule: paper, 8; thesis, 3.10, 6.4, 6.4.1."""

from __future__ import annotations

import pytest

from shardnode.raft import BadTarget, NotLeader, ReadGrant, Role
from shardnode.raft.messages import AppendReply, Heartbeat, TimeoutNow, Vote
from tests.raft.host import Host
from tests.raft.kit import HEARTBEAT_MS, RESEND_MS, TIMEOUT_MS, Group, all_of, only, pre_vote

LEASE_MS = TIMEOUT_MS * 9 // 10
"""One election timeout less the margin for clocks that run apart."""


def leader(group: Group) -> Host:
    """Member 1 leads 1 2 3, everything is known to everybody and nothing is under way."""
    host = group.start(1, 2, 3).elect(1)
    group.commit(1, b"a")
    return host


def ask(host: Host, context: int, *, lease: bool = False) -> list[ReadGrant]:
    """What is served at once."""
    host.read(context, lease=lease)
    host.drain()
    return host.served


# -- 6.4: read-index ----------------------------------------------------------------------------


def test_read_is_served_after_a_round_to_a_majority(group: Group) -> None:
    """6.4, 8: the leader exchanges heartbeats with a majority before it answers a read."""
    host = leader(group)
    assert ask(host, 7) == []
    group.deliver(1, 2)
    group.deliver(2, 1)
    assert host.served == [ReadGrant(7, 2)]


def test_echo_of_an_earlier_heartbeat_does_not_serve_a_read(group: Group) -> None:
    """6.4, step 3: the round has to begin after the read came in."""
    host = leader(group)
    host.tick(HEARTBEAT_MS)
    group.deliver(1)
    assert ask(host, 7) == []
    group.drop(1)
    group.deliver(0, 1)
    assert host.served == []


def test_one_round_serves_every_read_that_waits(group: Group) -> None:
    """6.4: one round of heartbeats serves any number of reads."""
    host = leader(group)
    for context in range(100):
        host.read(context)
    assert len(all_of(Heartbeat, host.drain())) == 2
    group.settle()
    assert [grant.context for grant in host.served] == list(range(100))


def test_new_leader_serves_no_read_before_its_no_op_is_committed(group: Group) -> None:
    """6.4, step 1; 8: until then it does not know which entries are committed."""
    group.start(1, 2, 3)
    host = group[1]
    host.tick(2 * TIMEOUT_MS)
    while host.raft.role is not Role.LEADER:
        group.deliver()
    for lease in (False, True):
        host.read(7, lease=lease)
    assert all_of(Heartbeat, host.drain()) == []
    group.settle()
    assert host.served == [ReadGrant(7, 1), ReadGrant(7, 1)]


def test_lease_alone_does_not_serve_a_new_leader_s_reads(group: Group) -> None:
    """6.4.1, 6.4 step 1: a quorum follows, but what is committed is not known yet."""
    for member, terms in ((1, [1, 1]), (2, [1]), (3, [1])):
        group.add(member, voters=[1, 2, 3], terms=terms)
    host = group[1]
    for member in (1, 2, 3):
        group.tick(member, TIMEOUT_MS)
    group.drop()
    host.tick(2 * TIMEOUT_MS)
    while host.raft.role is not Role.LEADER:
        group.deliver()
    group.deliver(1, 2)
    assert not only(AppendReply, group.under_way(2, 1)).accepted
    group.deliver(2, 1)
    assert ask(host, 7, lease=True) == []
    group.settle()
    assert host.served == [ReadGrant(7, 3)]


def test_read_waits_until_its_index_is_applied(group: Group) -> None:
    """6.4, step 4: the state machine advances at least as far as the read index."""
    host = leader(group)
    raft = host.raft
    index = host.propose(b"b")
    host.drain()
    group.deliver(1)
    for message in [*group.under_way(2, 1), *group.under_way(3, 1)]:
        raft.step(message)
    assert (raft.commit_index, raft.applied_index) == (index, index - 1)
    raft.read_index(7, lease=True)
    ready = raft.ready()
    assert ready is not None
    assert ready.reads == []
    raft.applied(index)
    ready = raft.ready()
    assert ready is not None
    assert ready.reads == [ReadGrant(7, index)]


def test_deposed_leader_refuses_the_reads_that_wait(group: Group) -> None:
    """8: a leader has to find out that it was deposed before it answers."""
    host = leader(group)
    group.isolate(1)
    assert ask(host, 7) == []
    group.elect(2)
    assert (host.served, host.refused) == ([], [7])


def test_follower_refuses_reads_and_names_the_leader(group: Group) -> None:
    """8: a follower rejects the request and supplies the leader that it knows of."""
    leader(group)
    with pytest.raises(NotLeader) as refusal:
        group[2].read(7)
    assert refusal.value.leader == 1


# -- 6.4.1: leases ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later_ms", "served"), [(0, True), (LEASE_MS - 1, True), (LEASE_MS, False)]
)
def test_lease_lasts_one_election_timeout_less_the_margin(
    group: Group, later_ms: int, served: bool
) -> None:
    """6.4.1: from when the heartbeats were sent that a majority acknowledged."""
    host = leader(group)
    group.isolate(1)
    host.tick(later_ms)
    assert bool(ask(host, 7, lease=True)) is served


def test_lease_counts_from_when_the_heartbeat_was_sent(group: Group) -> None:
    """6.4.1: not from when the answer arrived, which may be much later."""
    host = leader(group)
    host.tick(HEARTBEAT_MS)
    group.deliver(1)
    host.tick(LEASE_MS - 1)
    group.drop(1)
    group.deliver(0, 1)
    host.tick(1)
    assert ask(host, 7, lease=True) == []


def test_lease_needs_a_majority(group: Group) -> None:
    """6.4.1: the echo of one member of five is not enough."""
    host = group.start(1, 2, 3, 4, 5).elect(1)
    for member in (3, 4, 5):
        group.cut(1, member)
    for _ in range(9):
        host.tick(HEARTBEAT_MS)
        group.settle()
    assert host.raft.role is Role.LEADER
    assert ask(host, 7, lease=True) == []


def test_no_vote_is_given_while_the_lease_holds(group: Group) -> None:
    """6.4.1: the other side of the lease is what the followers promised."""
    host = leader(group)
    group.isolate(1)
    for member in (2, 3):
        group[member].tick(LEASE_MS - 1)
    host.tick(LEASE_MS - 1)
    assert ask(host, 7, lease=True)
    for member, other in ((2, 3), (3, 2)):
        assert group[member].receive(pre_vote(other, member, 9, (99, 8))) == []
        assert group[member].raft.counters["loyal"] == 1


# -- 3.10: leadership transfer ------------------------------------------------------------------


def test_transfer_hands_over_at_once_when_the_target_has_everything(group: Group) -> None:
    """3.10: the target starts an election without waiting for a timeout."""
    host = leader(group)
    host.raft.transfer(3)
    assert only(TimeoutNow, host.drain()).target == 3
    group.deliver(1, 3)
    assert all(request.forced for request in all_of(Vote, group[3].sent))
    group.settle()
    assert (group.leader().member, host.raft.role) == (3, Role.FOLLOWER)


def test_transfer_waits_until_the_target_has_everything(group: Group) -> None:
    """3.10, step 2: the prior leader fully updates the target's log."""
    host = leader(group)
    group.isolate(3)
    group.propose(1, b"b")
    group.settle()
    group.heal()
    host.raft.transfer(3)
    assert all_of(TimeoutNow, host.drain()) == []
    group.advance(RESEND_MS + HEARTBEAT_MS)
    assert group.leader().member == 3
    assert [entry.payload for entry in group[3].applied] == [b"", b"a", b"b", b""]


def test_leader_takes_no_proposals_while_it_hands_over(group: Group) -> None:
    """3.10, step 1: the prior leader stops accepting new client requests."""
    host = leader(group)
    host.raft.transfer(3)
    with pytest.raises(NotLeader) as refusal:
        host.propose(b"b")
    assert refusal.value.leader == 3


def test_transfer_is_given_up_after_an_election_timeout(group: Group) -> None:
    """3.10: if it does not complete in about a timeout, the leader takes requests again."""
    host = leader(group)
    group.crash(3)
    host.raft.transfer(3)
    group.advance(TIMEOUT_MS - HEARTBEAT_MS)
    with pytest.raises(NotLeader):
        host.propose(b"b")
    group.advance(HEARTBEAT_MS)
    assert group.commit(1, b"b") == 3


def test_transfer_ends_the_lease_of_the_term(group: Group) -> None:
    """6.4.1, 3.10: the target campaigns against the promises that the lease stands on."""
    host = leader(group)
    host.raft.transfer(3)
    host.drain()
    group.drop(1, 3)
    assert ask(host, 7, lease=True) == []
    group.advance(2 * TIMEOUT_MS)
    assert host.raft.role is Role.LEADER
    host.served.clear()
    assert ask(host, 8, lease=True) == []


def test_transfer_to_a_member_that_is_removed_meanwhile_is_given_up(group: Group) -> None:
    """3.10: whoever has no vote any more cannot take over."""
    host = leader(group)
    group.isolate(3)
    group.propose(1, b"b")
    host.raft.transfer(3)
    group.change(1, [1, 2])
    group.settle()
    assert host.raft.transfer_target == 0
    assert group.propose(1, b"c") == host.raft.log.last_index


@pytest.mark.parametrize("target", [1, 4, 9], ids=["itself", "a learner", "a stranger"])
def test_transfer_to_whom_cannot_lead_is_refused(group: Group, target: int) -> None:
    """3.10: only another voter can take over."""
    host = group.start(1, 2, 3, learners=[4]).elect(1)
    with pytest.raises(BadTarget):
        host.raft.transfer(target)
    assert host.raft.transfer_target == 0
