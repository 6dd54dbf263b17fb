"""A member that asks for votes: first whether it would get them, then for real.

The one rule: a pre-candidate has changed nothing, neither its term nor anybody else's, so a
member that cannot win (cut off, or behind) disturbs nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardnode.raft import follower
from shardnode.raft.messages import (
    Append,
    Heartbeat,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    Vote,
    VoteReply,
)
from shardnode.raft.quorum import Verdict, verdict
from shardnode.raft.types import Role

if TYPE_CHECKING:
    from shardnode.raft.core import Raft


def tick(raft: Raft) -> None:
    """Nobody won in time: start over with a new random timeout (paper, 5.2)."""
    if raft.now_ms < raft.election_deadline_ms:
        return
    if raft.may_campaign():
        raft.campaign()
    else:
        raft.become_follower(raft.term, 0)


def on_pre_vote_reply(raft: Raft, m: PreVoteReply) -> None:
    """Enough members would vote for us: campaign for real."""
    asked = raft.term + 1
    if raft.role is not Role.PRE_CANDIDATE or (m.granted and m.term != asked):
        raft.count("stale")
        return
    raft.votes.setdefault(m.source, m.granted)
    outcome = verdict(raft.membership.halves, raft.votes)
    if outcome is Verdict.WON:
        raft.campaign_for_real(forced=False)
    elif outcome is Verdict.LOST:
        raft.become_follower(raft.term, 0)


def on_vote_reply(raft: Raft, m: VoteReply) -> None:
    """Paper, 5.2: a majority of both halves makes a leader."""
    if raft.role is not Role.CANDIDATE:
        raft.count("stale")
        return
    raft.votes.setdefault(m.source, m.granted)
    outcome = verdict(raft.membership.halves, raft.votes)
    if outcome is Verdict.WON:
        raft.become_leader()
    elif outcome is Verdict.LOST:
        raft.become_follower(raft.term, 0)


def on_leader(raft: Raft, m: Append | Heartbeat | SnapshotOffer) -> None:
    """Somebody leads this term: follow, unless the message is an old one come again (D3)."""
    if raft.role is Role.PRE_CANDIDATE and m.stamp <= raft.leader_stamp:
        raft.count("stale_stamp")
        return
    raft.become_follower(raft.term, m.source)
    follower.HANDLERS[type(m)](raft, m)


HANDLERS: dict[type[Message], Callable[[Raft, Any], None]] = {
    PreVoteReply: on_pre_vote_reply,
    VoteReply: on_vote_reply,
    Append: on_leader,
    Heartbeat: on_leader,
    SnapshotOffer: on_leader,
    Vote: follower.on_vote,
    PreVote: follower.on_pre_vote,
}
