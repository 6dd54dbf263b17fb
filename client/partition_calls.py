"""Calls about partitions of streams, by their namespaces.

One rule: a shard that does not know a partition has done nothing, so the request is repeated after
a while, until it works or time is up. New partitions reach their shards a moment after they were
wished for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardnode.client.calls import Call, T
from shardnode.client.exchange import Exchange
from shardnode.client.offsets import Start
from shardnode.wire.codec import Body
from shardnode.wire.errors import NotFound, ShardnodeError, WrongShard
from shardnode.wire.groups import (
    OffsetClaim,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFound,
)
from shardnode.wire.kinds import Kind, OffsetPoint
from shardnode.wire.placement import namespace_to_bytes, slot_of_partition
from shardnode.wire.streams import MessagesFound, OffsetFound, OffsetLookup, Read

if TYPE_CHECKING:
    from shardnode.client.core import Core

GRACE_S = 2.0
"""An answer that is later than this after its time is asked for again."""


class PartitionCall(Call[T]):
    """What all calls about partitions share."""

    def __init__(self) -> None:
        super().__init__()
        self._missing: NotFound | None = None
        """What a shard said of a partition that it does not know."""
        self._pauses = 0
        self._is_paused = False

    def go_on(self, core: Core, now: float) -> None:
        """Send what comes next."""
        raise NotImplementedError

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        """An answer came."""
        raise NotImplementedError

    def refused(self, core: Core, error: ShardnodeError, now: float) -> None:  # noqa: ARG002
        """… or an error that is not about the table or an unknown partition."""
        self.fail(core, error)

    def absent(self, core: Core, error: NotFound, now: float) -> None:
        """… or a shard does not know the partition."""
        self._missing = error
        self.pause(core, now)

    def begin(self, core: Core, now: float) -> None:
        try:
            self.go_on(core, now)
        except ShardnodeError as error:  # what cannot be encoded
            self.fail(core, error)

    def pause(self, core: Core, now: float) -> None:
        """Begin again after a while."""
        self._is_paused = True
        core.pause(self, now, self._pauses)
        self._pauses += 1

    def due(self, core: Core, now: float) -> None:
        if not self._is_paused:
            super().due(core, now)
        elif now < self.deadline:
            self._is_paused = False
            self.begin(core, now)
        else:
            self.fail(core, self.out_of_time())

    def out_of_time(self) -> ShardnodeError:
        """The error of a call that waited for a partition to be there."""
        assert self._missing is not None, "that is what it pauses for"
        return self._missing

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        self.exchanges.remove(exchange)
        error = exchange.error
        if isinstance(error, WrongShard):
            core.await_table(self, error.epoch or 0, now)
        elif isinstance(error, NotFound):
            self.absent(core, error, now)
        elif error is not None:
            self.refused(core, error, now)
        else:
            self.answered(core, exchange, now)

    def ask(
        self,
        core: Core,
        kind: Kind,
        body: Body,
        namespace: int,
        now: float,
        attempt_s: float = 0.0,
    ) -> Exchange:
        """Send a request to the shard of a partition."""
        return self.send(core, kind, body.encode(), namespace, now, attempt_s)

    def send(
        self,
        core: Core,
        kind: Kind,
        body: bytes,
        namespace: int,
        now: float,
        attempt_s: float = 0.0,
    ) -> Exchange:
        """The same with a body that is encoded."""
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        shard = table.shard_of_slot(slot_of_partition(namespace))
        key = namespace_to_bytes(namespace)
        return self.submit(core, kind, body, shard, key, now, attempt_s)

    def submit(
        self,
        core: Core,
        kind: Kind,
        body: bytes,
        shard: int,
        key: bytes,
        now: float,
        attempt_s: float = 0.0,
    ) -> Exchange:
        """Send a request to a shard."""
        exchange = Exchange(
            kind, body, shard=shard, routing_key=key, call=self, attempt_s=attempt_s
        )
        self.exchanges.append(exchange)
        core.submit(exchange, now)
        return exchange


class Taken(NamedTuple):
    """By which right a consumer of a group has a partition."""

    group: str
    generation: int


class HoldCall(PartitionCall[int]):
    """Begin to read a partition: claim it for a group, and find where to go on.

    A group that never committed there begins at `start`. If that depends on the moment, it is
    committed at once: else whoever takes over before the first commit would begin later, and leave
    out what came in between.
    """

    def __init__(self, namespace: int, start: Start, taken: Taken | None) -> None:
        super().__init__()
        self.namespace = namespace
        self._start = start
        self._taken = taken
        self._is_claimed = taken is None
        self._offset: int | None = None

    def go_on(self, core: Core, now: float) -> None:
        space, start, taken = self.namespace, self._start, self._taken
        if not self._is_claimed:
            assert taken is not None
            claim = OffsetClaim(taken.group, taken.generation, [space])
            self.ask(core, Kind.OFFSET_CLAIM, claim, space, now)
        elif start.point is None:
            self.succeed(core, start.value)
        elif self._offset is None:
            assert start.point is not None
            lookup = OffsetLookup(space, start.point, start.value)
            self.ask(core, Kind.OFFSET_LOOKUP, lookup, space, now)
        else:
            assert taken is not None
            pin = OffsetCommit(taken.group, taken.generation, [space], [self._offset])
            self.ask(core, Kind.OFFSET_COMMIT, pin, space, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        answer = exchange.answer
        if isinstance(answer, OffsetsFound):
            self._is_claimed = True
            [self._offset] = answer.offsets
            if self._offset is not None:
                self.succeed(core, self._offset)
            else:
                self.begin(core, now)
        elif isinstance(answer, OffsetFound):
            self._offset = answer.offset
            if self._taken is None or self._start.point is OffsetPoint.EARLIEST:
                self.succeed(core, self._offset)
            else:
                self.begin(core, now)
        else:
            assert isinstance(answer, OffsetsCommitted)
            assert self._offset is not None
            self.succeed(core, self._offset)


class FetchCall(PartitionCall[MessagesFound]):
    """A page of a partition."""

    def __init__(self, namespace: int, offset: int, *, page_bytes: int, wait_s: float) -> None:
        super().__init__()
        self.namespace = namespace
        self.wait_s = wait_s
        self._body = Read(namespace, offset, 0, page_bytes, round(wait_s * 1000))
        self._attempt_s = wait_s + GRACE_S if wait_s else 0.0

    def go_on(self, core: Core, now: float) -> None:
        self.ask(core, Kind.READ, self._body, self.namespace, now, self._attempt_s)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, MessagesFound)
        self.succeed(core, exchange.answer)

    def absent(self, core: Core, error: NotFound, now: float) -> None:  # noqa: ARG002
        self.fail(core, error)  # it was there before: its topic has been deleted


class CommitCall(PartitionCall[None]):
    """Say how far a group is in one partition."""

    def __init__(self, namespace: int, taken: Taken, offset: int, *, back: bool) -> None:
        super().__init__()
        self.namespace = namespace
        self.taken = taken
        self.offset = offset
        self.back = back
        self._body = OffsetCommit(taken.group, taken.generation, [namespace], [offset], back)

    def go_on(self, core: Core, now: float) -> None:
        self.ask(core, Kind.OFFSET_COMMIT, self._body, self.namespace, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, OffsetsCommitted)
        self.succeed(core, None)

    def absent(self, core: Core, error: NotFound, now: float) -> None:  # noqa: ARG002
        self.fail(core, error)  # as above


class CommittedCall(PartitionCall[int | None]):
    """How far a group is in one partition."""

    def __init__(self, namespace: int, group: str) -> None:
        super().__init__()
        self.namespace = namespace
        self._body = OffsetFetch(group, [namespace])

    def go_on(self, core: Core, now: float) -> None:
        self.ask(core, Kind.OFFSET_FETCH, self._body, self.namespace, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, OffsetsFound)
        [offset] = exchange.answer.offsets
        self.succeed(core, offset)
