"""The invariants of `reliability.md`, checked after every step.

The one rule: the checker keeps its own books. It learns what was appended, synced, sent and
applied by watching, and compares that with what replicas claim, across crashes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardnode.raft import Entry, Membership, Role
from shardnode.raft.leader import lease_valid
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    VoteReply,
)
from shardnode.raft.quorum import majority
from shardnode.shard.replica import Replica
from shardnode.sim.world import World
from shardnode.storage.errors import NoSpace

if TYPE_CHECKING:
    from shardnode.sim.node import SimNode

NEVER = 1 << 62


class _Book:
    """What is known of one member, across its crashes."""

    def __init__(self) -> None:
        self.durable: dict[int, int] = {}
        """Index to term of everything synced and not overwritten by something synced."""
        self.anchor = 0
        self.unsynced: list[tuple[int, int]] = []
        self.overriding = NEVER
        """What is being written right now begins here."""
        self.replacing = NEVER
        """A snapshot that ends here is taking the place of the log right now."""
        self.promised_term = 0
        self.promised_vote: tuple[int, int] = (0, 0)
        self.stamp: tuple[int, int] = (0, 0)
        self.admitted_loss = False
        """It told a leader that it lost entries: what it had acknowledged counts no more."""
        self.owed = 0
        """After damage: it is whole again only with every committed entry up to here."""
        self.forget_run()

    def forget_run(self) -> None:
        """What belonged to one run of the process."""
        self.commit = 0
        self.term = 0
        self.led_term = 0
        self.matches: dict[int, int] = {}

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry is on this member's disk, in its log or behind a snapshot."""
        return index <= self.anchor or self.durable.get(index) == term

    def sync(self) -> None:
        """What was written is durable now; it overwrote everything from its first index on."""
        if self.unsynced:
            first = self.unsynced[0][0]
            for index in [i for i in self.durable if i >= first]:
                del self.durable[index]
            self.durable.update(self.unsynced)
            self.unsynced = []


