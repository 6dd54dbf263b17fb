"""Values that cross the door of the core: entries, options, and what a `Ready` asks for.

The one rule: everything here is immutable, so a value handed out never changes behind the
caller's back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from shardnode.raft.membership import Membership
from shardnode.raft.messages import Message

RAFT_PARTITION = 1 << 63
"""Partition id of the core's own entries: an empty payload is a no-op, else a membership."""

SHARD_SHIFT = 48


def shard_of(member: int) -> int:
    """The shard number in the upper 16 bits of a member id."""
    return member >> SHARD_SHIFT


class Entry(NamedTuple):
    """One record of the replicated log. `partition_index` counts entries of one partition."""

    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    term: int
    partition: int
    partition_index: int
    payload: bytes


class Proposal(NamedTuple):
    """What a caller wants appended; the core adds index and term."""

    partition: int
    partition_index: int
    payload: bytes


class Role(IntEnum):
    """Who a member is in its current term. A learner is a follower outside the voters."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be durable, in this order of importance, before anything acts on it.

    `recovering` marks a member that may have lost entries it acknowledged: it neither votes nor
    campaigns until it holds everything its leader held when they met again.
    """

    term: int = 0
    vote: int = 0
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """Names a snapshot without holding it: its bytes travel elsewhere and never enter the core.

    `handle` is opaque here; the caller finds its manifest by it.
    """

    index: int
    term: int
    membership: Membership
    handle: bytes = b""


class ReadGrant(NamedTuple):
    """The read `context` may be served: this member led, and has applied through `index`."""

    context: int
    index: int  # type: ignore[assignment]  # tuple.index is of no use here


@dataclass(frozen=True, slots=True)
class Standing:
    """Who leads, as this member sees it. Part of a `Ready` when it has changed."""

    role: Role
    term: int
    leader: int


@dataclass(slots=True)
class Ready:
    """Everything the caller has to do now. See the loop in `shardnode.raft`."""

    hard_state: HardState | None
    entries: Sequence[Entry]
    messages: Sequence[Message]
    after_persist: Sequence[Message]
    committed: Sequence[Entry]
    reads: Sequence[ReadGrant]
    refused_reads: Sequence[int]
    install: SnapshotRef | None
    install_from: int
    standing: Standing | None
    commit: int
    persist_index: int
    persist_term: int

    @property
    def must_persist(self) -> bool:
        """True when `persisted()` has to be called before the next `ready()`."""
        return self.hard_state is not None or bool(self.entries)


class LogReader(Protocol):
    """What the core may ask of the durable log. Indexes above `persisted` are never asked for."""

    def anchor(self) -> tuple[int, int]:
        """Index and term just before the first entry that can be read."""

    def last(self) -> tuple[int, int]:
        """Index and term of the last entry; the anchor's when there is none."""

    def term(self, index: int) -> int:
        """The term of the entry at `index`, from the anchor to the last."""

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        """Entries from `first` to at most `last`: at least one, stopping above `bytes_max`."""


@dataclass(frozen=True, slots=True)
class Options:
    """Every bound of the core. Times are milliseconds of the caller's monotonic clock."""

    election_timeout_ms: int = 1000
    """A follower waits between once and twice this; check-quorum and leases use exactly this."""

    heartbeat_ms: int = 100
    """A tenth of the election timeout: several may be lost before anybody doubts the leader."""

    resend_ms: int = 400
    """An append without an answer for this long is taken for lost and probed again."""

    snapshot_resend_ms: int = 1000
    """A snapshot is offered again this often until the follower has it."""

    lease_margin_percent: int = 10
    """How much faster one member's clock may run than another's before a lease could lie."""

    append_bytes_max: int = 1 << 20
    """One append message: large enough for a full batch, small enough not to block heartbeats."""

    append_entries_max: int = 1024
    inflight_appends_max: int = 32
    """Append messages under way to one follower before the leader waits for an answer."""

    uncommitted_bytes_max: int = 64 << 20
    uncommitted_entries_max: int = 1 << 16
    """Proposals beyond either bound are refused as `Busy`, so a stalled quorum costs no memory."""

    pending_reads_max: int = 1 << 16
    apply_bytes_max: int = 4 << 20
    """How much one `Ready` hands over to be applied, so that applying never starves ticking."""

    cache_bytes_max: int = 8 << 20
    """Durable and applied entries kept in memory for followers that are slightly behind."""
