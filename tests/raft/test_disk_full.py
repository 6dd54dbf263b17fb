"""No space on the disk: nothing is acknowledged that is not there (9)."""

from __future__ import annotations

from shardnode.raft import Role
from shardnode.raft.messages import AppendReply, PreVote
from tests.raft.host import Host
from tests.raft.kit import RESEND_MS, TIMEOUT_MS, Group, all_of, append, role_of, run_of, terms_of


def stalled_leader(group: Group) -> Host:
    """Member 1 led 1 2 3 until its disk was full."""
    host = group.start(1, 2, 3).elect(1)
    host.disk_full = True
    group.propose(1, b"a")
    return host


def test_leader_without_space_steps_down(group: Group) -> None:
    host = stalled_leader(group)
    assert (host.raft.role, host.raft.leader) == (Role.FOLLOWER, 0)
    assert host.raft.counters["append_failed"] == 1
    assert terms_of(host) == [1]


def test_leader_without_space_keeps_out_of_elections_for_a_while(group: Group) -> None:
    host = stalled_leader(group)
    assert all_of(PreVote, host.tick(3 * TIMEOUT_MS)) == []
    assert all_of(PreVote, host.tick(3 * TIMEOUT_MS)) != []


def test_entries_that_others_received_may_still_be_committed(group: Group) -> None:
    host = stalled_leader(group)
    group.settle()
    group.elect(2)
    assert [entry.payload for entry in group[2].applied] == [b"", b"a", b""]
    host.disk_full = False
    group.advance(RESEND_MS + TIMEOUT_MS)
    assert host.applied == group[2].applied


def test_sole_member_goes_on_serving_reads(group: Group) -> None:
    host = group.start(1).elect(1)
    host.disk_full = True
    group.propose(1, b"a")
    host.read(7)
    host.drain()
    assert [grant.context for grant in host.served] == [7]
    host.disk_full = False
    assert group.commit(1, b"b") == 2
    assert [entry.payload for entry in host.applied] == [b"", b"b"]


def test_sole_member_that_cannot_write_its_no_op_does_not_lead(group: Group) -> None:
    """It has nothing of its term, so it does not know what it may serve."""
    host = group.start(1)[1]
    host.disk_full = True
    host.tick()
    assert role_of(host) is Role.FOLLOWER
    host.disk_full = False
    host.tick(6 * TIMEOUT_MS)
    assert role_of(host) is Role.LEADER


def test_follower_without_space_acknowledges_nothing(group: Group) -> None:
    host = group.add(1, voters=[1, 2, 3], term=5)
    host.disk_full = True
    assert host.receive(append(2, 1, 5, run_of(1, 5))) == []
    assert (terms_of(host), host.raft.log.last_index) == ([], 0)
    host.disk_full = False
    [reply] = all_of(AppendReply, host.receive(append(2, 1, 5, run_of(1, 5), stamp=2)))
    assert reply.match == 1


def test_answers_that_waited_behind_the_failure_are_not_sent(group: Group) -> None:
    """While the first write is under way, a second append comes in; then the disk is full."""
    host = group.add(1, voters=[1, 2, 3], term=5)
    host.persist_late = True
    host.receive(append(2, 1, 5, run_of(1, 5)))
    host.receive(append(2, 1, 5, run_of(2, 5), prev=(1, 5), stamp=2))
    host.disk_full = True
    assert all_of(AppendReply, host.release()) == []
    assert host.raft.log.last_index == 0


def test_configuration_that_did_not_fit_is_not_in_force(group: Group) -> None:
    host = group.start(1, 2, 3).elect(1)
    before = host.raft.membership
    host.disk_full = True
    group.change(1, [1, 2])
    assert host.raft.membership == before
