"""Calls about consumer groups, from outside: which there are, how far they are, and moving one.

One rule: nobody is disturbed who does not have to be. Looking changes nothing; a move takes from
its holder the one partition that moves, for the moment until it is claimed anew.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from shardnode.client.calls import Call
from shardnode.client.exchange import Exchange
from shardnode.client.offsets import Start
from shardnode.client.partition_calls import PartitionCall
from shardnode.client.topic_calls import TopicCall
from shardnode.client.values import GroupInfo, GroupPartition
from shardnode.wire.control import TopicFound, TopicList, TopicsFound
from shardnode.wire.errors import Conflict, Corrupt, NotFound, ShardnodeError, WrongShard
from shardnode.wire.groups import (
    GroupAssigned,
    GroupDescribe,
    GroupFound,
    GroupJoin,
    GroupLeave,
    GroupList,
    GroupRelease,
    GroupsFound,
    OffsetCommit,
    OffsetFetch,
    OffsetsFound,
)
from shardnode.wire.kinds import Kind, OffsetPoint
from shardnode.wire.placement import namespace_from_bytes, pack_namespace, split_namespace
from shardnode.wire.routing import LEGACY_SHARD
from shardnode.wire.streams import OffsetFound, OffsetLookup

if TYPE_CHECKING:
    from shardnode.client.core import Core

SEEK_TTL_MS = 10_000
"""How long the member that moves an offset may take between its steps."""


class ListGroupsCall(Call[list[str]]):
    """The names of all groups: every shard coordinates some of them."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._after: dict[int, str | None] = {}
        self._error: ShardnodeError | None = None
        self._stale_epoch = 0

    def begin(self, core: Core, now: float) -> None:
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        self._names, self._after = [], {}  # groups move with the slots of their names
        for shard in range(table.shards):
            self._ask(core, shard, now)

    def _ask(self, core: Core, shard: int, now: float) -> None:
        body = GroupList(self._after.get(shard)).encode()
        exchange = Exchange(Kind.GROUP_LIST, body, shard=shard, call=self)
        self.exchanges.append(exchange)
        core.submit(exchange, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        self.exchanges.remove(exchange)
        error, page = exchange.error, exchange.answer
        if isinstance(error, WrongShard):
            self._stale_epoch = max(self._stale_epoch, error.epoch or 0, 1)
        elif error is not None:
            self._error = error
        else:
            assert isinstance(page, GroupsFound)
            assert exchange.shard is not None
            self._names += page.names
            if page.next is not None:
                self._after[exchange.shard] = page.next
                self._ask(core, exchange.shard, now)
        if self.exchanges:
            return
        epoch, self._stale_epoch = self._stale_epoch, 0
        if self._error is not None:
            self.fail(core, self._error)
        elif epoch:
            core.await_table(self, epoch, now)
        else:
            self.succeed(core, sorted(self._names))


class GroupCall(PartitionCall[GroupInfo]):
    """Who reads what in a group, and how far behind: the group, the names of its topics, and then
    every partition."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group
        self._body = GroupDescribe(group).encode()
        self._found: GroupFound | None = None
        self._names: dict[tuple[int, int], str] = {}
        self._after: str | None = None
        self._has_names = False
        self._committed: dict[int, int | None] = {}
        self._ends: dict[int, int | None] = {}
        self._error: ShardnodeError | None = None
        self._stale_epoch = 0

    def go_on(self, core: Core, now: float) -> None:
        if self._found is None:
            ask_coordinator(self, core, Kind.GROUP_DESCRIBE, self._body, self._group, now)
        elif not self._has_names:
            body = TopicList(self._after).encode()
            self.submit(core, Kind.TOPIC_LIST, body, LEGACY_SHARD, b"", now)
        else:
            for namespace in self._found.namespaces:
                if namespace not in self._committed:
                    fetch = OffsetFetch(self._group, [namespace])
                    self.ask(core, Kind.OFFSET_FETCH, fetch, namespace, now)
                if namespace not in self._ends:
                    lookup = OffsetLookup(namespace, OffsetPoint.LATEST)
                    self.ask(core, Kind.OFFSET_LOOKUP, lookup, namespace, now)
            self._end_if_over(core, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        error = exchange.error
        if exchange.kind not in (Kind.OFFSET_FETCH, Kind.OFFSET_LOOKUP):
            super().settled(core, exchange, now)
            return
        self.exchanges.remove(exchange)
        namespace, answer = namespace_from_bytes(exchange.routing_key), exchange.answer
        if isinstance(error, WrongShard):
            self._stale_epoch = max(self._stale_epoch, error.epoch or 0, 1)
        elif isinstance(error, NotFound | Corrupt):  # it is just gone or coming, or is fenced
            self._ends[namespace] = None
            self._committed.setdefault(namespace, None)
        elif error is not None:
            self._error = error
        elif isinstance(answer, OffsetFound):
            self._ends.setdefault(namespace, answer.end)
        else:
            assert isinstance(answer, OffsetsFound)
            [self._committed[namespace]] = answer.offsets
        self._end_if_over(core, now)

    def absent(self, core: Core, error: NotFound, now: float) -> None:  # noqa: ARG002
        self.fail(core, error)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        answer = exchange.answer
        if isinstance(answer, GroupFound):
            self._found = answer
        else:
            assert isinstance(answer, TopicsFound)
            numbers = zip(answer.streams, answer.topics, strict=True)
            self._names |= zip(numbers, answer.names, strict=True)
            self._after, self._has_names = answer.next, answer.next is None
        self.begin(core, now)

    def _end_if_over(self, core: Core, now: float) -> None:
        if self.exchanges:
            return
        epoch, self._stale_epoch = self._stale_epoch, 0
        if self._error is not None:
            self.fail(core, self._error)
        elif epoch:
            core.await_table(self, epoch, now)
        else:
            self.succeed(core, self._info())

    def _info(self) -> GroupInfo:
        found = self._found
        assert found is not None
        partitions = []
        for namespace, holder in zip(found.namespaces, found.holders, strict=True):
            stream, topic, number = split_namespace(namespace)
            name = self._names.get((stream, topic), f"{stream}/{topic}")
            member = None if holder is None else found.members[holder]
            offsets = self._committed.get(namespace), self._ends.get(namespace)
            partitions.append(GroupPartition(name, number, member, *offsets))
        return GroupInfo(self._group, found.generation, tuple(found.members), tuple(partitions))


class Step(Enum):
    """Of a move."""

    LOOK = "look"
    JOIN = "join"
    COMMIT = "commit"
    RELEASE = "release"
    LEAVE = "leave"


class SeekGroupCall(TopicCall[int]):
    """Move a group in one partition; the offset it has then.

    A member without topics is given a generation, which is higher than that of any claim; it
    commits with it and lets go of the partition, so that its holder claims it anew. If somebody
    claims with a still higher one in between, it begins again.
    """

    def __init__(self, group: str, member: str, topic: str, partition: int, start: Start) -> None:
        super().__init__(topic)
        self._group = group
        self._member = member
        self._partition = partition
        self._start = start
        self._offset = start.value
        self._step = Step.JOIN if start.point is None else Step.LOOK
        self._generation = 0
        self._error: ShardnodeError | None = None
        self._join = GroupJoin(group, member, (), SEEK_TTL_MS).encode()

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        if not self.knows(core, topic, self._partition, now):
            return
        space, group = pack_namespace(topic.stream, topic.topic, self._partition), self._group
        if self._step is Step.LOOK:
            assert self._start.point is not None
            lookup = OffsetLookup(space, self._start.point, self._start.value)
            self.ask(core, Kind.OFFSET_LOOKUP, lookup, space, now)
        elif self._step is Step.JOIN:
            ask_coordinator(self, core, Kind.GROUP_JOIN, self._join, group, now)
        elif self._step is Step.COMMIT:
            commit = OffsetCommit(group, self._generation, [space], [self._offset], True)
            self.ask(core, Kind.OFFSET_COMMIT, commit, space, now)
        elif self._step is Step.RELEASE:
            body = GroupRelease(group, [space]).encode()
            ask_coordinator(self, core, Kind.GROUP_RELEASE, body, group, now)
        else:
            body = GroupLeave(group, self._member).encode()
            ask_coordinator(self, core, Kind.GROUP_LEAVE, body, group, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        answer = exchange.answer
        if isinstance(answer, OffsetFound):
            self._offset, self._step = answer.offset, Step.JOIN
        elif isinstance(answer, GroupAssigned):
            self._generation, self._step = answer.generation, Step.COMMIT
        elif self._step is Step.LEAVE:
            self._finish(core)
            return
        else:
            self._step = Step.RELEASE if self._step is Step.COMMIT else Step.LEAVE
        self.begin(core, now)

    def refused(self, core: Core, error: ShardnodeError, now: float) -> None:
        if self._step is Step.LEAVE:
            self._finish(core)  # it is gone when its time is over
        elif isinstance(error, Conflict) and self._step is Step.COMMIT:
            self._step = Step.JOIN
            self.pause(core, now)
        elif self._step in (Step.COMMIT, Step.RELEASE):
            self._error, self._step = error, Step.LEAVE
            self.begin(core, now)
        else:
            self.fail(core, error)

    def out_of_time(self) -> ShardnodeError:
        text = f"the members of group {self._group} change all the time; try again"
        return self._missing or Conflict(text)

    def _finish(self, core: Core) -> None:
        if self._error is not None:
            self.fail(core, self._error)
        else:
            self.succeed(core, self._offset)


def ask_coordinator(
    call: PartitionCall[Any], core: Core, kind: Kind, body: bytes, group: str, now: float
) -> None:
    """Send a request to the shard that owns the name of a group."""
    table = core.routes.table
    assert table is not None, "a call begins when there is a table"
    key = group.encode()
    call.submit(core, kind, body, table.shard_of_key(key), key, now)
