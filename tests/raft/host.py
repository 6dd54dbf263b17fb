"""What a caller of the core owns: a disk that forgets what was not fsynced, and the loop.

The one rule: a `Host` does exactly what the contract in `shardnode.raft` asks of a caller, in that
order, and shows every step to the group's `Observer` and `Narrator`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardnode.raft import (
    Entry,
    HardState,
    Membership,
    Message,
    Proposal,
    Raft,
    ReadGrant,
    Ready,
    SnapshotRef,
)

if TYPE_CHECKING:
    from tests.raft.kit import Group

CLUSTER = 7
PARTITION = 1
STEPS_MAX = 2000
"""No test needs as many; whoever gets there is stuck in a loop."""


class MemoryLog:
    """A durable log: what is in it survives a crash."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.anchor_index = self.anchor_term = 0
        self.entries = list(entries)

    def anchor(self) -> tuple[int, int]:
        return self.anchor_index, self.anchor_term

    def last(self) -> tuple[int, int]:
        if not self.entries:
            return self.anchor()
        return self.entries[-1].index, self.entries[-1].term

    def term(self, index: int) -> int:
        if index == self.anchor_index:
            return self.anchor_term
        return self.entries[index - self.anchor_index - 1].term

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        found = self.entries[first - self.anchor_index - 1 : last - self.anchor_index]
        assert len(found) == last - first + 1, f"{first} to {last} is not durable here"
        total = 0
        for count, entry in enumerate(found):
            total += len(entry.payload)
            if total > bytes_max and count:
                return found[:count]
        return found

    def append_batch(self, entries: Sequence[Entry]) -> None:
        """Overwrites from the first index on, as the contract says."""
        position = entries[0].index - self.anchor_index - 1
        assert 0 <= position <= len(self.entries), "a batch leaves no gap"
        self.entries[position:] = entries

    def compact(self, index: int) -> None:
        """Nothing at or below `index` can be read any more."""
        term = self.term(index)
        del self.entries[: index - self.anchor_index]
        self.anchor_index, self.anchor_term = index, term

    def reset(self, index: int, term: int) -> None:
        """A snapshot stands for everything through `index`."""
        self.anchor_index, self.anchor_term = index, term
        self.entries = []


@dataclass
class Disk:
    """Everything that survives a crash."""

    membership: Membership
    log: MemoryLog = field(default_factory=MemoryLog)
    hard_state: HardState = field(default_factory=HardState)
    commit: int = 0
    snapshot: SnapshotRef | None = None