class Checks:
    """Watches all nodes of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, Entry] = {}
        self.digests: dict[int, int] = {}
        self.replies: dict[int, bytes] = {}
        self.chains: dict[tuple[int, int], int] = {}
        self.memberships: dict[int, Membership] = {}
        self._books: dict[int, _Book] = {}

    def book(self, member: int) -> _Book:
        """The books of one member."""
        return self._books.setdefault(member, _Book())

    # -- what a node tells us -----------------------------------------------------------------

    def booted(self, node: SimNode) -> None:
        """A restart must find everything that was durable, and every promise made."""
        replica = node.replica
        assert replica is not None
        book, log = self.book(node.member), replica.log
        state = replica.superblock.state
        assert state is not None
        require = self.world.require
        require(
            state.term >= book.promised_term,
            f"{node.name} came back in term {state.term} after speaking in {book.promised_term}",
        )
        term, vote = book.promised_vote
        require(
            state.term != term or state.vote == vote,
            f"{node.name} voted for {vote:#x} in term {term} and has forgotten it",
        )
        node.damaged |= bool(node.spoiled) and replica.raft.recovering
        if node.damaged:
            had = [index for index in book.durable if index in self.committed]
            book.owed = max([book.owed, book.anchor, *had])
        else:
            self._check_kept(node, book, replica)
        book.forget_run()
        book.unsynced, book.overriding, book.replacing = [], NEVER, NEVER
        book.anchor = log.anchor.index
        first, last = log.anchor.index + 1, log.last_index
        book.durable = {index: log.term(index) for index in range(first, last + 1)}
        book.commit, book.term = replica.raft.commit_index, replica.raft.term
        self._check_committed(node, replica)
        self._watch(node, book, replica)

    def _check_kept(self, node: SimNode, book: _Book, replica: Replica) -> None:
        log = replica.log
        overwritten = min([book.overriding, *(index for index, _ in book.unsynced[:1])])
        replaced = log.anchor.index >= book.replacing
        for index, term in book.durable.items():
            if log.anchor.index < index < overwritten and not replaced:
                kept = index <= log.last_index and log.term(index) == term
                self.world.require(kept, f"{node.name} lost the synced entry {index} of {term}")
        applied, last = replica.machine.applied_index, log.last_index
        self.world.require(applied <= last, f"{node.name} applied {applied} of a log to {last}")

    def died(self, node: SimNode) -> None:
        """Nothing to check: the books stay, the next boot is compared with them."""

    def _watch(self, node: SimNode, book: _Book, replica: Replica) -> None:
        """Note what is appended, synced and thrown away."""
        log: Any = replica.log
        append, sync, reset, front = log.append_batch, log.sync, log.reset, log.truncate_front

        def watched_append(records: Sequence[Entry], commit: int = 0) -> None:
            # The power may go during the write, and then these may be there or not.
            book.overriding = records[0].index
            try:
                append(records, commit)
            except NoSpace:
                book.overriding = NEVER
                raise
            book.overriding = NEVER
            if book.unsynced and records[0].index <= book.unsynced[0][0]:
                book.unsynced = []
            book.unsynced += [(record.index, record.term) for record in records]

        def watched_sync() -> None:
            sync()
            book.sync()
            self._check_chain(node, replica)

        def watched_reset(anchor: Any) -> None:
            # The power may go in the middle, and then the log is the old one or the new one.
            book.replacing = anchor.index
            reset(anchor)
            book.replacing = NEVER
            book.durable, book.unsynced, book.anchor = {}, [], anchor.index

        def watched_front(index: int) -> None:
            front(index)
            book.anchor = log.anchor.index

        log.append_batch, log.sync = watched_append, watched_sync
        log.reset, log.truncate_front = watched_reset, watched_front

    def _check_chain(self, node: SimNode, replica: Replica) -> None:
        """Log matching: the same (index, term) has the same history behind it, everywhere."""
        log = replica.log
        place = (log.last_index, log.last_term)
        chain = log.chain(log.last_index)
        known = self.chains.setdefault(place, chain)
        self.world.require(known == chain, f"{node.name}: two logs differ behind {place}")

    def sending(self, node: SimNode, message: Any) -> None:
        """A message is about to leave: is what it says on disk?"""
        replica = node.replica
        if replica is None or not hasattr(message, "term"):
            return
        book, state, require = self.book(node.member), replica.superblock.state, self.world.require
        assert state is not None
        if isinstance(message, PreVote) or (isinstance(message, PreVoteReply) and message.granted):
            return
        require(message.term <= state.term, f"{node.name} speaks of term {message.term} too early")
        book.promised_term = max(book.promised_term, message.term)
        if isinstance(message, AppendReply):
            book.admitted_loss |= message.recovering
        elif isinstance(message, HeartbeatReply):
            book.admitted_loss |= message.recovery != 0
        if isinstance(message, VoteReply) and message.granted:
            # A later term on disk also keeps it from voting again in the one it voted in.
            stored = state.term > message.term or state.vote == message.target
            require(stored, f"{node.name} sends a vote that it has not stored")
            book.promised_vote = (message.term, message.target)
        elif isinstance(message, AppendReply) and message.accepted:
            require(
                message.match <= max(replica.log.durable_index, book.anchor),
                f"{node.name} acknowledges {message.match}, durable {replica.log.durable_index}",
            )
        elif isinstance(message, Append | Heartbeat | SnapshotOffer):
            stamp = (message.term, message.stamp)
            require(stamp > book.stamp, f"{node.name} sends stamp {stamp} after {book.stamp}")
            book.stamp = stamp
            if not isinstance(message, SnapshotOffer):
                applied = replica.machine.applied_index
                require(message.commit <= applied, f"{node.name} advertises beyond {applied}")

    def applied(self, node: SimNode, entry: Entry, reply: bytes, digest: int) -> None:
        """State machine safety: one entry at each index, with one effect, everywhere."""
        known = self.committed.setdefault(entry.index, entry)
        self.world.require(
            known == entry, f"{node.name} applied another entry at {entry.index} than others"
        )
        self.replies.setdefault(entry.index, reply)
        same = self.digests.setdefault(entry.index, digest) == digest
        self.world.require(same, f"{node.name} differs from others after entry {entry.index}")

    @property
    def committed_index(self) -> int:
        """The highest index that took effect anywhere."""
        return max(self.committed, default=0)

    def read(self, node: SimNode, asked_at: int, served_at: int) -> None:
        """A read sees everything that had taken effect anywhere when it was asked."""
        self.world.require(
            served_at >= asked_at, f"{node.name} serves at {served_at} a read asked at {asked_at}"
        )

    # -- after every step ---------------------------------------------------------------------

    def after_wake(self, node: SimNode) -> None:
        """Terms and commits only grow; a leader is alone, complete, and counted right."""
        replica = node.replica
        assert replica is not None
        book, raft, require = self.book(node.member), replica.raft, self.world.require
        require(raft.term >= book.term, f"{node.name}: term went back to {raft.term}")
        commit = min(raft.commit_index, raft.log.stable)
        require(commit >= book.commit, f"{node.name}: commit went back to {commit}")
        if raft.role is Role.LEADER:
            self._check_leader(node, book, replica)
        else:
            book.led_term = 0
        book.term, book.commit = raft.term, commit
        self._check_committed(node, replica)
        self._check_membership(node, replica)
        if node.damaged and not raft.recovering:
            require(
                replica.log.durable_index >= book.owed,
                f"{node.name} calls itself whole at {replica.log.durable_index}, "
                f"but it had acknowledged {book.owed}",
            )
            node.damaged, book.owed = False, 0

    def _check_committed(self, node: SimNode, replica: Replica) -> None:
        """What a member calls committed is what took effect."""
        raft = replica.raft
        known, term = self.committed.get(raft.commit_index), raft.log.term(raft.commit_index)
        self.world.require(
            known is None or term in (None, known.term),
            f"{node.name} calls entry {raft.commit_index} of term {term} committed",
        )

    def _check_membership(self, node: SimNode, replica: Replica) -> None:
        """At one index there is one configuration, however a member got there."""
        index = replica.raft.applied_index
        if replica.machine.applied_index > index:
            return  # the log was lost, its effects were not: they know a later configuration
        membership = replica.raft.history.at(index)
        known = self.memberships.setdefault(index, membership)
        self.world.require(
            known == membership, f"{node.name} has {membership} at {index}, others {known}"
        )

    def _check_leader(self, node: SimNode, book: _Book, replica: Replica) -> None:
        raft, require = replica.raft, self.world.require
        known = self.leaders.setdefault(raft.term, node.member)
        require(known == node.member, f"term {raft.term} has a second leader, {node.name}")
        require(
            raft.commit_index <= replica.log.durable_index,
            f"{node.name} leads and committed {raft.commit_index} before its own fsync",
        )
        if book.led_term != raft.term:
            self._check_complete(node, replica)
            book.led_term, book.matches = raft.term, {}
        elif raft.commit_index > book.commit:
            self._check_counted(node, replica)
        for member, progress in raft.progress.items():
            before = book.matches.get(member, 0)
            grows = progress.match >= before or self.book(member).admitted_loss
            require(grows, f"{node.name}: match of {member:#x} went back to {progress.match}")
        book.matches = {member: progress.match for member, progress in raft.progress.items()}
        newest = max(self.leaders)
        require(
            newest == raft.term or not lease_valid(raft),
            f"{node.name} holds a lease in term {raft.term}, and somebody leads term {newest}",
        )
        if raft.history.index > raft.commit_index:
            require(
                raft.commit_index >= raft.term_start_index
                or raft.log.term(raft.history.index) != raft.term,
                f"{node.name} changes the membership before a commit in its term",
            )

    def _check_complete(self, node: SimNode, replica: Replica) -> None:
        """Leader completeness: whoever leads holds everything that was ever committed."""
        raft = replica.raft
        last = self.committed_index
        if last > raft.log.anchor_index:
            held = raft.log.term(last) == self.committed[last].term
            self.world.require(held, f"{node.name} leads without the committed entry {last}")

    def _check_counted(self, node: SimNode, replica: Replica) -> None:
        """What a leader commits is of its term, and on the disks of a quorum."""
        raft, index = replica.raft, replica.raft.commit_index
        term = raft.log.term(index)
        self.world.require(
            term == raft.term, f"{node.name} committed entry {index} of term {term} by counting"
        )
        candidates = (raft.membership, raft.history.at(index))
        self.world.require(
            any(self._on_quorum(membership, index, raft.term) for membership in candidates),
            f"{node.name} committed entry {index}, which is not on the disks of a quorum",
        )

    def _on_quorum(self, membership: Membership, index: int, term: int) -> bool:
        return all(
            sum(self.book(member).holds(index, term) for member in half) >= majority(len(half))
            for half in membership.halves
            if half
        )
