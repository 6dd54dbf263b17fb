"""One member of one group with its files: where consensus meets storage.

The one rule: `pump` does what a `Ready` asks for in the order of the contract in `shardnode.raft`.
Nothing that acknowledges leaves before the fsync that makes it true.

In come ticks, messages of peers, proposals and reads. Out go messages through the `send` function
that the owner gave, and, to be collected after each `pump`, `outcomes` and `reads`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from shardnode.raft import (
    Entry,
    HardState,
    Message,
    Proposal,
    Raft,
    ReadGrant,
    Ready,
    Role,
)
from shardnode.shard.acks import Policy
from shardnode.shard.boot import ReplicaSettings, boot
from shardnode.shard.builder import Builder
from shardnode.shard.copies import Busy, Copies, Send
from shardnode.shard.holding import Holding
from shardnode.shard.machine import StateMachine
from shardnode.shard.transfer import Piece, Pull
from shardnode.storage.errors import NoSpace
from shardnode.storage.files import Files
from shardnode.storage.log import SegmentedLog

ALL = 1 << 62

TELL_AFTER_MS = 500
"""How long those who wait for a member that leads no more are left to wait for what comes of it."""

LAZY_ENTRIES = 16
"""Committed at a follower and not applied, at most, while letters keep coming."""

FETCH_FACTOR = 8
FETCH_PATIENCE_MS = 60_000
"""For a member that is there, or was a moment ago, the log may grow larger."""


class Fate(Enum):
    """What became of a proposal."""

    APPLIED = "applied"
    LOST = "lost"
    """It certainly had no effect and never will: trying again is safe."""
    UNKNOWN = "unknown"
    """It may take effect or not; only a session can tell."""


class Request(NamedTuple):
    """A proposal of a client; `token` finds whoever waits for it."""

    token: int
    partition: int
    payload: bytes


class Outcome(NamedTuple):
    """What to tell whoever waits for a proposal."""

    token: int
    fate: Fate
    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    reply: bytes


class _Reader:
    """The durable log in the form that consensus asks for."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    def anchor(self) -> tuple[int, int]:
        return self._log.anchor.index, self._log.anchor.term

    def last(self) -> tuple[int, int]:
        return self._log.last_index, self._log.last_term

    def term(self, index: int) -> int:
        return self._log.term(index)

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        return [Entry._make(record) for record in self._log.read(first, last, bytes_max)]


