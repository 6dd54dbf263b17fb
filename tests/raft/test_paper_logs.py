"""Replication, rule by rule: paper, figure 2 and 5.3, 5.4.2, 5.5, 8; thesis, 10.2.1."""

from __future__ import annotations

import pytest

from shardnode.raft import NotReady, ProtocolViolation, Role
from shardnode.raft.messages import Append, AppendReply
from tests.raft.host import CLUSTER, Host
from tests.raft.kit import (
    HEARTBEAT_MS,
    RESEND_MS,
    TIMEOUT_MS,
    Group,
    append,
    heartbeat,
    only,
    run_of,
    terms_of,
)


def follower(group: Group, *terms: int, term: int = 9) -> Host:
    """Member 1 of three with such a log."""
    return group.add(1, voters=[1, 2, 3], terms=terms, term=term)


def just_elected(group: Group, *logs: list[int]) -> Host:
    """Member 1 leads such a group, and its first appends are under way."""
    members = range(1, len(logs) + 1)
    for member, terms in zip(members, logs, strict=True):
        group.add(member, voters=members, terms=terms)
    for member in members:
        group.tick(member, TIMEOUT_MS)
    group.drop()
    group.tick(1, 2 * TIMEOUT_MS)
    while group[1].raft.role is not Role.LEADER:
        assert group.deliver()
    return group[1]


def accepted(match: int, *, source: int = 2, term: int = 1) -> AppendReply:
    return AppendReply(CLUSTER, source, 1, term, 0, True, match, 0, 0, 0, False)


# -- 5.3: what a follower does with an append ---------------------------------------------------


@pytest.mark.parametrize("prev", [(4, 2), (3, 1), (9, 9)])
def test_append_after_an_entry_that_is_not_there_is_refused(
    group: Group, prev: tuple[int, int]
) -> None:
    """Figure 2, AppendEntries 2: false if there is no entry at prevLogIndex with prevLogTerm."""
    host = follower(group, 1, 2, 2)
    entries = run_of(prev[0] + 1, 9)
    reply = only(AppendReply, host.receive(append(2, 1, 9, entries, prev=prev, commit=prev[0])))
    assert (reply.accepted, reply.rejected) == (False, prev[0])
    assert terms_of(host) == [1, 2, 2]
    assert host.raft.commit_index == 0


def test_conflicting_entry_and_all_that_follow_it_are_replaced(group: Group) -> None:
    """Figure 2, AppendEntries 3: same index but different terms, delete it and what follows."""
    host = follower(group, 1, 2, 2, 2, 2)
    reply = only(AppendReply, host.receive(append(2, 1, 9, run_of(2, 2, 3), prev=(1, 1))))
    assert reply.match == 3
    assert terms_of(host) == [1, 2, 3]


def test_entries_that_are_there_already_are_kept(group: Group) -> None:
    """Figure 2, AppendEntries 3 and 4: an old, shorter append takes nothing away."""
    host = follower(group, 1, 2, 2, 2)
    reply = only(AppendReply, host.receive(append(2, 1, 9, run_of(2, 2), prev=(1, 1))))
    assert terms_of(host) == [1, 2, 2, 2]
    assert reply.match == 2, "only what the leader has shown is acknowledged"


@pytest.mark.parametrize(("commit", "expected"), [(1, 1), (3, 3), (7, 3)])
def test_follower_commits_no_further_than_the_last_new_entry(
    group: Group, commit: int, expected: int
) -> None:
    """Figure 2, AppendEntries 5: commitIndex = min(leaderCommit, index of last new entry)."""
    host = follower(group, 1, 2, 2, 2, 2)
    host.receive(append(2, 1, 9, run_of(2, 2, 2), prev=(1, 1), commit=commit))
    assert host.raft.commit_index == expected
    assert [entry.index for entry in host.applied] == list(range(1, expected + 1))


