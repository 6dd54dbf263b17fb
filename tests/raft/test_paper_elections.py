"""Elections, rule by rule: paper, figure 2 and 5.1, 5.2, 5.4.1; thesis, 4.2.3, 6.2, 6.4.1, 9.6."""

from __future__ import annotations

import pytest

from shardnode.raft import HardState, Message, Role
from shardnode.raft.messages import (
    Append,
    AppendReply,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from tests.raft.host import CLUSTER, Host
from tests.raft.kit import (
    HEARTBEAT_MS,
    TIMEOUT_MS,
    Group,
    all_of,
    append,
    heartbeat,
    only,
    pre_vote,
    role_of,
    vote,
)

TWO_TIMEOUTS_MS = 2 * TIMEOUT_MS
"""Whoever waits this long in silence has lost patience, whatever its random timeout is."""


def candidate(group: Group, member: int = 1) -> Host:
    """A candidate whose requests for votes are under way and nothing else is."""
    group.tick(member, TWO_TIMEOUTS_MS)
    group.deliver(member)
    group.deliver(0, member)
    assert group[member].raft.role is Role.CANDIDATE
    return group[member]


# -- 5.1: terms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
def test_newer_term_makes_anybody_a_follower(group: Group, role: Role) -> None:
    """5.1: a candidate or leader whose term is out of date becomes a follower at once."""
    group.start(1, 2, 3)
    if role is Role.LEADER:
        group.elect(1)
    elif role is Role.CANDIDATE:
        candidate(group)
    else:
        group.tick(1, TWO_TIMEOUTS_MS)
    assert group[1].raft.role is role
    group[1].receive(append(2, 1, 9))
    assert (group[1].raft.role, group[1].raft.term, group[1].raft.leader) == (Role.FOLLOWER, 9, 2)
    assert group[1].disk.hard_state == HardState(9, 0)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (append(2, 1, 3), AppendReply),
        (heartbeat(2, 1, 3), AppendReply),
        (vote(2, 1, 3, (9, 3)), VoteReply),
        (pre_vote(2, 1, 3, (9, 3)), PreVoteReply),
    ],
)
def test_request_of_an_older_term_is_refused_with_the_newer_one(
    group: Group, message: Message, kind: type[Message]
) -> None:
    """5.1, figure 2: reply false if term < currentTerm; the reply carries currentTerm."""
    host = group.add(1, voters=[1, 2, 3], term=5)
    reply = only(kind, host.receive(message))
    assert reply.term == 5
    assert not getattr(reply, "granted", False)
    assert not getattr(reply, "accepted", False)
    assert host.raft.leader == 0


def test_leader_hears_of_a_newer_term_from_a_refusal(group: Group) -> None:
    """5.1: if RPC request or response contains a newer term, convert to follower."""
    group.start(1, 2, 3).elect(1)
    [refusal] = group.add(4, voters=[1, 2, 3], term=7).receive(heartbeat(1, 4, 1))
    group[1].receive(refusal)
    assert (group[1].raft.role, group[1].raft.term) == (Role.FOLLOWER, 7)


def test_answer_of_an_older_term_is_ignored(group: Group) -> None:
    """5.1: a vote that was given in an older term does not count in this one."""
    group.start(1, 2, 3)
    host = candidate(group)
    host.receive(VoteReply(CLUSTER, 2, 1, host.raft.term - 1, True))
    assert host.raft.role is Role.CANDIDATE
    assert host.raft.counters["stale"] > 0


# -- 5.2: leader election -----------------------------------------------------------------------


def test_follower_waits_between_one_and_two_timeouts(group: Group) -> None:
    """5.2: timeouts are chosen at random from a fixed interval, so that few votes split."""
    host = group.start(1, 2, 3)[1]
    deadlines = set()
    for stamp in range(1, 101):
        host.receive(heartbeat(2, 1, 1, stamp=stamp))
        deadlines.add(host.raft.election_deadline_ms)
    assert len(deadlines) > 50
    assert min(deadlines) >= TIMEOUT_MS
    assert max(deadlines) < TWO_TIMEOUTS_MS


def test_follower_that_hears_its_leader_stays_follower(group: Group) -> None:
    """5.2: a server remains follower as long as it receives valid messages from a leader."""
    group.start(1, 2, 3).elect(1)
    group.advance(20 * TIMEOUT_MS)
    assert group.leader().member == 1
    assert group[1].raft.term == 1


def test_candidate_enters_a_new_term_votes_for_itself_and_asks_every_voter(group: Group) -> None:
    """5.2: to begin an election, increment currentTerm, vote for self, send RequestVote to all."""
    group.start(1, 2, 3, 4, 5, learners=[6])
    host = candidate(group)
    assert host.disk.hard_state == HardState(1, 1)
    for voter in (2, 3, 4, 5):
        assert group.under_way(1, voter) == [vote(1, voter, 1)]
    assert group.under_way(1, 6) == []


