"""A member that lost entries it had acknowledged has no vote until it is whole again (7, 27)."""

from __future__ import annotations

from shardnode.raft import Role
from shardnode.raft.messages import HeartbeatReply, PreVoteReply, VoteReply
from tests.raft.host import Host
from tests.raft.kit import (
    HEARTBEAT_MS,
    RESEND_MS,
    TIMEOUT_MS,
    Group,
    append,
    heartbeat,
    only,
    pre_vote,
    run_of,
    vote,
)


def recovering(group: Group, *terms: int) -> Host:
    """Member 1 of three: what it has left is such a log."""
    return group.add(1, voters=[1, 2, 3], terms=terms, term=5, recovering=True)


def lost_log(group: Group, member: int) -> Host:
    group.crash(member)
    group[member].lose_log()
    return group.restart(member)


def is_recovering(host: Host) -> bool:
    """A call, so that a type checker does not take the answer for settled."""
    return host.raft.recovering


# -- what it may not do -------------------------------------------------------------------------


def test_recovering_member_neither_votes_nor_pre_votes(group: Group) -> None:
    host = recovering(group, 1)
    host.tick(TIMEOUT_MS)
    assert not only(PreVoteReply, host.receive(pre_vote(2, 1, 6, (9, 5)))).granted
    assert not only(VoteReply, host.receive(vote(2, 1, 6, (9, 5)))).granted
    assert not only(VoteReply, host.receive(vote(2, 1, 7, (9, 5), forced=True))).granted


def test_recovering_member_does_not_campaign(group: Group) -> None:
    host = recovering(group, 1)
    assert host.tick(20 * TIMEOUT_MS) == []
    assert host.raft.role is Role.FOLLOWER


def test_group_waits_rather_than_lose_what_was_acknowledged(group: Group) -> None:
    """Only 1 and 2 had it; 2 lost it, and 1 is down: 3 must not lead without it."""
    group.start(1, 2, 3).elect(1)
    group.isolate(3)
    index = group.commit(1, b"only on 1 and 2")
    lost_log(group, 2)
    group.crash(1)
    group.heal()
    group.advance(20 * TIMEOUT_MS)
    assert [group[member].raft.role is Role.LEADER for member in (2, 3)] == [False, False]
    group.restart(1)
    group.advance(5 * TIMEOUT_MS)
    assert [host.raft.applied_index > index for host in group.alive()] == [True, True, True]


# -- how it becomes whole -----------------------------------------------------------------------


def test_recovering_member_is_whole_once_it_has_what_its_leader_had(group: Group) -> None:
    leader = group.start(1, 2, 3).elect(1)
    group.commit(1, b"a", b"b")
    host = lost_log(group, 2)
    assert is_recovering(host)
    group.advance(RESEND_MS + 3 * HEARTBEAT_MS)
    assert not host.disk.hard_state.recovering
    assert host.applied == leader.applied


def test_recovering_member_behind_a_compacted_log_gets_a_snapshot(group: Group) -> None:
    leader = group.start(1, 2, 3).elect(1)
    group.commit(1, b"a", b"b")
    leader.compact()
    host = lost_log(group, 2)
    group.advance(2 * TIMEOUT_MS)
    assert host.install()
    group.advance(TIMEOUT_MS)
    assert not host.disk.hard_state.recovering
    assert host.applied == leader.applied


def test_end_of_the_log_counts_only_when_the_leader_looked_after_the_restart(group: Group) -> None:
    """The nonce of this run proves it; a heartbeat without it may have been sent before."""
    host = recovering(group, 1)
    nonce = host.raft.recovery_nonce
    host.receive(append(2, 1, 5, prev=(1, 1)))
    for stamp, stale in enumerate((0, nonce ^ 2), 2):
        before = heartbeat(2, 1, 5, last=1, recovery=stale, stamp=stamp)
        assert only(HeartbeatReply, host.receive(before)).recovery == nonce
        assert is_recovering(host)
    after = heartbeat(2, 1, 5, last=1, recovery=nonce, stamp=9)
    assert only(HeartbeatReply, host.receive(after)).recovery == 0
    assert not is_recovering(host)


