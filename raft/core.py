"""The door of the core: `Raft`, one member of one group.

The one rule: state changes only inside these methods, and everything the outside has to do
because of them comes out of `ready()`. The state and the changes of role are in `member.py`, what
a member does in each role in `follower.py`, `candidate.py` and `leader.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from shardnode.raft import candidate, follower, leader
from shardnode.raft.errors import BadTarget, Busy, ChangePending, NotLeader, NotReady
from shardnode.raft.member import Member
from shardnode.raft.membership import MEMBERS_MAX
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    Vote,
    VoteReply,
)
from shardnode.raft.progress import Progress
from shardnode.raft.types import (
    Entry,
    HardState,
    Proposal,
    ReadGrant,
    Ready,
    Role,
    SnapshotRef,
    Standing,
    shard_of,
)

HANDLERS: dict[Role, dict[type[Message], Callable[[Raft, Any], None]]] = {
    Role.FOLLOWER: follower.HANDLERS,
    Role.PRE_CANDIDATE: candidate.HANDLERS,
    Role.CANDIDATE: candidate.HANDLERS,
    Role.LEADER: leader.HANDLERS,
}

TICKS: dict[Role, Callable[[Raft], None]] = {
    Role.FOLLOWER: follower.tick,
    Role.PRE_CANDIDATE: candidate.tick,
    Role.CANDIDATE: candidate.tick,
    Role.LEADER: leader.tick,
}


class Raft(Member):
    """One member of one group. See the contract in `shardnode.raft`."""

    # -- what the outside tells us ------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """The monotonic clock shows `now_ms`. Call it before `step` and `read_index`."""
        self.now_ms = max(self.now_ms, now_ms)
        TICKS[self.role](self)

    def step(self, message: Message) -> None:
        """A member of this group said something. A stranger's message is dropped and counted."""
        shard = shard_of(self.member)
        if (
            message.cluster != self.cluster
            or message.target != self.member
            or message.source == self.member
            or shard_of(message.source) != shard
        ):
            self.count("stranger")
        elif message.term < self.term:
            self._answer_stale(message)
        elif message.term == self.term or self._admit_term(message):
            handler = HANDLERS[self.role].get(type(message))
            if handler is None:
                self.count("unexpected")
            else:
                handler(self, message)

    def _answer_stale(self, m: Message) -> None:
        """Someone lives in an older term: tell a leader or candidate of ours, ignore the rest."""
        if isinstance(m, Append | Heartbeat | SnapshotOffer):
            follower.reply_append(self, m)
        elif isinstance(m, PreVote):
            self.reply(PreVoteReply(self.cluster, self.member, m.source, self.term, False))
        elif isinstance(m, Vote):
            self.reply(VoteReply(self.cluster, self.member, m.source, self.term, False))
        else:
            self.count("stale")

    def _admit_term(self, m: Message) -> bool:
        """A newer term: enter it, unless the message only asks, or we are loyal to a leader."""
        if isinstance(m, Vote | PreVote) and self.is_loyal() and not getattr(m, "forced", False):
            self.count("loyal")
            return False
        asks_only = isinstance(m, PreVote) or (isinstance(m, PreVoteReply) and m.granted)
        if not asks_only:
            from_leader = isinstance(m, Append | Heartbeat | SnapshotOffer)
            self.become_follower(m.term, m.source if from_leader else 0)
        return True

    def propose(self, proposals: Sequence[Proposal]) -> int:
        """Append these as one run of entries; the first one's index. All or nothing."""
        self.require_leader()
        if self.transfer_target:
            raise NotLeader(self.transfer_target)
        if self.applied_index < self.takeover_index:
            raise NotReady(self.applied_index, self.takeover_index)
        size = sum(len(proposal.payload) for proposal in proposals)
        self.require_room(len(proposals), size)
        first = self.log.last_index + 1
        term = self.term
        self.append([Entry(i, term, *item) for i, item in enumerate(proposals, first)])
        self._proposed.append((self.log.last_index, size))
        self._proposed_bytes += size
        return first

    def read_index(self, context: int, *, lease: bool = False) -> None:
        """Ask for a linearizable read; `Ready.reads` or `Ready.refused_reads` answers."""
        self.require_leader()
        if len(self.reads) >= self.options.pending_reads_max:
            raise Busy("reads under way", len(self.reads), self.options.pending_reads_max)
        settled = self.commit_index >= self.term_start_index
        if lease and settled and leader.lease_valid(self):
            self.reads.grant(context, self.commit_index)
        else:
            self.reads.ask(context)

    def change_config(self, voters: Collection[int], learners: Collection[int] = ()) -> int:
        """Move to these members, jointly when the voters differ; the index of the first step."""
        self.require_leader()
        if self.commit_index < self.term_start_index:
            raise ChangePending("no entry of this term is committed yet; try again shortly")
        if self.membership.joint or self.history.index > self.commit_index:
            raise ChangePending(f"the change at index {self.history.index} is not finished yet")
        if not voters or set(voters) & set(learners):
            raise BadTarget("a group needs a voter, and a member is either voter or learner")
        if 0 in {*voters, *learners} or max(len(voters), len(learners)) > MEMBERS_MAX:
            raise BadTarget(f"member ids begin at 1, and a set holds at most {MEMBERS_MAX} members")
        strangers = [m for m in (*voters, *learners) if shard_of(m) != shard_of(self.member)]
        if strangers:
            raise BadTarget(f"members of another shard cannot join: {strangers}")
        return self.append_membership(self.membership.toward(voters, learners))

    def transfer(self, target: int) -> None:
        """Hand leadership to `target` once it has the whole log; given up after a timeout."""
        self.require_leader()
        if target == self.member or target not in self.membership.voters:
            raise BadTarget(f"{target:#x} is not another voter of this group")
        self.transfer_target = target
        self.transfer_deadline_ms = self.now_ms + self.options.election_timeout_ms
        leader.continue_transfer(self)

    def persisted(self, index: int, term: int) -> None:
        """The hard state and the entries of the last `Ready` are durable through that point."""
        self._awaits_persisted = False
        self.log.persisted(index, term)
        self.check_recovered()
        if self.role is Role.LEADER:
            leader.maybe_commit(self)

    def append_failed(self) -> None:
        """The disk is full: the entries of the last `Ready` are not durable and never will be.

        Others may have received them, so a leader of a larger group must not use their indexes
        again: it steps down. Alone in the group nobody has seen them, and reads go on.
        """
        self._awaits_persisted = False
        self.count("append_failed")
        self.log.drop_unstable()
        self._forget_above(self.log.last_index)
        while self._proposed and self._proposed[-1][0] > self.log.last_index:
            self._proposed_bytes -= self._proposed.pop()[1]
        alone = self.membership.everyone == (self.member,)
        self._stalled_until_ms = self.now_ms + 4 * self.options.election_timeout_ms
        if self.role is Role.LEADER and alone and self.log.last_index >= self.term_start_index:
            return
        if self.role is not Role.FOLLOWER:
            self.become_follower(self.term, 0)

    def _forget_above(self, index: int) -> None:
        """Entries above `index` are gone: so is what they told us, and no reply may claim them."""
        if self.history.truncate_back(index):
            self.sync_progress()
        self.commit_index = min(self.commit_index, index)
        self.verified_index = min(self.verified_index, index)
        self._replies = [
            m for m in self._replies if not (isinstance(m, AppendReply) and m.match > index)
        ]

    def applied(self, index: int) -> None:
        """Everything through `index` has taken effect."""
        assert self.applied_index <= index <= self.commit_index
        self.applied_index = index
        self.history.settle(index)
        self.log.trim(index)

    def compacted(self, snapshot: SnapshotRef | None = None) -> None:
        """The durable log may begin later now, or a new snapshot exists, or both."""
        if snapshot is not None:
            self.snapshot = snapshot
            self.snapshot_wanted = False
        self.log.refresh_anchor()

    def needs_snapshot(self, snapshot: SnapshotRef) -> bool:
        """Whether installing it would bring anything. Ask before replacing the log."""
        return snapshot.index > self.commit_index and not self.log.matches(
            snapshot.index, snapshot.term
        )

    def installed(self, snapshot: SnapshotRef) -> None:
        """The state machine and the durable log now begin at `snapshot`, durably."""
        # Not `needs_snapshot`: the log it would look into has been replaced by now.
        assert snapshot.index > self.commit_index, "ask needs_snapshot() before replacing the log"
        assert not self._awaits_persisted
        self.log.reset(snapshot.index, snapshot.term)
        self.history.reset(snapshot.index, snapshot.membership)
        self.commit_index = self.applied_index = self._handed_index = snapshot.index
        self.snapshot = snapshot
        if self.role is Role.FOLLOWER and self.leader:
            self.verified_index = max(self.verified_index, snapshot.index)
            self.check_recovered()
            offer = SnapshotOffer(
                self.cluster, self.leader, self.member, self.term, self.leader_stamp, snapshot
            )
            follower.reply_append(self, offer, accepted=True, match=snapshot.index)

    @property
    def lagging_index(self) -> int:
        """What all members are known to have: whoever leads should keep the log after it."""
        if self.role is not Role.LEADER:
            return self.commit_index
        return min((each.held for each in self.progress.values()), default=self.commit_index)

    def awaited_index(self, within_ms: int) -> int:
        """The same of the members heard of within that time; for one that is fetching a snapshot,
        where that ends: it is worth nothing without the log after it."""
        snapshot, anchor = self.snapshot, self.log.anchor_index
        after = snapshot.index if snapshot is not None and snapshot.index >= anchor else anchor
        return min(
            (
                max(each.match, after if each.match < anchor else 0)
                for each in self._near(within_ms)
            ),
            default=self.commit_index,
        )

    def is_fetched_from(self, within_ms: int) -> bool:
        """Whether a member heard of within that time needs our snapshot."""
        return any(each.match < self.log.anchor_index for each in self._near(within_ms))

    def _near(self, within_ms: int) -> list[Progress]:
        if self.role is not Role.LEADER:
            return []
        return [
            each for each in self.progress.values() if self.now_ms - each.contact_ms < within_ms
        ]

    # -- what we tell the outside -------------------------------------------------------------

    def ready(self, *, hold: bool = False) -> Ready | None:
        """What has to be done now, or None. After a `Ready.must_persist`, `persisted` first. With
        `hold`, what is committed stays here until another time."""
        assert not self._awaits_persisted, "call persisted() before the next ready()"
        if self.role is Role.LEADER:
            leader.replicate(self)
        state = HardState(self.term, self.vote, self.recovering)
        hard_state = state if state != self._durable_state else None
        standing = self._news()
        entries = self.log.unstable() if self.log.last_index > self.log.stable else ()
        committed = () if hold else self._take_committed()
        reads = self.reads.take(self.applied_index) if self.role is Role.LEADER else ()
        if not (
            hard_state
            or entries
            or committed
            or reads
            or standing
            or self._messages
            or self._replies
            or self._refused_reads
            or self._install
        ):
            return None
        return self._make_ready(hard_state, entries, committed, reads, standing)

    def _make_ready(
        self,
        hard_state: HardState | None,
        entries: Sequence[Entry],
        committed: Sequence[Entry],
        reads: Sequence[ReadGrant],
        standing: Standing | None,
    ) -> Ready:
        messages, replies = self._messages, self._replies
        if hard_state is not None:
            # Nothing may leave that speaks of a term or a vote which a crash could undo.
            messages, replies = [], messages + replies
            self._durable_state = hard_state
        snapshot, source = self._install or (None, 0)
        ready = Ready(
            hard_state=hard_state,
            entries=entries,
            messages=messages,
            after_persist=replies,
            committed=committed,
            reads=reads,
            refused_reads=self._refused_reads,
            install=snapshot,
            install_from=source,
            standing=standing,
            commit=self.commit_index,
            persist_index=self.log.last_index,
            persist_term=self.log.last_term,
        )
        self._messages, self._replies, self._refused_reads, self._install = [], [], [], None
        self._awaits_persisted = ready.must_persist
        return ready

    def _news(self) -> Standing | None:
        standing = Standing(self.role, self.term, self.leader)
        if standing == self._told:
            return None
        self._told = standing
        return standing

    def _take_committed(self) -> Sequence[Entry]:
        """The next committed entries that are durable here, a bounded amount at a time."""
        last = min(self.commit_index, self.log.stable)
        if last <= self._handed_index:
            return ()
        entries = self.log.read(
            self._handed_index + 1, last, self.options.apply_bytes_max, last - self._handed_index
        )
        self._handed_index = entries[-1].index
        return entries
