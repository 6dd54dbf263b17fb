"""What a worker does with requests: from frames to entries and reads, and back to replies.

The one rule: one drain is one batch. Its writes become one run of entries and one fsync, its
linearizable reads share one round, and nothing is answered before it is true.

No socket, file or clock is touched here: messages come in, replies go out through `send`, and
the loop in `worker.py` does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from shardnode.raft import Refused, Role
from shardnode.shard.bounds import Bounds
from shardnode.shard.control import NOTHING, TOPIC_KINDS, Wish
from shardnode.shard.coordination import GROUP_READS, GROUP_WRITES
from shardnode.shard.cuts import CUTS, Cuts
from shardnode.shard.duties import NOBODY, Duties
from shardnode.shard.entries import encode_entry, split_reply
from shardnode.shard.handing import HandOvers
from shardnode.shard.legacy import Carry, Forward, Legacy
from shardnode.shard.owners import SESSIONS, check_owner
from shardnode.shard.replica import Fate, Replica, Request
from shardnode.shard.retention import AHEAD_MS_MAX, Retention, Trim, trim_request
from shardnode.shard.settings import WorkerSettings, check_endpoint
from shardnode.shard.stamps import Stamps
from shardnode.shard.stream_reads import StreamReads
from shardnode.shard.topics import Topics
from shardnode.shard.waiting import Desk, Send, Waiting, in_wire_terms
from shardnode.shard.watches import Watches
from shardnode.wire import limits
from shardnode.wire.appends import check_batches, view_append, view_append_many
from shardnode.wire.control import (
    LeaderTransfer,
    MemberAdd,
    TopicAlter,
    TopicCreate,
    TopicDescribe,
    TopicList,
)
from shardnode.wire.cuts import CutOpen
from shardnode.wire.errors import (
    InvalidRequest,
    OutcomeUnknown,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.frames import NO_CLIENT, Frame, parse_request, return_address
from shardnode.wire.frames import Request as WireRequest
from shardnode.wire.groups import GroupDescribe, GroupJoin, GroupList, OffsetFetch, OffsetsFound
from shardnode.wire.kinds import Consistency, Flag, Kind
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    PlacementTable,
    initial_table,
)
from shardnode.wire.replies import Entry, Found
from shardnode.wire.requests import Get, GetMany, Scan, Watch, decode_request
from shardnode.wire.routing import LEGACY_SHARD
from shardnode.wire.streams import Append, AppendMany, OffsetLookup, Read

if TYPE_CHECKING:
    from shardnode.shard.effects import Effects
    from shardnode.shard.lanes import Incoming
    from shardnode.shard.letters import Trims
    from shardnode.shard.streams import Streams

WRITES = SESSIONS | {Kind.PUT, Kind.PUT_MANY, Kind.DELETE_MANY, Kind.CAS, Kind.TRANSACT}
CONTROL = frozenset((Kind.MEMBER_ADD, Kind.MEMBER_REMOVE, Kind.REBALANCE))
TOPIC_READS = frozenset((Kind.TOPIC_DESCRIBE, Kind.TOPIC_LIST))
READS = GROUP_READS | {
    Kind.GET,
    Kind.GET_MANY,
    Kind.SCAN,
    Kind.READ,
    Kind.OFFSET_LOOKUP,
    Kind.CUT_OPEN,
}

_VIEWS: Mapping[int, Callable[[Frame], Append | AppendMany]] = {
    Kind.APPEND: view_append,
    Kind.APPEND_MANY: view_append_many,
}
"""Bodies that are too large to be copied."""

Suggest = Callable[[int, Sequence[Trim]], None]
"""(stamp, trims): where partitions are to begin, for the leader."""


class Service:
    """Requests of one worker, as long as its replica runs."""

    def __init__(
        self,
        settings: WorkerSettings,
        replica: Replica,
        effects: Effects,
        *,
        wall_ms: Callable[[], int],
        send: Send,
        forward: Forward,
        carry: Carry,
        status: Callable[[], bytes],
        suggest: Suggest = lambda *_: None,
    ) -> None:
        self.settings = settings
        self.replica = replica
        self.effects = effects
        self.desk = Desk(settings.shard, send)
        self.counters = self.desk.counters
        self.table: PlacementTable = initial_table(settings.shards)
        self.use_table(self.table)
        self.now_ms = 0
        self.legacy = Legacy(self.desk, forward, carry)
        self.watches = Watches(effects, self.desk)
        self.stream_reads = StreamReads(replica, effects, self.desk)
        self.hand_overs = HandOvers(replica, self.desk)
        self.retention = Retention(replica.raft)
        self.cuts = Cuts(settings, replica, effects, self.counters)
        self.wish = Wish(settings.nodes_version, settings.nodes)
        """The nodes that are wanted, as the supervisor last said."""
        self.topics = Topics()
        """The topics that are wanted, as shard 0 last said."""
        self.duties = Duties(
            replica,
            effects,
            self._stamp,
            shard=settings.shard,
            shards=settings.shards,
            wish=lambda: self.wish,
            topics=lambda: self.topics,
            table=lambda: self.table,
        )
        self._stamps = Stamps(wall_ms)
        self._wall_ms = wall_ms
        self._status = status
        self._suggest = suggest
        self._bounds = Bounds.of(settings.limits)
        self._pending: Counter[int] = Counter()
        """Partition → requests that wait for what comes of their entry."""
        self._token = NOBODY
        self._redone_index = replica.raft.commit_index
        self._proposals: list[tuple[Waiting, Request]] = []
        self._waiting: dict[int, tuple[Waiting, int]] = {}
        self._reads: dict[bool, list[Waiting]] = {False: [], True: []}
        self._rounds: dict[int, list[Waiting]] = {}

    @property
    def known_wish(self) -> Wish:
        """The nodes that are wanted, as the control plane has it. What was wanted once is no news
        while history is redone or fetched: there may have been other nodes, or others of the same
        number. And in a restored cluster nobody has said it yet."""
        raft, wish = self.replica.raft, self.effects.control.wish
        if raft.recovering:
            ahead = raft.recovery_target or raft.log.last_index
            self._redone_index = max(self._redone_index, ahead)
        redone = not raft.recovering and self.effects.applied_index >= self._redone_index
        return wish if redone and wish.members else NOTHING

    def use_table(self, table: PlacementTable) -> None:
        """From now on these slots are ours."""
        self.table = table
        self.desk.epoch = table.epoch

    # -- in -----------------------------------------------------------------------------------

    def take(self, messages: Sequence[Incoming], now_ms: int) -> None:
        """One drain: sort it into writes, reads and the rest, and hand it to consensus."""
        self.now_ms = now_ms
        for message in messages:
            try:
                self._take_one(message)
            except ShardnodeError as error:
                self.desk.refuse(message, return_address(message.frames), error)
            except Refused as refused:
                self.desk.refuse(message, return_address(message.frames), in_wire_terms(refused))
        if self._proposals:
            self._propose()
        for lease, readers in self._reads.items():
            if readers:
                self._reads[lease] = []
                self._ask(readers, lease)
        if self.replica.raft.role is Role.LEADER:
            self.duties.due(now_ms, is_control=self.settings.shard == 0)
        if self.effects.streams is not None:
            self._look_at_retention(self.effects.streams, now_ms)

    def _take_one(self, message: Incoming) -> None:
        request = parse_request(message.frames)
        header = request.header
        kind = header.kind
        view = _VIEWS.get(kind)
        body = view(request.body) if view else decode_request(kind, request.body)
        deadline_ms = self.now_ms + (header.deadline_ms or limits.deadline_ms_default)
        waiting = Waiting(message, request.return_address(), body, deadline_ms)
        owner = check_owner(request, body, self.settings.shard, self.table)
        if owner != self.settings.shard or self._is_for_our_leader(request, message):
            self.legacy.pass_on(waiting, request, owner, self.now_ms)
            return
        self._bounds.check(body, len(self.effects.sessions))
        if kind in WRITES:
            self._take_write(waiting, request, KEY_VALUE_PARTITION)
        elif isinstance(body, Append | AppendMany):
            self._take_append(waiting, request, body)
        elif kind in GROUP_WRITES:
            self._take_group(waiting, request)
        elif kind in READS or (kind in TOPIC_READS and self.settings.shard == LEGACY_SHARD):
            self._take_read(waiting)
        elif isinstance(body, Watch):
            self.replica.raft.require_leader()
            self.watches.take(waiting, body, self.now_ms)
        elif kind in CONTROL and self.settings.shard == LEGACY_SHARD:
            self._take_control(waiting, request)
        elif kind in TOPIC_KINDS and self.settings.shard == LEGACY_SHARD:
            self._take_topic(waiting, request)
        elif isinstance(body, LeaderTransfer):
            self.hand_overs.take(waiting, body.node)
        elif kind in CUTS:
            self.desk.answer(waiting, self.cuts.answer(body, self.now_ms).encode())
        elif kind == Kind.STATUS:
            self.desk.answer(waiting, self._status())
        else:
            raise InvalidRequest(
                f"a shard does not answer {Kind(kind).name}; send it to the router with the "
                "prefix 0xffffffff"
            )

    def _is_for_our_leader(self, request: WireRequest, message: Incoming) -> bool:
        """Whether it comes from a client that cannot follow the lead by itself. What was carried
        here is not carried on: the lead may be moving, and who sent it looks again."""
        legacy = request.prefix is None or request.header.flags & Flag.FORWARDED
        if not legacy or message.lane is None:
            return False
        raft = self.replica.raft
        return raft.role is not Role.LEADER and raft.leader != raft.member

    # -- writes -------------------------------------------------------------------------------

    def _take_append(
        self, waiting: Waiting, request: WireRequest, ask: Append | AppendMany
    ) -> None:
        """What is no batch, or one of another count, is never logged."""
        self.replica.raft.require_leader()
        self._streams().of(ask.namespace)
        check_batches(ask)
        self._take_write(waiting, request, ask.namespace)

    def _take_group(self, waiting: Waiting, request: WireRequest) -> None:
        """Who joins reads topics, and the state of a group knows no more of them than a leader has
        said in the log."""
        self._streams()
        if isinstance(waiting.body, GroupJoin):
            self.replica.raft.require_leader()
            unknown = self.duties.tell_topics(waiting.body.topics)
            if unknown:
                raise Unavailable(
                    f"shard {self.settings.shard} has not heard of topic {unknown[0]}; if it was"
                    " just created, try again, else create it first"
                )
        self._take_write(waiting, request, GROUP_PARTITION)

    def _streams(self) -> Streams:
        if self.effects.streams is None:
            raise InvalidRequest("this shard keeps no streams: its engine has no directory")
        return self.effects.streams

    def _take_write(self, waiting: Waiting, request: WireRequest, partition: int) -> None:
        header = request.header
        if header.client_id == NO_CLIENT and (
            header.kind in SESSIONS or getattr(waiting.body, "leased", False)
        ):
            raise InvalidRequest("expected a session, found client id 0; open a session first")
        self._propose_later(waiting, request, partition, in_session=True)

    def _take_control(self, waiting: Waiting, request: WireRequest) -> None:
        """A change of the cluster. Again is harmless, so it needs no session."""
        if isinstance(waiting.body, MemberAdd):
            check_endpoint(waiting.body.endpoint)
        self._propose_later(waiting, request, CONTROL_PARTITION, in_session=False)

    def _take_topic(self, waiting: Waiting, request: WireRequest) -> None:
        """A change of a topic. A second creation would be a conflict, so sessions matter."""
        ask = waiting.body
        if isinstance(ask, TopicCreate | TopicAlter):
            wanted = self.effects.control.topics.partitions_with(ask, self.table)
            self._bounds.check_created(wanted)
        self._propose_later(waiting, request, CONTROL_PARTITION, in_session=True)

    def _propose_later(
        self, waiting: Waiting, request: WireRequest, partition: int, *, in_session: bool
    ) -> None:
        self._bounds.check_room(self._pending, partition)
        header = request.header
        self._pending[partition] += 1
        self._token += 1
        payload = encode_entry(
            self._stamp(),
            header.kind,
            request.body,
            flags=header.flags,
            client_id=header.client_id if in_session else NO_CLIENT,
            sequence=header.sequence if in_session else 0,
            acked_below=header.acked_below if in_session else 0,
        )
        self._proposals.append((waiting, Request(self._token, partition, payload)))

    def _stamp(self) -> int:
        return self._stamps.stamp(self.replica.raft.term, self.now_ms, self.effects.stamp)

    def _propose(self) -> None:
        proposals, self._proposals = self._proposals, []
        try:
            self.replica.propose([request for _, request in proposals])
        except Refused as refused:
            error = in_wire_terms(refused)
            for waiting, request in proposals:
                self._pending[request.partition] -= 1
                self.desk.refuse(waiting.message, waiting.to, error)
            return
        self.counters["writes"] += len(proposals)
        for waiting, request in proposals:
            self._waiting[request.token] = waiting, request.partition

    # -- retention ----------------------------------------------------------------------------

    def _look_at_retention(self, streams: Streams, now_ms: int) -> None:
        """Decide for the partitions of which this replica is the master."""
        leads = self.replica.raft.role is Role.LEADER
        stamp_ms = self._stamp() if leads else max(self.effects.stamp, self._wall_ms())
        trims = self.retention.due(streams, stamp_ms, now_ms)
        if trims and leads:
            self.trim(trims)
        elif trims:
            self._suggest(stamp_ms, trims)

    def take_trims(self, letter: Trims) -> None:
        """A master that follows us has decided."""
        if self.replica.raft.role is not Role.LEADER:
            return
        if letter.stamp_ms > self._stamp() + AHEAD_MS_MAX:
            self.counters["trims_ahead"] += 1
        else:
            self.trim([Trim(*each) for each in letter.trims])

    def trim(self, trims: Sequence[Trim]) -> None:
        """Let partitions begin later; a refusal is tried again the next time."""
        stamp_ms = self._stamp()
        with suppress(Refused):
            self.replica.propose([trim_request(NOBODY, stamp_ms, each) for each in trims])

    # -- reads --------------------------------------------------------------------------------

    def _take_read(self, waiting: Waiting) -> None:
        level = getattr(waiting.body, "consistency", Consistency.LINEARIZABLE)
        self.counters["reads"] += 1
        if level == Consistency.STALE:
            self._read(waiting)
        else:
            self._reads[level == Consistency.LEASE].append(waiting)

    def _ask(self, readers: list[Waiting], lease: bool) -> None:
        self._token += 1
        try:
            self.replica.read(self._token, lease=lease)
        except Refused as refused:
            self._refuse_all(readers, in_wire_terms(refused))
        else:
            self._rounds[self._token] = readers

    def _read(self, waiting: Waiting) -> None:
        body, effects = waiting.body, self.effects
        try:
            if isinstance(body, GetMany):
                packed = Found(effects.get_many(body.keys)).encode()
            elif isinstance(body, Read):
                self.stream_reads.read(self._streams(), waiting, body, self.now_ms)
                return
            elif isinstance(body, TopicDescribe):
                packed = effects.control.topics.describe(body.name).encode()
            elif isinstance(body, TopicList):
                packed = effects.control.topics.list(body).encode()
            elif isinstance(body, OffsetFetch):
                found = effects.coordination.offsets.fetch(body.group, body.namespaces)
                packed = OffsetsFound(found).encode()
            elif isinstance(body, GroupDescribe):
                packed = effects.coordination.groups.describe(body.group).encode()
            elif isinstance(body, GroupList):
                packed = effects.coordination.groups.page(body.after, body.limit).encode()
            elif isinstance(body, OffsetLookup):
                packed = self.stream_reads.find(self._streams(), body).encode()
            elif isinstance(body, CutOpen):
                packed = self.cuts.open(body, self.now_ms, self._stamp()).encode()
            elif isinstance(body, Get):
                packed = Entry(*(effects.get(body.key) or (None, 0, 0))).encode()
            else:
                assert isinstance(body, Scan)
                packed = effects.scan(body).encode()
            self.desk.answer(waiting, packed, index=effects.applied_index)
        except ShardnodeError as error:
            self.desk.refuse(waiting.message, waiting.to, error)

    # -- out ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """After the pump: answer everything that has come to an end."""
        replica, desk = self.replica, self.desk
        for token, fate, index, reply in replica.outcomes:
            if token not in self._waiting:
                continue
            waiting, partition = self._waiting.pop(token)
            self._pending[partition] -= 1
            if fate is Fate.APPLIED:
                code, body = split_reply(reply)
                desk.answer(waiting, body, code=code, index=index)
            else:
                desk.refuse(waiting.message, waiting.to, _explain(fate))
        replica.outcomes.clear()
        for grant in replica.reads:
            for waiting in self._rounds.pop(grant.context, ()):
                self._read(waiting)
        replica.reads.clear()
        for context in replica.refused_reads:
            error = Unavailable("leadership was lost before the read could be served; ask again")
            self._refuse_all(self._rounds.pop(context, ()), error)
        replica.refused_reads.clear()
        if len(self.watches):
            self.watches.wake(self.now_ms)
        self.stream_reads.wake(self.now_ms)
        self.hand_overs.look()
        self.cuts.tend(self.now_ms)
        self.legacy.retry(self.now_ms)

    def _refuse_all(self, readers: Sequence[Waiting], error: ShardnodeError) -> None:
        for waiting in readers:
            self.desk.refuse(waiting.message, waiting.to, error)


def _explain(fate: Fate) -> ShardnodeError:
    if fate is Fate.LOST:
        return Unavailable(
            "the disk was full, or another leader's entry took its place; it had no effect, ask"
            " again"
        )
    return OutcomeUnknown("leadership changed while it was under way: it may have an effect or not")