def test_majority_of_the_whole_group_elects(group: Group) -> None:
    """5.2: votes from a majority of the servers in the full cluster, for the same term."""
    group.start(1, 2, 3, 4, 5)
    host = candidate(group)
    host.receive(VoteReply(CLUSTER, 2, 1, 1, True))
    host.receive(VoteReply(CLUSTER, 2, 1, 1, True))
    assert role_of(host) is Role.CANDIDATE, "one voter was counted twice"
    host.receive(VoteReply(CLUSTER, 3, 1, 1, True))
    assert role_of(host) is Role.LEADER


def test_learner_s_vote_does_not_count(group: Group) -> None:
    """Thesis, 4.2.1: a non-voting member is not counted toward a majority."""
    group.start(1, 2, 3, learners=[4])
    host = candidate(group)
    host.receive(VoteReply(CLUSTER, 4, 1, 1, True))
    assert host.raft.role is Role.CANDIDATE


def test_one_vote_a_term_first_come_first_served(group: Group) -> None:
    """5.2: each server votes for at most one candidate in a term; the same one may ask again."""
    host = group.start(1, 2, 3)[3]
    assert only(VoteReply, host.receive(vote(1, 3, 1))).granted
    assert not only(VoteReply, host.receive(vote(2, 3, 1))).granted
    assert only(VoteReply, host.receive(vote(1, 3, 1))).granted
    assert host.disk.hard_state == HardState(1, 1)


def test_new_term_brings_a_new_vote(group: Group) -> None:
    """5.2: the rule is one vote for each term, not one vote."""
    host = group.start(1, 2, 3)[3]
    host.receive(vote(1, 3, 1))
    assert only(VoteReply, host.receive(vote(2, 3, 2))).granted
    assert host.disk.hard_state == HardState(2, 2)


def test_vote_and_term_are_durable_before_the_reply(group: Group) -> None:
    """Figure 2: currentTerm and votedFor are updated on stable storage before responding."""
    host = group.start(1, 2, 3)[3]
    host.persist_late = True
    assert host.receive(vote(1, 3, 1)) == []
    assert host.disk.hard_state == HardState()
    assert only(VoteReply, host.release()).granted
    assert host.disk.hard_state == HardState(1, 1)


def test_own_vote_is_durable_before_anybody_is_asked(group: Group) -> None:
    """Figure 2: a candidate's vote for itself is a vote like any other."""
    group.start(1, 2, 3)
    host = group[1]
    group.tick(1, TWO_TIMEOUTS_MS)
    group.deliver(1)
    host.persist_late = True
    group.deliver(0, 1)
    assert host.raft.role is Role.CANDIDATE
    assert group.under_way(1, 2) == group.under_way(1, 3) == []
    assert len(all_of(Vote, host.release())) == 2


def test_sole_voter_sends_nothing_before_its_term_is_durable(group: Group) -> None:
    """Figure 2: it wins with its own vote at once, and still that vote comes first."""
    host = group.start(1, learners=[2])[1]
    host.persist_late = True
    assert host.tick(0) == []
    assert host.raft.role is Role.LEADER
    assert only(Append, host.release()).term == host.disk.hard_state.term == 1


def test_vote_outlives_a_restart(group: Group) -> None:
    """5.2, figure 2: votedFor is persistent, so nobody votes twice by crashing."""
    group.start(1, 2, 3)[3].receive(vote(1, 3, 1))
    host = group.restart(3)
    host.tick(TIMEOUT_MS)
    assert not only(VoteReply, host.receive(vote(2, 3, 1))).granted
    assert only(VoteReply, host.receive(vote(1, 3, 1))).granted


def test_granted_vote_postpones_the_own_election(group: Group) -> None:
    """5.2, figure 2: the election timer starts again when a vote is granted."""
    host = group.start(1, 2, 3)[3]
    host.tick(TIMEOUT_MS - 1)
    host.receive(vote(1, 3, 1))
    assert host.tick(TIMEOUT_MS - 1) == []
    assert host.raft.role is Role.FOLLOWER


def test_candidate_follows_the_leader_of_its_term(group: Group) -> None:
    """5.2: a message of a leader whose term is at least the candidate's is recognized."""
    group.start(1, 2, 3)
    host = candidate(group)
    host.receive(append(2, 1, 1))
    assert (host.raft.role, host.raft.leader, host.raft.vote) == (Role.FOLLOWER, 2, 1)