def test_acknowledgement_waits_for_the_fsync(group: Group) -> None:
    """Figure 2: log[] is updated on stable storage before responding."""
    host = group.start(1, 2, 3)[1]
    host.receive(heartbeat(2, 1, 9))
    host.persist_late = True
    assert host.receive(append(2, 1, 9, run_of(1, 9), stamp=2)) == []
    assert terms_of(host) == []
    assert only(AppendReply, host.release()).match == 1
    assert terms_of(host) == [9]


def test_same_append_twice_is_one_append(group: Group) -> None:
    """5.5: Raft RPCs are idempotent."""
    host = follower(group, 1)
    message = append(2, 1, 9, run_of(2, 9, 9), prev=(1, 1))
    first = only(AppendReply, host.receive(message))
    assert only(AppendReply, host.receive(message)) == first
    assert terms_of(host) == [1, 9, 9]


def test_what_is_committed_is_never_overwritten(group: Group) -> None:
    """5.4.3: a leader that contradicts a committed entry is a bug or an impostor: stop."""
    host = follower(group, 1, 2)
    host.receive(append(2, 1, 9, prev=(2, 2), commit=2))
    with pytest.raises(ProtocolViolation, match="2/9, but 2/2 is committed"):
        host.receive(append(2, 1, 9, run_of(2, 9), prev=(1, 1), stamp=2))
    assert terms_of(host) == [1, 2]


def test_old_append_is_answered_with_what_is_committed(group: Group) -> None:
    """5.5: a late copy of an append changes nothing, and its answer helps the leader."""
    host = follower(group, 1, 2, 2)
    host.receive(append(2, 1, 9, prev=(3, 2), commit=3))
    reply = only(AppendReply, host.receive(append(2, 1, 9, run_of(2, 2), prev=(1, 1))))
    assert (reply.accepted, reply.match) == (True, 3)
    assert terms_of(host) == [1, 2, 2]


def test_two_leaders_of_one_term_are_noticed(group: Group) -> None:
    """5.2, election safety: at most one leader in a term; whoever sees two must stop."""
    host = follower(group, 1)
    host.receive(heartbeat(2, 1, 9))
    with pytest.raises(ProtocolViolation, match="two leaders"):
        host.receive(heartbeat(3, 1, 9, stamp=2))


# -- 5.3: what a leader does --------------------------------------------------------------------


def test_entry_is_committed_once_a_majority_has_it(group: Group) -> None:
    """5.3: an entry is committed once the leader has replicated it on a majority."""
    host = group.start(1, 2, 3, 4, 5).elect(1)
    index = group.propose(1, b"a")
    host.receive(accepted(index))
    assert host.raft.commit_index == index - 1
    host.receive(accepted(index))
    assert host.raft.commit_index == index - 1, "one member was counted twice"
    host.receive(accepted(index, source=3))
    assert host.raft.commit_index == index
    assert host.applied[-1].payload == b"a"


def test_leader_counts_itself_only_when_it_is_durable(group: Group) -> None:
    """Thesis, 10.2.1: a leader may write in parallel with its followers, and counts afterwards."""
    host = group.start(1, 2, 3).elect(1)
    host.persist_late = True
    index = group.propose(1, b"a")
    group.settle()
    assert terms_of(group[2]) == terms_of(group[3]) == [1, 1]
    assert host.raft.commit_index == index - 1
    host.release()
    assert host.raft.commit_index == index


def test_leader_begins_after_its_own_last_entry(group: Group) -> None:
    """Figure 2: nextIndex is initialized to the leader's last log index + 1."""
    just_elected(group, [1, 1, 2], [], [])
    for member in (2, 3):
        first = only(Append, group.under_way(1, member))
        assert (first.prev_index, first.prev_term) == (3, 2)


