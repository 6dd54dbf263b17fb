"""The state of one member and the changes of role that every part of the core shares.

The one rule: a change of term forgets what belonged to the old one (vote, leader, votes, what was
verified), in one place: `become_follower` and `campaign_for_real`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence

from shardnode.raft.errors import Busy, NotLeader
from shardnode.raft.log import RaftLog
from shardnode.raft.membership import History, Membership
from shardnode.raft.messages import Message, PreVote, Vote
from shardnode.raft.progress import Progress
from shardnode.raft.quorum import Verdict, verdict
from shardnode.raft.reads import ReadQueue
from shardnode.raft.types import (
    RAFT_PARTITION,
    Entry,
    HardState,
    LogReader,
    Options,
    Role,
    SnapshotRef,
    Standing,
)


class Member:
    """What a member knows, and how it becomes follower, candidate or leader."""

    def __init__(
        self,
        *,
        cluster: int,
        member: int,
        membership: Membership,
        log: LogReader,
        rng: random.Random,
        now_ms: int,
        hard_state: HardState = HardState(),  # noqa: B008 (immutable)
        commit: int = 0,
        applied: int = 0,
        snapshot: SnapshotRef | None = None,
        options: Options = Options(),  # noqa: B008 (immutable)
    ) -> None:
        """Start from what is durable. `membership` is the one in force at index `applied`."""
        self.cluster = cluster
        self.member = member
        self.options = options
        self.counters: Counter[str] = Counter()
        self.now_ms = now_ms
        self._rng = rng
        self._init_log(log, membership, commit, applied, snapshot)
        self._init_term(hard_state)
        self._init_leadership()
        self._init_outbox(hard_state)

    def _init_log(
        self,
        reader: LogReader,
        membership: Membership,
        commit: int,
        applied: int,
        snapshot: SnapshotRef | None,
    ) -> None:
        self.log = RaftLog(reader, self.options.cache_bytes_max)
        assert applied <= commit <= self.log.last_index, "commit is restored from a watermark"
        self.commit_index = commit
        self.applied_index = applied
        self._handed_index = applied
        self.snapshot = snapshot
        self.snapshot_wanted = False
        """A member needs a snapshot and there is none that the log continues."""
        self.history = History(applied, membership)
        first = applied + 1
        while first <= self.log.last_index:
            entries = self.log.read(first, self.log.last_index, 1 << 20, 1 << 16)
            self._note_memberships(entries)
            first = entries[-1].index + 1

    def _init_term(self, hard_state: HardState) -> None:
        self.role = Role.FOLLOWER
        self.term, self.vote = hard_state.term, hard_state.vote
        self.leader = 0
        self.leader_stamp = 0
        self.votes: dict[int, bool] = {}
        self.attempts = 0
        """Campaigns since a leader was last heard of."""
        self.recovering = hard_state.recovering
        self.recovery_nonce = self._rng.getrandbits(63) | 1 if self.recovering else 0
        self.recovery_target: int | None = None
        self.verified_index = 0
        """How far this log is known to equal that of the leader of this term."""
        self.no_vote_until_ms = self.now_ms
        """What the last sign of life of a leader promised it. Outlives our term: its lease does."""
        if hard_state.term:
            # Before the restart we may have promised a leader its lease: keep that promise.
            self.no_vote_until_ms += self.options.election_timeout_ms
        self._stalled_until_ms = self.now_ms
        self.election_deadline_ms = self.now_ms
        if not self._rules_alone():
            self.reset_election_deadline()

    def _init_leadership(self) -> None:
        self.progress: dict[int, Progress] = {}
        self.stamp = 0
        self.heartbeat_due_ms = 0
        self.term_start_index = 0
        """The no-op that began this leadership: once committed, so is everything before it."""
        self.takeover_index = 0
        """What was committed when leadership began: applied first, then proposals are taken."""
        self.lease_void = False
        self.transfer_target = 0
        self.transfer_deadline_ms = 0
        self.reads = ReadQueue()
        self._proposed: deque[tuple[int, int]] = deque()
        self._proposed_bytes = 0

    def _init_outbox(self, hard_state: HardState) -> None:
        self._messages: list[Message] = []
        self._replies: list[Message] = []
        self._refused_reads: list[int] = []
        self._install: tuple[SnapshotRef, int] | None = None
        self._durable_state = hard_state
        self._told = Standing(self.role, self.term, self.leader)
        self._awaits_persisted = False

    @property
    def membership(self) -> Membership:
        """The configuration in force: the newest in the log."""
        return self.history.current

    @property
    def advertised_commit(self) -> int:
        """A leader never advertises a commit point that it has not applied up to (D3)."""
        return min(self.commit_index, self.applied_index)

    # -- roles --------------------------------------------------------------------------------

    def _rules_alone(self) -> bool:
        """The only voter, for certain: nobody else can lead or hold a lease, so do not wait."""
        alone = self.membership.halves == ((self.member,), ())
        return alone and self.history.index <= self.commit_index

    def is_loyal(self) -> bool:
        """Whether a leader may count on us not to vote for anybody else yet (thesis, 6.4.1)."""
        return self.role is Role.LEADER or self.now_ms < self.no_vote_until_ms

    def may_campaign(self) -> bool:
        """Only a voter with an intact log and room on its disk should lead."""
        return self._has_a_say() and not self.recovering and self.now_ms >= self._stalled_until_ms

    def _has_a_say(self) -> bool:
        """A voter, or one until the newest configuration is committed (thesis, 4.2.2).

        Those that it keeps may lack its entry, and then only those that it removes can win.
        """
        committed = self.history.at(self.commit_index)
        return self.membership.votes(self.member) or committed.votes(self.member)

    def campaign(self, *, forced: bool = False) -> None:
        """Ask whether we would win, before disturbing anybody; a transfer does not ask."""
        if forced:
            self.campaign_for_real(forced=True)
            return
        self.role = Role.PRE_CANDIDATE
        self.leader = 0
        self.retry_soon()
        self.attempts += 1
        if self._begin_vote():
            self.campaign_for_real(forced=False)
            return
        for member in self._other_voters():
            last_index, last_term = self.log.last_index, self.log.last_term
            self.send(
                PreVote(self.cluster, self.member, member, self.term + 1, last_index, last_term)
            )

    def campaign_for_real(self, *, forced: bool) -> None:
        """Enter a new term and vote for ourselves; the requests leave once that is durable."""
        self._enter_term(self.term + 1, vote=self.member)
        self.role = Role.CANDIDATE
        self.retry_soon()
        if self._begin_vote():
            self.become_leader()
            return
        for member in self._other_voters():
            last_index, last_term = self.log.last_index, self.log.last_term
            self.reply(
                Vote(self.cluster, self.member, member, self.term, last_index, last_term, forced)
            )

    def _begin_vote(self) -> bool:
        self.votes = {self.member: True}
        return verdict(self.membership.halves, self.votes) is Verdict.WON

    def _other_voters(self) -> list[int]:
        votes = self.membership.votes
        return [m for m in self.membership.everyone if m != self.member and votes(m)]

    def _enter_term(self, term: int, vote: int) -> None:
        self.term, self.vote = term, vote
        self.leader = 0
        self.leader_stamp = 0
        self.verified_index = 0
        self.recovery_target = None

    def become_follower(self, term: int, leader: int) -> None:
        """Follow `leader`, or nobody yet; in a new term everything about the old one is void."""
        if self.role is Role.LEADER:
            self._refused_reads += self.reads.give_up()
            self.progress.clear()
            self._proposed.clear()
            self._proposed_bytes = 0
            self.transfer_target = 0
        if term > self.term:
            self._enter_term(term, vote=0)
        self.role = Role.FOLLOWER
        self.leader = leader
        self.votes.clear()
        self.reset_election_deadline()

    def become_leader(self) -> None:
        """Begin to lead with a no-op, so that entries of older terms can be committed (D4)."""
        self.role = Role.LEADER
        self.leader = self.member
        self.attempts = 0
        self.votes.clear()
        self.stamp = 0
        self.heartbeat_due_ms = self.now_ms
        self.takeover_index = self.commit_index
        self.term_start_index = self.log.last_index + 1
        self.lease_void = False
        self.sync_progress()
        self._append_own(b"")

    def reset_election_deadline(self) -> None:
        """Somewhere between one and two election timeouts from now (paper, 5.2)."""
        timeout = self.options.election_timeout_ms
        self.election_deadline_ms = self.now_ms + self._rng.randrange(timeout, 2 * timeout)

    def retry_soon(self) -> None:
        """Votes that split are found out soon; who may be slow is given longer each time."""
        quarter = self.options.election_timeout_ms // 4
        patience = self._rng.randrange(quarter, 2 * quarter) << min(self.attempts, 2)
        self.election_deadline_ms = self.now_ms + patience

    def make_way(self) -> None:
        """Another member is about to stand, and can win: do not stand at the same moment."""
        after_ms = self.now_ms + self.options.election_timeout_ms // 4
        self.election_deadline_ms = max(self.election_deadline_ms, after_ms)

    def sync_progress(self) -> None:
        """A leader follows the progress of exactly the members of the current configuration."""
        if self.role is not Role.LEADER:
            return
        others = [member for member in self.membership.everyone if member != self.member]
        for member in [m for m in self.progress if m not in others]:
            del self.progress[member]
        for member in others:
            if member not in self.progress:
                self.progress[member] = Progress(self.log.last_index + 1, self.now_ms)
        if self.transfer_target not in self.membership.voters:
            self.transfer_target = 0

    # -- log ----------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries at their indexes, following the configurations among them."""
        changed = self.history.truncate_back(entries[0].index - 1)
        self.log.append(entries)
        if self._note_memberships(entries) or changed:
            self.sync_progress()

    def _note_memberships(self, entries: Sequence[Entry]) -> bool:
        before = self.history.index
        for entry in entries:
            if entry.partition == RAFT_PARTITION and entry.payload:
                self.history.add(entry.index, Membership.decode(entry.payload))
        return self.history.index != before

    def append_membership(self, membership: Membership) -> int:
        """Append a configuration, in force from now on; its index."""
        return self._append_own(membership.encode())

    def _append_own(self, payload: bytes) -> int:
        index = self.log.last_index + 1
        self.append([Entry(index, self.term, RAFT_PARTITION, index, payload)])
        return index

    def commit_to(self, index: int) -> None:
        """Everything through `index` is committed."""
        if index <= self.commit_index:
            return
        assert index <= self.log.last_index
        self.commit_index = index
        while self._proposed and self._proposed[0][0] <= index:
            self._proposed_bytes -= self._proposed.popleft()[1]

    def check_recovered(self) -> None:
        """A recovering member is whole again when it durably holds all its leader had (7, 27)."""
        target = self.recovery_target
        if self.recovering and target is not None:
            held = min(self.verified_index, self.log.stable)
            if held >= target:
                self.recovering = False
                self.recovery_nonce = 0

    # -- small things -------------------------------------------------------------------------

    def want_snapshot(self, snapshot: SnapshotRef, source: int) -> None:
        """Ask the caller to fetch it from `source`."""
        self._install = (snapshot, source)

    def send(self, message: Message) -> None:
        """Queue a message that may leave at once."""
        self._messages.append(message)

    def reply(self, message: Message) -> None:
        """Queue a message that waits until what it says is durable."""
        self._replies.append(message)

    def count(self, what: str) -> None:
        """Nothing is dropped silently."""
        self.counters[what] += 1

    def require_leader(self) -> None:
        """Refuse what only a leader can do."""
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)

    def require_room(self, entries: int, size: int) -> None:
        """Refuse proposals beyond what may wait for a quorum. An idle leader takes any one."""
        options = self.options
        waiting = self.log.last_index - self.commit_index
        if waiting and waiting + entries > options.uncommitted_entries_max:
            raise Busy("uncommitted entries", waiting, options.uncommitted_entries_max)
        if self._proposed_bytes and self._proposed_bytes + size > options.uncommitted_bytes_max:
            raise Busy("uncommitted bytes", self._proposed_bytes, options.uncommitted_bytes_max)
