"""A member that follows, and what every member answers whatever its role.

The one rule: a reply that acknowledges something goes out only after it is durable, which is why
replies are queued behind `persisted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardnode.raft.errors import ProtocolViolation
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from shardnode.raft.types import Entry, Role

if TYPE_CHECKING:
    from shardnode.raft.core import Raft


def tick(raft: Raft) -> None:
    """Silence for a whole election timeout: ask around whether a new leader is wanted."""
    if raft.now_ms < raft.election_deadline_ms:
        return
    if raft.may_campaign():
        raft.campaign()
    else:
        raft.reset_election_deadline()


def on_append(raft: Raft, m: Append) -> None:
    """Paper, 5.3: accept what follows an entry that we share, refuse with a hint otherwise."""
    hear_leader(raft, m.source, m.stamp)
    if m.prev_index < raft.commit_index:
        # Old or repeated: what is committed matches by definition, so say how far that is.
        _check_committed(raft, m.entries)
        _accept(raft, m, raft.commit_index)
        return
    if not raft.log.matches(m.prev_index, m.prev_term):
        hint_index, hint_term = raft.log.last_at_or_below(m.prev_index, m.prev_term)
        reply_append(raft, m, rejected=m.prev_index, hint_index=hint_index, hint_term=hint_term)
        return
    fresh = m.entries[raft.log.first_conflict(m.entries) :]
    if fresh:
        raft.append(fresh)
    match = m.prev_index + len(m.entries)
    raft.commit_to(min(m.commit, match))
    _accept(raft, m, match)


def _check_committed(raft: Raft, entries: Sequence[Entry]) -> None:
    for entry in entries:
        known = raft.log.term(entry.index) if entry.index <= raft.commit_index else None
        if known not in (None, entry.term):
            raise ProtocolViolation(
                f"a leader of term {raft.term} has {entry.index}/{entry.term}, "
                f"but {entry.index}/{known} is committed here"
            )


def _accept(raft: Raft, m: Append | SnapshotOffer, match: int) -> None:
    raft.verified_index = max(raft.verified_index, match)
    raft.check_recovered()
    reply_append(raft, m, accepted=True, match=match)


def on_heartbeat(raft: Raft, m: Heartbeat) -> None:
    """The leader lives. It only names commits that it knows to be in our log."""
    hear_leader(raft, m.source, m.stamp)
    if raft.recovering and m.recovery == raft.recovery_nonce and raft.recovery_target is None:
        raft.recovery_target = m.last_index
        raft.check_recovered()
    # The commit named is at most what we acknowledged. Only a member that lost entries since may
    # no longer have them.
    held = raft.verified_index if raft.recovering else raft.log.last_index
    raft.commit_to(min(m.commit, held))
    raft.reply(
        HeartbeatReply(raft.cluster, raft.member, m.source, raft.term, m.stamp, raft.recovery_nonce)
    )


def on_snapshot_offer(raft: Raft, m: SnapshotOffer) -> None:
    """Ask the caller to fetch it, unless our log has that point already."""
    hear_leader(raft, m.source, m.stamp)
    if raft.needs_snapshot(m.snapshot):
        raft.want_snapshot(m.snapshot, m.source)
        return
    raft.commit_to(m.snapshot.index)
    _accept(raft, m, raft.commit_index)


def on_timeout_now(raft: Raft, m: TimeoutNow) -> None:
    """The leader hands over to us: campaign without asking first."""
    if raft.leader == m.source and raft.may_campaign():
        raft.campaign(forced=True)


def on_vote(raft: Raft, m: Vote) -> None:
    """Paper, 5.2 and 5.4.1: one vote a term, and only for a log as up to date as ours."""
    free = raft.vote == m.source or (raft.vote == 0 and raft.leader == 0)
    loyal = not m.forced and raft.now_ms < raft.no_vote_until_ms
    granted = (
        free and not loyal and not raft.recovering and raft.log.is_behind(m.last_index, m.last_term)
    )
    if granted:
        raft.vote = m.source
        raft.reset_election_deadline()
    raft.reply(VoteReply(raft.cluster, raft.member, m.source, raft.term, granted))


def on_pre_vote(raft: Raft, m: PreVote) -> None:
    """Thesis, 9.6: would we vote? No term and no vote changes here, whatever the answer; but who
    would vote for another lets it go first. Of two that ask each other, the lower goes first."""
    granted = (
        m.term > raft.term and not raft.recovering and raft.log.is_behind(m.last_index, m.last_term)
    )
    if granted and raft.role is Role.PRE_CANDIDATE and m.source < raft.member:
        raft.become_follower(raft.term, 0)
        raft.retry_soon()
    elif granted and raft.role is Role.FOLLOWER:
        raft.make_way()
    term = m.term if granted else raft.term
    raft.reply(PreVoteReply(raft.cluster, raft.member, m.source, term, granted))


def hear_leader(raft: Raft, leader: int, stamp: int) -> None:
    """Note who leads; only a stamp newer than all before counts as a sign of life (D3)."""
    if raft.leader not in (0, leader):
        raise ProtocolViolation(
            f"term {raft.term} has two leaders: {raft.leader:#x} and {leader:#x}"
        )
    raft.leader = leader
    if stamp > raft.leader_stamp:
        raft.leader_stamp = stamp
        raft.attempts = 0
        raft.no_vote_until_ms = raft.now_ms + raft.options.election_timeout_ms
        raft.reset_election_deadline()
    else:
        raft.count("stale_stamp")


def reply_append(
    raft: Raft,
    m: Append | Heartbeat | SnapshotOffer,
    *,
    accepted: bool = False,
    match: int = 0,
    rejected: int = 0,
    hint_index: int = 0,
    hint_term: int = 0,
) -> None:
    """Answer a leader's message, also one of an older term, so that it learns of ours."""
    raft.reply(
        AppendReply(
            cluster=raft.cluster,
            source=raft.member,
            target=m.source,
            term=raft.term,
            stamp=m.stamp,
            accepted=accepted,
            match=match,
            rejected=rejected,
            hint_index=hint_index,
            hint_term=hint_term,
            recovering=raft.recovering,
        )
    )


HANDLERS: dict[type[Message], Callable[[Raft, Any], None]] = {
    Append: on_append,
    Heartbeat: on_heartbeat,
    SnapshotOffer: on_snapshot_offer,
    TimeoutNow: on_timeout_now,
    Vote: on_vote,
    PreVote: on_pre_vote,
}