def test_each_restart_has_a_nonce_of_its_own(group: Group) -> None:
    host = recovering(group)
    nonces = {group.restart(1).raft.recovery_nonce for _ in range(10)}
    assert len(nonces) == 10
    assert host.raft.recovering


def test_entries_count_only_when_the_leader_has_shown_them(group: Group) -> None:
    """What is left of the log may be what the leader overwrote long ago."""
    host = recovering(group, 1, 1)
    nonce = host.raft.recovery_nonce
    host.receive(heartbeat(2, 1, 5, last=2, recovery=nonce))
    assert is_recovering(host)
    host.receive(append(2, 1, 5, run_of(1, 1, 2), stamp=2))
    assert not is_recovering(host)


def test_entries_count_only_when_they_are_durable(group: Group) -> None:
    host = recovering(group)
    host.receive(heartbeat(2, 1, 5, last=1, recovery=host.raft.recovery_nonce))
    host.persist_late = True
    host.receive(append(2, 1, 5, run_of(1, 5), stamp=2))
    assert is_recovering(host)
    host.release()
    assert not is_recovering(host)


def test_new_leader_has_to_show_its_log_again(group: Group) -> None:
    host = recovering(group)
    nonce = host.raft.recovery_nonce
    host.receive(append(2, 1, 5, run_of(1, 5, 5)))
    host.receive(heartbeat(3, 1, 6, last=2, recovery=nonce))
    assert is_recovering(host)
    host.receive(append(3, 1, 6, prev=(2, 5), stamp=2))
    assert not is_recovering(host)


def test_end_of_an_old_leader_s_log_is_not_the_new_one_s(group: Group) -> None:
    host = recovering(group)
    nonce = host.raft.recovery_nonce
    host.receive(heartbeat(2, 1, 5, last=1, recovery=nonce))
    host.receive(append(3, 1, 6, run_of(1, 5)))
    assert is_recovering(host)
    host.receive(heartbeat(3, 1, 6, last=2, recovery=nonce, stamp=2))
    assert is_recovering(host)
    host.receive(append(3, 1, 6, run_of(2, 6), prev=(1, 5), stamp=3))
    assert not is_recovering(host)


def test_heartbeat_commits_nothing_that_the_leader_has_not_shown(group: Group) -> None:
    """The leader still believes what was acknowledged before the loss."""
    host = recovering(group, 1, 1)
    host.receive(heartbeat(2, 1, 5, commit=2, last=2))
    assert (host.raft.commit_index, host.applied) == (0, [])
    host.receive(append(2, 1, 5, run_of(1, 1, 2), stamp=2))
    host.receive(heartbeat(2, 1, 5, commit=2, last=2, stamp=3))
    assert [entry.term for entry in host.applied] == [1, 2]


def test_entries_that_did_not_fit_the_disk_do_not_count(group: Group) -> None:
    host = recovering(group)
    host.disk_full = True
    host.receive(append(2, 1, 5, run_of(1, 5)))
    host.receive(heartbeat(2, 1, 5, commit=1, last=1, recovery=host.raft.recovery_nonce, stamp=2))
    assert is_recovering(host)
    assert host.raft.commit_index == 0


# -- what its leader does -----------------------------------------------------------------------


def test_leader_believes_nothing_of_a_member_that_lost_its_log(group: Group) -> None:
    leader = group.start(1, 2, 3).elect(1)
    last = group.commit(1, b"a")
    assert leader.raft.progress[2].match == last
    lost_log(group, 2)
    leader.tick(HEARTBEAT_MS)
    group.deliver(1, 2)
    group.deliver(2, 1)
    assert leader.raft.progress[2].match == 0
    assert leader.raft.commit_index == last, "what is committed stays so"
