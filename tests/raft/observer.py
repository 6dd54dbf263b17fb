"""What must be true of every group at every time (see the invariants of the project).

The one rule: the observer is shown everything and remembers it, because most invariants are about
history: a vote that was given, an entry that was committed, a leader that once led.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from shardnode.raft import RAFT_PARTITION, Entry, Membership, Message, ReadGrant, Role
from shardnode.raft.messages import AppendReply, PreVote, PreVoteReply, Vote, VoteReply

if TYPE_CHECKING:
    from tests.raft.host import Host
    from tests.raft.kit import Group


class Observer:
    """Asserts as things happen, and once more at the end of a test."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.leaders: dict[int, int] = {}
        """Term → who led it."""
        self.committed: dict[int, Entry] = {}
        self._committed_by: dict[int, int] = {}
        """Index → the lowest term in which anybody knew it to be committed."""
        self._appended: dict[tuple[int, int], tuple[Entry, int]] = {}
        """(index, term) → the entry and the term before it: equal everywhere, for ever."""
        self._votes: dict[tuple[int, int], int] = {}
        self._terms: dict[int, int] = {}
        self._stored: dict[int, int] = {}
        """Member → the term on its disk; only that one outlives a crash."""
        self._commits: dict[int, int] = {}
        self._leading: dict[int, tuple[int, int]] = {}
        """Member → (term, commit) if it led when last seen."""
        self._floors: dict[tuple[int, int, int], int] = {}

    # -- what a host shows --------------------------------------------------------------------

    def seeded(self, entries: Sequence[Entry]) -> None:
        """A test begins with these on a disk."""
        self._remember(entries, 0)

    def booted(self, host: Host) -> None:
        """A restart continues with the term on disk, and with no more than was committed."""
        member, raft = host.member, host.raft
        assert raft.term >= self._stored.get(member, 0), f"{member} came back in an older term"
        assert raft.commit_index <= max(self.committed, default=0) or host.boots == 1
        self._terms[member] = raft.term
        self._commits[member] = raft.commit_index
        self._leading.pop(member, None)

    def persisting(self, host: Host, entries: Sequence[Entry]) -> None:
        """Log matching: an index and a term name one entry, and one entry before it."""
        self._remember(entries, host.disk.log.term(entries[0].index - 1))

    def applying(self, host: Host, entry: Entry) -> None:
        """Everything committed, in order, exactly once, and only what is durable here."""
        expected = len(host.applied) + 1
        assert entry.index == expected, f"{host.member} applies {entry.index}, not {expected}"
        assert host.disk.log.last()[0] >= entry.index, "applied before it was durable"
        self._commit(entry, host.raft.term)

    def sending(self, host: Host, message: Message) -> None:
        """Nothing leaves that a crash could undo."""
        stored, who = host.disk.hard_state, f"{host.member}: {message}"
        if isinstance(message, PreVote):
            assert message.term - 1 <= stored.term, f"speaks of a term not on disk, {who}"
        elif not (isinstance(message, PreVoteReply) and message.granted):
            assert message.term <= stored.term, f"speaks of a term not on disk, {who}"
        if isinstance(message, Vote) and message.term == stored.term:
            assert stored.vote == host.member, f"campaigns without its own vote, {who}"
        if isinstance(message, VoteReply) and message.granted:
            if message.term == stored.term:
                assert stored.vote == message.target, f"the vote is not on disk, {who}"
            first = self._votes.setdefault((host.member, message.term), message.target)
            assert first == message.target, f"voted for {first} before, {who}"
        if isinstance(message, AppendReply) and message.term == host.raft.term:
            assert message.match <= host.disk.log.last()[0], f"acks what it lacks, {who}"

    def asked(self, host: Host, context: int) -> None:
        """A read must see at least everything that anybody knows to be committed by now."""
        key = (host.member, host.boots, context)
        self._floors[key] = max(self.committed, default=0)

    def serving(self, host: Host, grant: ReadGrant) -> None:
        floor = self._floors[host.member, host.boots, grant.context]
        assert grant.index >= floor, f"a stale read: {grant}, but {floor} was committed"
        assert len(host.applied) >= grant.index, f"served before it was applied: {grant}"

    def settled(self, host: Host) -> None:
        """A host has done what there was to do for now."""
        raft, member = host.raft, host.member
        assert raft.term >= self._terms.get(member, 0), f"the term of {member} went back"
        self._terms[member] = raft.term
        self._stored[member] = host.disk.hard_state.term
        assert raft.applied_index <= raft.commit_index <= raft.log.last_index
        self._check_commit(host)
        self._check_membership(host)
        if raft.role is Role.LEADER and raft.term == host.disk.hard_state.term:
            # Before that, the only voter of a group leads for nobody: a crash undoes it.
            self._check_leader(host)
            self._leading[member] = (raft.term, raft.commit_index)
        else:
            self._leading.pop(member, None)

    def _check_commit(self, host: Host) -> None:
        raft, member = host.raft, host.member
        known = min(raft.commit_index, raft.log.stable)
        before = self._commits[member]
        assert known >= before, f"what {member} holds committed went from {before} to {known}"
        self._commits[member] = known
        for entry in entries_of(host, max(before, raft.log.anchor_index) + 1, raft.commit_index):
            self._commit(entry, raft.term)

    def _check_membership(self, host: Host) -> None:
        """Paper, 6: the newest configuration in the log is in force, committed or not."""
        log = host.raft.log
        for entry in reversed(entries_of(host, log.anchor_index + 1, log.last_index)):
            if entry.partition == RAFT_PARTITION and entry.payload:
                found, expected = host.raft.membership, Membership.decode(entry.payload)
                assert found == expected, f"{host.member} goes by {found}, not {expected}"
                return

    def _check_leader(self, host: Host) -> None:
        raft, member = host.raft, host.member
        first = self.leaders.setdefault(raft.term, member)
        assert first == member, f"term {raft.term} has two leaders, {first} and {member}"
        led_in, commit = self._leading.get(member, (0, 0))
        if led_in != raft.term:
            self._check_completeness(host)
        elif raft.commit_index > commit:
            assert raft.commit_index <= host.disk.log.last()[0], "commits before its own fsync"
            term = raft.log.term(raft.commit_index)
            assert term == raft.term, f"{member} commits an entry of term {term} by counting"

    def _check_completeness(self, host: Host) -> None:
        """Paper, 5.4.3: a new leader has everything that was committed in the terms before."""
        log = host.raft.log
        for index, entry in self.committed.items():
            if self._committed_by[index] < host.raft.term and index >= log.anchor_index:
                found = log.term(index)
                assert found == entry.term, (
                    f"{host.member} leads term {host.raft.term} with {index}/{found}, "
                    f"but {index}/{entry.term} is committed"
                )

    # -- memory -------------------------------------------------------------------------------

    def _remember(self, entries: Iterable[Entry], term_before: int) -> None:
        for entry in entries:
            key = (entry.index, entry.term)
            known = self._appended.setdefault(key, (entry, term_before))
            assert known == (entry, term_before), f"two histories of {key}"
            assert term_before <= entry.term, f"terms go back in the log at {key}"
            term_before = entry.term

    def _commit(self, entry: Entry, term: int) -> None:
        known = self.committed.setdefault(entry.index, entry)
        assert known == entry, f"committed twice: {known} and {entry}"
        self._committed_by[entry.index] = min(term, self._committed_by.get(entry.index, term))

    # -- at the end ---------------------------------------------------------------------------

    def check(self) -> None:
        """Every pair of logs and of states agrees, whatever was seen on the way."""
        hosts = list(self._group.hosts.values())
        for host in hosts:
            if host.alive and host.held is None:
                self.settled(host)
        for one, other in combinations(hosts, 2):
            shared = min(len(one.applied), len(other.applied))
            assert one.applied[:shared] == other.applied[:shared], "states have parted"
            self._check_log_matching(one, other)

    def _check_log_matching(self, one: Host, other: Host) -> None:
        first = max(one.raft.log.anchor_index, other.raft.log.anchor_index) + 1
        last = min(one.raft.log.last_index, other.raft.log.last_index)
        pairs = list(zip(entries_of(one, first, last), entries_of(other, first, last), strict=True))
        same = [position for position, (a, b) in enumerate(pairs) if a.term == b.term]
        for a, b in pairs[: max(same, default=-1) + 1]:
            assert a == b, f"logs of {one.member} and {other.member} share an entry, but not {a}"


def entries_of(host: Host, first: int, last: int) -> list[Entry]:
    """What the log of a member holds there, in memory or on disk."""
    found: list[Entry] = []
    while first <= last:
        found += host.raft.log.read(first, last, 1 << 30, 1 << 30)
        first = found[-1].index + 1
    return found