def test_candidate_ignores_the_leader_of_an_older_term(group: Group) -> None:
    """5.2: if the term is smaller, the candidate rejects it and remains a candidate."""
    group.start(1, 2, 3)
    host = candidate(group)
    assert only(AppendReply, host.receive(append(2, 1, 0))).term == 1
    assert host.raft.role is Role.CANDIDATE


def test_candidate_without_a_majority_starts_over_in_a_new_term(group: Group) -> None:
    """5.2: a candidate that neither won nor lost times out and begins a new election."""
    group.start(1, 2, 3)
    host = candidate(group)
    group.drop()
    requests = all_of(PreVote, host.tick(TWO_TIMEOUTS_MS))
    assert {request.term for request in requests} == {2}
    group.settle()
    assert (host.raft.role, host.raft.term) == (Role.LEADER, 2)


def test_late_vote_does_not_count_for_a_pre_candidate(group: Group) -> None:
    """5.2: the term was given up; what others would do in the next one is no vote in this one."""
    group.start(1, 2, 3)
    host = candidate(group)
    group.drop()
    host.tick(TWO_TIMEOUTS_MS)
    for voter in (2, 3):
        host.receive(VoteReply(CLUSTER, voter, 1, 1, True))
    assert (host.raft.role, host.raft.term) == (Role.PRE_CANDIDATE, 1)


def test_winner_tells_everybody_at_once(group: Group) -> None:
    """5.2: once elected, a leader sends to all others, to prevent new elections."""
    group.start(1, 2, 3, learners=[4])
    host = candidate(group)
    sent = host.receive(VoteReply(CLUSTER, 2, 1, 1, True))
    assert {message.target for message in all_of(Append, sent)} == {2, 3, 4}


# -- 5.4.1: election restriction ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate_log", "granted"),
    [
        ((3, 2), True),
        ((4, 2), True),
        ((2, 2), False),
        ((1, 3), True),
        ((9, 1), False),
        ((0, 0), False),
    ],
)
def test_voter_denies_a_log_less_up_to_date_than_its_own(
    group: Group, candidate_log: tuple[int, int], granted: bool
) -> None:
    """5.4.1: the later last term wins; with equal last terms, the longer log."""
    host = group.add(1, voters=[1, 2, 3], terms=[1, 2, 2])
    host.tick(TIMEOUT_MS)
    assert only(PreVoteReply, host.receive(pre_vote(2, 1, 5, candidate_log))).granted is granted
    assert only(VoteReply, host.receive(vote(2, 1, 5, candidate_log))).granted is granted
    assert host.raft.vote == (2 if granted else 0)


# -- thesis, 9.6: pre-vote ----------------------------------------------------------------------


def test_pre_vote_changes_nothing_at_the_voter(group: Group) -> None:
    """9.6: a pre-vote is granted to many, binds nobody and leaves nothing on disk."""
    host = group.start(1, 2, 3)[3]
    assert only(PreVoteReply, host.receive(pre_vote(1, 3, 1))).granted
    assert only(PreVoteReply, host.receive(pre_vote(2, 3, 8))).granted
    assert host.disk.hard_state == HardState()
    assert host.raft.role is Role.FOLLOWER


def test_cut_off_member_does_not_inflate_its_term(group: Group) -> None:
    """9.6: only a candidate that could win increments its term."""
    group.start(1, 2, 3).elect(1)
    group.isolate(3)
    group.advance(20 * TIMEOUT_MS)
    assert group[3].raft.role is Role.PRE_CANDIDATE
    group.heal()
    group.advance(TIMEOUT_MS)
    assert [host.raft.term for host in group.alive()] == [1, 1, 1]
    assert group.leader().member == 1


def test_pre_candidate_that_cannot_win_gives_up(group: Group) -> None:
    """9.6: a majority says no, and the member is a follower again, in the same term."""
    host = group.start(1, 2, 3)[1]
    host.tick(TWO_TIMEOUTS_MS)
    for peer in (2, 3):
        assert host.raft.role is Role.PRE_CANDIDATE
        host.receive(PreVoteReply(CLUSTER, peer, 1, 0, False))
    assert (host.raft.role, host.raft.term) == (Role.FOLLOWER, 0)


def test_answer_to_an_earlier_pre_vote_does_not_count(group: Group) -> None:
    """9.6: a grant names the term it is for."""
    host = group.add(1, voters=[1, 2, 3], term=4)
    host.tick(TWO_TIMEOUTS_MS)
    assert host.raft.role is Role.PRE_CANDIDATE
    host.receive(PreVoteReply(CLUSTER, 2, 1, 9, True))
    assert (host.raft.role, host.raft.term) == (Role.PRE_CANDIDATE, 4)


# -- thesis, 4.2.3 and 6.4.1: loyalty; 6.2: check-quorum ----------------------------------------