class Host:
    """The caller of one core."""

    def __init__(self, group: Group, member: int, disk: Disk) -> None:
        self.group = group
        self.member = member
        self.disk = disk
        self.rng = random.Random(member)
        self.clock_ms = 0
        self.disk_full = False
        self.persist_late = False
        self.held: Ready | None = None
        self.boots = 0
        self.boot()

    def boot(self) -> None:
        """Start from what is durable, and apply again everything after the snapshot."""
        disk, snapshot = self.disk, self.disk.snapshot
        applied = snapshot.index if snapshot else 0
        self.boots += 1
        self.alive = True
        self.held = None
        self.applied: list[Entry] = list(self.group.states[snapshot.handle]) if snapshot else []
        self.served: list[ReadGrant] = []
        self.refused: list[int] = []
        self.sent: list[Message] = []
        self.wanted: tuple[SnapshotRef, int] | None = None
        self.raft = Raft(
            cluster=CLUSTER,
            member=self.member,
            membership=snapshot.membership if snapshot else disk.membership,
            log=disk.log,
            rng=self.rng,
            now_ms=self.clock_ms,
            hard_state=disk.hard_state,
            commit=max(applied, min(disk.commit, disk.log.last()[0])),
            applied=applied,
            snapshot=snapshot,
            options=self.group.options,
        )
        self.group.observer.booted(self)

    # -- events in ----------------------------------------------------------------------------

    def tick(self, ms: int = 0) -> list[Message]:
        """`ms` pass on this host's clock. What it sent because of that."""
        self.clock_ms += ms
        self.raft.tick(self.clock_ms)
        return self.drain()

    def receive(self, *messages: Message) -> list[Message]:
        """One drain of an inbox. What was sent because of it."""
        for message in messages:
            self.raft.step(message)
        return self.drain()

    def propose(self, *payloads: bytes) -> int:
        """One batch; the index of its first entry. Leaves at the next drain."""
        first = self.raft.log.last_index + 1
        batch = [Proposal(PARTITION, first + i, payload) for i, payload in enumerate(payloads)]
        return self.raft.propose(batch)

    def read(self, context: int, *, lease: bool = False) -> None:
        """Ask for a read; the observer remembers what it must not miss."""
        self.raft.read_index(context, lease=lease)
        self.group.observer.asked(self, context)

    def release(self) -> list[Message]:
        """The fsync that was held up by `persist_late` completes."""
        ready, self.held, self.persist_late = self.held, None, False
        self.sent = []
        if ready is not None:
            self._finish(ready)
        return self._drain()

    def compact(self, keep: int = 0) -> SnapshotRef:
        """Take a snapshot of what is applied; leave `keep` entries before it in the log."""
        raft, index = self.raft, self.raft.applied_index
        term = raft.log.term(index)
        assert term is not None
        handle = b"%d/%d of %d" % (index, term, self.member)
        snapshot = SnapshotRef(index, term, raft.history.at(index), handle)
        self.group.states[handle] = tuple(self.applied)
        self.disk.snapshot = snapshot
        self.disk.log.compact(max(self.disk.log.anchor_index, index - keep))
        raft.compacted(snapshot)
        return snapshot

    def install(self) -> bool:
        """The snapshot that was asked for last has arrived. False when it is not wanted now."""
        assert self.wanted is not None, "no snapshot was offered"
        snapshot, _ = self.wanted
        self.wanted = None
        if not self.raft.needs_snapshot(snapshot):
            return False
        self.applied = list(self.group.states[snapshot.handle])
        self.disk.snapshot = snapshot
        self.disk.log.reset(snapshot.index, snapshot.term)
        self.raft.installed(snapshot)
        self.drain()
        return True

    def lose_log(self) -> None:
        """While down, the disk loses every entry; the superblock says so from now on."""
        assert not self.alive
        disk = self.disk
        disk.log, disk.commit, disk.snapshot = MemoryLog(), 0, None
        disk.hard_state = replace(disk.hard_state, recovering=True)

    # -- the loop of the contract -------------------------------------------------------------

    def drain(self) -> list[Message]:
        """Take every `Ready` and do what it asks. What was sent."""
        self.sent = []
        return self._drain()

    def _drain(self) -> list[Message]:
        for _ in range(STEPS_MAX):
            if self.held is not None or (ready := self.raft.ready()) is None:
                self.group.observer.settled(self)
                return self.sent
            self.group.narrator.standing(self, ready)
            self._send(ready.messages)
            if self.persist_late and ready.must_persist:
                self.held = ready
            else:
                self._finish(ready)
        raise AssertionError(f"member {self.member} never runs out of work")

    def _finish(self, ready: Ready) -> None:
        self.group.narrator.writes(self, ready)
        if ready.hard_state is not None:
            self.disk.hard_state = ready.hard_state
        if ready.entries and self.disk_full:
            self.raft.append_failed()
        else:
            self._persist(ready)
            self._send(ready.after_persist)
        self._apply(ready)
        self.group.narrator.results(self, ready)

    def _persist(self, ready: Ready) -> None:
        if ready.entries:
            self.group.observer.persisting(self, ready.entries)
            self.disk.log.append_batch(ready.entries)
            self.disk.commit = ready.commit
        if ready.must_persist:
            self.raft.persisted(ready.persist_index, ready.persist_term)

    def _apply(self, ready: Ready) -> None:
        for entry in ready.committed:
            self.group.observer.applying(self, entry)
            self.applied.append(entry)
        if ready.committed:
            self.raft.applied(ready.committed[-1].index)
        for grant in ready.reads:
            self.group.observer.serving(self, grant)
        self.served += ready.reads
        self.refused += ready.refused_reads
        if ready.install is not None:
            self.wanted = (ready.install, ready.install_from)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.group.observer.sending(self, message)
            self.group.narrator.message(message)
            self.group.links.setdefault((self.member, message.target), deque()).append(message)
        self.sent += messages