def test_leader_never_overwrites_its_own_log(group: Group) -> None:
    """Figure 3, leader append-only: whatever followers answer, the leader's log only grows."""
    host = group.start(1, 2, 3).elect(1)
    group.commit(1, b"a", b"b")
    before = list(host.disk.log.entries)
    host.receive(AppendReply(CLUSTER, 2, 1, 1, 0, False, 0, 3, 0, 0, False))
    group.propose(1, b"c")
    group.settle()
    assert host.disk.log.entries[: len(before)] == before


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", FIGURE_7)
def test_every_log_of_figure_7_becomes_the_leader_s(group: Group, case: str) -> None:
    """5.3, figure 7: missing and extra entries are repaired."""
    group.add(1, voters=[1, 2, 3], terms=[1, 1, 1, 4, 4, 5, 5, 6, 6, 6], term=7)
    group.add(2, voters=[1, 2, 3], terms=[1, 1, 1, 4], term=7)
    group.add(3, voters=[1, 2, 3], terms=FIGURE_7[case], term=7)
    group.elect(1)
    group.commit(1, b"a")
    assert terms_of(group[3]) == terms_of(group[1]) == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8, 8]
    assert group[3].applied == group[1].applied


def test_refusal_skips_a_whole_term(group: Group) -> None:
    """5.3: one round trip for each conflicting term, not one for each entry."""
    host = follower(group, 1, *[2] * 50)
    refusal = only(AppendReply, host.receive(append(2, 1, 9, prev=(60, 1))))
    assert (refusal.hint_index, refusal.hint_term) == (1, 1)


def test_leader_resends_until_the_follower_has_it(group: Group) -> None:
    """5.3, 5.5: the leader retries AppendEntries indefinitely."""
    host = group.start(1, 2, 3).elect(1)
    group.isolate(3)
    group.propose(1, b"a")
    group.advance(10 * TIMEOUT_MS)
    group.heal()
    group.advance(RESEND_MS + HEARTBEAT_MS)
    assert group[3].applied == host.applied
    assert host.applied[-1].payload == b"a"


# -- 5.4.2: entries of older terms --------------------------------------------------------------


def test_entry_of_an_older_term_is_not_committed_by_counting(group: Group) -> None:
    """5.4.2: only entries of the leader's current term are committed by counting replicas."""
    host = just_elected(group, [1, 1], [1, 1], [1, 1])
    host.receive(accepted(2, term=2), accepted(2, source=3, term=2))
    assert host.raft.commit_index == 0
    host.receive(accepted(3, term=2))
    assert host.raft.commit_index == 3, "and with one of this term, all before it are"


# -- 5.3, 8: applying ---------------------------------------------------------------------------


def test_everything_is_applied_once_and_in_order(group: Group) -> None:
    """5.3: each server applies committed entries to its state machine, in log order."""
    group.start(1, 2, 3).elect(1)
    for batch in range(5):
        group.commit(1, *[b"%d.%d" % (batch, i) for i in range(4)])
    for host in group.alive():
        assert [entry.index for entry in host.applied] == list(range(1, 22))


def test_restart_applies_again_what_is_known_to_be_committed(group: Group) -> None:
    """Figure 2: commitIndex is volatile; whatever is kept of it is only a lower bound."""
    group.start(1, 2, 3).elect(1)
    group.commit(1, b"a")
    group.commit(1, b"b")
    before = list(group[2].applied)
    host = group.restart(2)
    assert host.applied == before[: len(host.applied)]
    group.advance(HEARTBEAT_MS)
    assert host.applied == before


def test_new_leader_begins_with_a_no_op(group: Group) -> None:
    """8: a leader commits a blank no-op at the start of its term, to learn what is committed."""
    host = group.start(1, 2, 3).elect(1)
    assert [entry.payload for entry in host.applied] == [b""]
    group.elect(2)
    assert [entry.term for entry in group[2].applied] == [1, 2]


def test_new_leader_takes_proposals_after_it_has_applied_what_was_committed(group: Group) -> None:
    """8: what its predecessors committed has to be in the state machine first."""
    group.start(1).elect(1)
    group.commit(1, b"a")
    group.commit(1, b"b")
    host = group[1]
    host.boot()
    host.raft.tick(host.clock_ms)
    assert host.raft.role is Role.LEADER
    with pytest.raises(NotReady, match="applied up to index 0"):
        host.propose(b"c")
    host.drain()
    assert host.propose(b"c") == host.raft.log.last_index
