"""What members of one group say to each other.

The one rule: a message states facts that were true when it was sent; a receiver that gets it
twice, late or out of order stays correct. Every message names its cluster and, in the upper 16
bits of both ids, its shard.

`stamp` grows strictly within a term with every message of a leader, and its upper bits are the
leader's clock (see `leader.next_stamp`). Followers echo it. An old stamp does not suppress an
election; an echoed one proves that the follower followed after the message was sent, which is
what read rounds and leases stand on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.raft.types import Entry, SnapshotRef


@dataclass(frozen=True, slots=True)
class Message:
    """The envelope that every message shares."""

    cluster: int
    source: int
    target: int
    term: int


@dataclass(frozen=True, slots=True)
class PreVote(Message):
    """Would you vote for me in `term`, which I have not entered? Changes nobody's state."""

    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply(Message):
    """Granted: `term` is the term asked about. Refused: `term` is the voter's own."""

    granted: bool


@dataclass(frozen=True, slots=True)
class Vote(Message):
    """Vote for me in `term`. `forced` comes from a leadership transfer and overrides loyalty."""

    last_index: int
    last_term: int
    forced: bool


@dataclass(frozen=True, slots=True)
class VoteReply(Message):
    """The vote and the term are on disk before this leaves."""

    granted: bool


@dataclass(frozen=True, slots=True)
class Append(Message):
    """Entries that follow (`prev_index`, `prev_term`). `commit` is what the leader applied."""

    stamp: int
    prev_index: int
    prev_term: int
    commit: int
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    """Accepted: everything through `match` is durable here and equal to the leader's.

    Refused: the entry at `rejected` did not match; the follower's log may agree at
    (`hint_index`, `hint_term`) or below.
    """

    stamp: int
    accepted: bool
    match: int
    rejected: int
    hint_index: int
    hint_term: int
    recovering: bool


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """I still lead. `last_index` together with `recovery` tells a recovering member how far to go.

    `recovery` echoes the nonce of the target's last `HeartbeatReply`, so that a recovering
    member knows that `last_index` was read after its restart.
    """

    stamp: int
    commit: int
    last_index: int
    recovery: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply(Message):
    """I follow you, as of `stamp`. `recovery` is this run's nonce while recovering, else 0."""

    stamp: int
    recovery: int


@dataclass(frozen=True, slots=True)
class SnapshotOffer(Message):
    """The log no longer reaches back to you: fetch this snapshot on the bulk lane."""

    stamp: int
    snapshot: SnapshotRef


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Campaign at once: the leader hands over. Sent when the target holds the whole log."""


LEADER_MESSAGES = (Append, Heartbeat, SnapshotOffer, TimeoutNow)
"""Kinds that only the leader of their term sends: receiving one tells who leads."""