class Replica:
    """One member of one group. Single-threaded; owned by one loop."""

    def __init__(
        self,
        settings: ReplicaSettings,
        *,
        files: Files,
        machine: StateMachine,
        rng: random.Random,
        now_ms: int,
        send: Send,
        builder: Builder | None = None,
        busy: Busy = nullcontext,
    ) -> None:
        """`builder` makes snapshots beside the loop; without one they are made at once. `busy`
        surrounds what may take long."""
        booted = boot(settings, files, machine)
        self.settings = settings
        self.machine = machine
        self.log = booted.log
        self.superblock = booted.superblock
        self.snapshots = booted.snapshots
        self.raft = Raft(
            cluster=settings.cluster,
            member=settings.member,
            membership=booted.membership,
            log=_Reader(booted.log),
            rng=rng,
            now_ms=now_ms,
            hard_state=booted.hard_state,
            commit=booted.commit,
            applied=booted.applied,
            snapshot=booted.snapshot,
            options=settings.raft,
        )
        self.outcomes: list[Outcome] = []
        self.reads: list[ReadGrant] = []
        self.refused_reads: list[int] = []
        self.counters: Counter[str] = Counter()
        self._send = send
        self.copies = Copies(self, send, builder=builder, busy=busy)
        self.holding: Holding[Outcome] = Holding()
        self._waiting: dict[int, tuple[int, int]] = {}
        self._partition_indexes: dict[int, int] = {}
        self._counted_term = 0
        self._deposed_ms = now_ms
        self._found_index = booted.log.last_index
        self.counters["redone_bytes"] = 0
        self.flushed_index = machine.applied_index
        self.snapshot_index = booted.snapshot.index if booted.snapshot else 0
        self.token = files.token
        self.kept_index = ALL
        """The log behind this index is kept for readers of it: see `cuts`."""
        self.flush_wanted = False
        """Somebody waits for a snapshot of what is applied: flush before it is due."""

    # -- in -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """The monotonic clock shows `now_ms`; call it before anything else of a drain."""
        self.raft.tick(now_ms)
        self.copies.tick()
        if self.raft.role is Role.LEADER or not self._waiting:
            self._deposed_ms = now_ms
        elif now_ms - self._deposed_ms >= TELL_AFTER_MS:
            self.forget_waiting(ALL)

    def receive(self, message: Message | Pull | Piece) -> None:
        """A peer said something."""
        if isinstance(message, Message):
            self.raft.step(message)
        elif (message.cluster, message.target) != (self.settings.cluster, self.settings.member):
            self.counters["stranger"] += 1
        elif isinstance(message, Pull):
            self.copies.serve(message)
        else:
            self.copies.take_piece(message)

    def propose(self, requests: Sequence[Request]) -> None:
        """Append requests as one run of entries. `raft.Refused` when this cannot be."""
        self.raft.require_leader()
        self._count_partitions()
        counts: dict[int, int] = {}
        proposals = []
        for _, partition, payload in requests:
            number = counts.get(partition) or self._partition_indexes.get(partition, 0)
            counts[partition] = number + 1
            proposals.append(Proposal(partition, number + 1, payload))
        first = self.raft.propose(proposals)
        self._partition_indexes.update(counts)
        if len(self.holding):
            self.holding.appended(
                self.raft,
                ((p.partition, p.partition_index, i) for i, p in enumerate(proposals, first)),
            )
        term = self.raft.term
        for index, request in enumerate(requests, first):
            self._waiting[index] = (term, request.token)

    def follow(self, partition: int, policy: Policy) -> None:
        """Answer writes to a partition when this policy is satisfied, not a majority alone."""
        self.holding.follow(partition, policy, self.machine.partition_indexes.get(partition, 0))

    def read(self, context: int, *, lease: bool = False) -> None:
        """Ask for a linearizable read; `reads` or `refused_reads` answers after a `pump`."""
        self.raft.read_index(context, lease=lease)

    def change_config(self, voters: Collection[int], learners: Collection[int] = ()) -> int:
        """Move the group to these members."""
        return self.raft.change_config(voters, learners)

    def transfer(self, target: int) -> None:
        """Hand leadership over."""
        self.raft.transfer(target)

    # -- out ----------------------------------------------------------------------------------

    def pump(self, entries_max: int = ALL, *, lazy: bool = False) -> bool:
        """Do everything that consensus asks for; one write and one fsync per `Ready`. False when
        more than `entries_max` were applied and there may be more: others must have their turn.
        With `lazy`, a follower leaves a few entries for later: nobody waits for their effects, and
        a leader waits for what it does instead."""
        applied = 0
        hold = lazy and self.lingers and self._unapplied < LAZY_ENTRIES
        while applied < entries_max and (ready := self.raft.ready(hold=hold)) is not None:
            self._send(ready.messages)
            if self._persist(ready):
                self._send(ready.after_persist)
            if ready.committed:
                self._apply(ready.committed)
                applied += len(ready.committed)
            self.reads += ready.reads
            self.refused_reads += ready.refused_reads
            if ready.install is not None:
                self.copies.begin_download(ready.install, ready.install_from)
        if len(self.holding):
            told, unknown = self.holding.look(self.raft)
            self.outcomes += told
            self.outcomes += [each._replace(fate=Fate.UNKNOWN, reply=b"") for each in unknown]
        self._tidy()
        return applied < entries_max

    @property
    def lingers(self) -> bool:
        """Whether something is committed and may be applied later."""
        return self.raft.role is not Role.LEADER and self._unapplied > 0

    @property
    def _unapplied(self) -> int:
        return self.raft.commit_index - self.raft.applied_index

    def close(self) -> None:
        """A clean stop: the next start finds everything committed, with nothing to redo."""
        self.copies.close()
        if self.machine.applied_index > self.flushed_index and not self.catching_up:
            self.flush()
        self.store_watermark(self.snapshot_index)
        self.log.close()

    def _persist(self, ready: Ready) -> bool:
        """Make it durable; False when the disk is full and nothing may be acknowledged."""
        if not ready.must_persist:
            return True
        if ready.hard_state is not None:
            self._store_hard_state(ready.hard_state)
        if ready.entries:
            try:
                self.log.append_batch(ready.entries, ready.commit)
            except NoSpace:
                self._disk_full(ready)
                return False
            self.log.sync()
        self.raft.persisted(ready.persist_index, ready.persist_term)
        return True

    def _disk_full(self, ready: Ready) -> None:
        """What was not written is forgotten; alone in the group it is certainly lost."""
        self.counters["disk_full"] += 1
        self.raft.append_failed()
        fate = Fate.LOST if len(self.raft.membership.everyone) == 1 else Fate.UNKNOWN
        self.resolve(range(self.raft.log.last_index + 1, ready.persist_index + 1), fate)
        self._counted_term = 0

    def _apply(self, entries: Sequence[Entry]) -> None:
        last = entries[-1].index
        # After a repair the state machine may be ahead of the log: those took effect before.
        fresh = [entry for entry in entries if entry.index > self.machine.applied_index]
        if fresh:
            if fresh[0].index <= self._found_index:
                self._count_redone(fresh)
            replies = self.machine.apply(fresh)
            for entry, reply in zip(fresh, replies, strict=True):
                waiting = self._waiting.pop(entry.index, None)
                if waiting is not None:
                    term, token = waiting
                    fate = Fate.APPLIED if term == entry.term else Fate.LOST
                    outcome = Outcome(token, fate, entry.index, reply)
                    if self._may_tell(entry, outcome):
                        self.outcomes.append(outcome)
        self.raft.applied(last)

    def _count_redone(self, entries: Sequence[Entry]) -> None:
        """What the log had at the start and the effects had not."""
        again = [len(entry.payload) for entry in entries if entry.index <= self._found_index]
        self.counters["redone_entries"] += len(again)
        self.counters["redone_bytes"] += sum(again)

    def _may_tell(self, entry: Entry, outcome: Outcome) -> bool:
        if not len(self.holding) or outcome.fate is Fate.LOST:
            return True
        return self.holding.passes(entry.partition, entry.partition_index, outcome)

    def resolve(self, indexes: Collection[int], fate: Fate) -> None:
        for index in indexes:
            waiting = self._waiting.pop(index, None)
            if waiting is not None:
                self.outcomes.append(Outcome(waiting[1], fate, index, b""))

    def forget_waiting(self, index: int) -> None:
        """Nobody here will know the fate of what was proposed through `index`: a snapshot took its
        place, or another leads and is not heard of."""
        self.resolve([each for each in self._waiting if each <= index], Fate.UNKNOWN)

    # -- durable state ------------------------------------------------------------------------

    def _store_hard_state(self, hard: HardState) -> None:
        state = self.superblock.state
        assert state is not None
        self.superblock.store(
            replace(state, term=hard.term, vote=hard.vote, recovering=hard.recovering)
        )

    def store_watermark(self, snapshot_index: int) -> None:
        """The commit watermark trails; no acknowledgement waits for it."""
        state = self.superblock.state
        assert state is not None
        commit = min(self.raft.commit_index, self.log.durable_index)
        self.superblock.store(
            replace(
                state,
                commit=max(state.commit, commit),
                snapshot_index=max(state.snapshot_index, snapshot_index),
            )
        )

    def _tidy(self) -> None:
        applied, settings = self.machine.applied_index, self.settings
        if settings.flush_every_entries <= applied - self.flushed_index and not self.catching_up:
            self.flush()
        self.copies.look_at_builder()
        periodic = settings.snapshot_every_entries
        if self.raft.snapshot_wanted or 0 < periodic <= applied - self.snapshot_index:
            self.copies.take_snapshot()

    def flush(self) -> None:
        index = self.machine.applied_index
        try:
            self.machine.flush(self.membership_bytes())
        except NoSpace:
            self.counters["flush_failed"] += 1  # nothing is lost: the log has it, the next one too
            return
        self.flushed(index)

    @property
    def catching_up(self) -> bool:
        """The log was lost and its effects were not: until it has caught up with them nobody here
        knows the configuration that goes with them, so they stay as they are stored."""
        return self.machine.applied_index > self.raft.applied_index

    def membership_bytes(self) -> bytes:
        """The configuration in force at what is applied: it becomes durable with the effects."""
        return self.raft.history.at(self.machine.applied_index).encode()

    def flushed(self, index: int) -> None:
        """Effects through `index` are stored: the log behind them is needed by peers alone."""
        self.flushed_index = index
        self.flush_wanted = False
        droppable = self.needed_index - 1
        if droppable > self.log.anchor.index:
            self.log.truncate_front(droppable)
            self.raft.compacted()

    @property
    def needed_index(self) -> int:
        """The log may be cut before this: a crash could undo the effects of the rest, a partition
        waits for acknowledgements of it, or members and readers need it, within bounds."""
        settings, pending = self.settings, self.holding.acks.pending.values()
        droppable = min([self.machine.durable_index, *(index - 1 for index in pending)])
        droppable = min(droppable, self.kept_index)
        size, keep_max = self.log.size_bytes, settings.keep_bytes_max
        if size < keep_max:
            kept = self.raft.applied_index - settings.keep_entries
            droppable = min(droppable, kept, self.raft.lagging_index)
        elif size < FETCH_FACTOR * keep_max:
            droppable = min(droppable, self.raft.awaited_index(FETCH_PATIENCE_MS))
        return max(self.log.anchor.index, droppable) + 1

    def _count_partitions(self) -> None:
        """A new leader learns how far each partition is numbered, from effects and the tail."""
        if self._counted_term == self.raft.term:
            return
        counts = dict(self.machine.partition_indexes)
        log = self.raft.log
        first = self.machine.applied_index + 1
        while first <= log.last_index:
            for entry in log.read(first, log.last_index, 1 << 20, 1 << 16):
                counts[entry.partition] = entry.partition_index
                first = entry.index + 1
        self._partition_indexes = counts
        self._counted_term = self.raft.term