def test_whoever_hears_a_leader_does_not_vote(group: Group) -> None:
    """4.2.3: a request within the minimum election timeout of hearing a leader changes nothing."""
    host = group.start(1, 2, 3)[3]
    host.receive(heartbeat(1, 3, 1))
    host.tick(TIMEOUT_MS - 1)
    assert host.receive(vote(2, 3, 5, (9, 4)), pre_vote(2, 3, 5, (9, 4))) == []
    assert (host.raft.term, host.raft.counters["loyal"]) == (1, 2)
    host.tick(1)
    assert only(VoteReply, host.receive(vote(2, 3, 5, (9, 4)))).granted


def test_promise_to_a_leader_outlives_a_restart(group: Group) -> None:
    """6.4.1: the lease of a leader stands on what its followers promised, crash or not."""
    group.start(1, 2, 3)[3].receive(heartbeat(1, 3, 1))
    host = group.restart(3)
    host.tick(TIMEOUT_MS - 1)
    assert host.receive(vote(2, 3, 5)) == []
    host.tick(1)
    assert only(VoteReply, host.receive(vote(2, 3, 5))).granted


def test_transfer_overrides_loyalty(group: Group) -> None:
    """4.2.3, 3.10: a candidate that the leader itself sent into the election is voted for."""
    host = group.start(1, 2, 3)[3]
    host.receive(heartbeat(1, 3, 1))
    assert only(VoteReply, host.receive(vote(2, 3, 2, forced=True))).granted


def test_only_the_leader_can_send_somebody_into_an_election(group: Group) -> None:
    """3.10: a TimeoutNow of a member that does not lead is ignored."""
    host = group.start(1, 2, 3)[3]
    host.receive(heartbeat(1, 3, 1))
    assert host.receive(TimeoutNow(CLUSTER, 2, 3, 1)) == []
    assert host.raft.role is Role.FOLLOWER


def test_leader_without_a_quorum_steps_down(group: Group) -> None:
    """6.2: a leader steps down if an election timeout elapses without a round to a majority."""
    host = group.start(1, 2, 3, 4, 5).elect(1)
    group.advance(TIMEOUT_MS)
    for member in (3, 4, 5):
        group.cut(1, member)
    group.advance(TIMEOUT_MS - HEARTBEAT_MS)
    assert host.raft.role is Role.LEADER
    group.advance(2 * HEARTBEAT_MS)
    assert (host.raft.role, host.raft.leader) == (Role.FOLLOWER, 0)


def test_leader_with_a_bare_majority_goes_on(group: Group) -> None:
    """6.2: two of five may be silent for ever."""
    group.start(1, 2, 3, 4, 5).elect(1)
    group.crash(4)
    group.crash(5)
    group.advance(10 * TIMEOUT_MS)
    assert group.leader().member == 1
    assert group[1].raft.term == 1


# -- how soon somebody leads --------------------------------------------------------------------


def test_campaign_that_nobody_answers_is_repeated_soon_and_then_less_often(group: Group) -> None:
    host = group.start(1, 2, 3)[1]
    waits = []
    host.tick(TWO_TIMEOUTS_MS)
    for _ in range(6):
        waits.append(host.raft.election_deadline_ms - host.clock_ms)
        host.tick(waits[-1])
        assert host.raft.role is Role.PRE_CANDIDATE
    quarter = TIMEOUT_MS // 4
    for wait, factor in zip(waits, (1, 2, 4, 4, 4, 4), strict=True):
        assert quarter * factor <= wait < 2 * quarter * factor
    host.receive(heartbeat(2, 1, 1, stamp=1))
    assert host.raft.attempts == 0


def test_of_two_that_stand_together_the_lower_wins_at_once(group: Group) -> None:
    group.start(1, 2, 3)
    group.crash(3)
    for member in (2, 1):
        group.tick(member, TWO_TIMEOUTS_MS)
    group.settle()
    assert group.leader().member == 1
    assert group[1].raft.term == 1


def test_who_grants_a_pre_vote_does_not_stand_at_the_same_moment(group: Group) -> None:
    group.start(1, 2, 3)
    other = group[2]
    other.raft.election_deadline_ms = other.clock_ms + 1
    group.tick(1, TWO_TIMEOUTS_MS)
    group.deliver(1, 2)
    other.tick(1)
    assert other.raft.role is Role.FOLLOWER


def test_leader_that_hears_nobody_lets_another_take_over(group: Group) -> None:
    group.start(1, 2, 3).elect(1)
    group.links.clear()
    sent = group.tick(1, TIMEOUT_MS)
    assert group[1].raft.role is Role.FOLLOWER
    heir = only(TimeoutNow, sent).target
    group.deliver(1, heir)
    assert group[heir].raft.role is Role.CANDIDATE
    group.settle()
    assert group.leader().member == heir
