"""Calls that change topics, and those that look at all partitions of one.

One rule: a topic that was created can be used. Shard 0 only keeps what is wanted, and the shards
follow; so whoever creates or alters a topic is answered when every partition of it answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.client.calls import Call, OneRequest, T
from shardnode.client.exchange import Exchange
from shardnode.client.topic_calls import TopicCall
from shardnode.client.values import Bounds
from shardnode.wire.control import (
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDeleted,
    TopicFound,
    TopicList,
    TopicsFound,
)
from shardnode.wire.errors import Conflict, NotFound, ShardnodeError, Unavailable, WrongShard
from shardnode.wire.kinds import Kind, OffsetPoint
from shardnode.wire.placement import namespace_from_bytes, pack_namespace, split_namespace
from shardnode.wire.routing import LEGACY_SHARD
from shardnode.wire.streams import OffsetFound, OffsetLookup

if TYPE_CHECKING:
    from shardnode.client.core import Core


class EveryPartition(TopicCall[T]):
    """Looks at all partitions of a topic, until every one of them has answered."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.bounds: dict[int, Bounds] = {}
        self._numbers: tuple[int, int] | None = None
        self._error: ShardnodeError | None = None
        self._stale_epoch = 0

    def finish(self, core: Core, topic: TopicFound) -> None:
        """All bounds are here."""
        raise NotImplementedError

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        numbers = (topic.stream, topic.topic)
        if numbers != self._numbers:
            self._numbers, self.bounds = numbers, {}
        todo = [number for number in range(topic.partitions) if number not in self.bounds]
        for number in todo:
            space = pack_namespace(*numbers, number)
            body = OffsetLookup(space, OffsetPoint.EARLIEST)
            self.ask(core, Kind.OFFSET_LOOKUP, body, space, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        if exchange.kind is not Kind.OFFSET_LOOKUP:
            super().settled(core, exchange, now)
            return
        self.exchanges.remove(exchange)
        error = exchange.error
        if isinstance(error, WrongShard):
            self._stale_epoch = max(self._stale_epoch, error.epoch or 0, 1)
        elif isinstance(error, NotFound):
            self._missing = error
        elif error is not None:
            self._error = error
        else:
            assert isinstance(exchange.answer, OffsetFound)
            _, _, number = split_namespace(namespace_from_bytes(exchange.routing_key))
            self.bounds[number] = Bounds(exchange.answer.first, exchange.answer.end)
        if not self.exchanges:
            self._round_over(core, now)

    def _round_over(self, core: Core, now: float) -> None:
        error, self._error = self._error, None
        epoch, self._stale_epoch = self._stale_epoch, 0
        assert self._used is not None, "there were partitions to ask"
        if error is not None:
            self.refused(core, error, now)
        elif epoch:
            core.await_table(self, epoch, now)
        elif len(self.bounds) < self._used.partitions:
            self.describe(core, now)
        else:
            self.finish(core, self._used)


class BoundsCall(EveryPartition[list[Bounds]]):
    """The bounds of all partitions, by number."""

    def finish(self, core: Core, topic: TopicFound) -> None:
        self.succeed(core, [self.bounds[number] for number in range(topic.partitions)])


class WishCall(EveryPartition[TopicFound]):
    """Create or alter a topic, and see that its partitions are there."""

    def __init__(self, kind: Kind, body: TopicCreate | TopicAlter, *, exist_ok: bool) -> None:
        super().__init__(body.name)
        self._kind = kind
        self._body = body.encode()
        self._exist_ok = exist_ok
        self._is_done = False
        self._existed = False

    def go_on(self, core: Core, now: float) -> None:
        if self._is_done:
            super().go_on(core, now)
        else:
            self.submit(core, self._kind, self._body, LEGACY_SHARD, b"", now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        if exchange.kind is not self._kind or isinstance(exchange.error, WrongShard):
            super().settled(core, exchange, now)
            return
        self.exchanges.remove(exchange)
        self._is_done = True
        if self._exist_ok and isinstance(exchange.error, Conflict):
            self._existed = True
            self.describe(core, now)
        elif exchange.error is not None:
            self.fail(core, exchange.error)
        else:
            assert isinstance(exchange.answer, TopicFound)
            core.routes.learn_topic(exchange.answer, now)
            self._use(core, exchange.answer, now)

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        if self._existed:
            self.succeed(core, topic)
        else:
            super().use(core, topic, now)

    def finish(self, core: Core, topic: TopicFound) -> None:
        self.succeed(core, topic)

    def refused(self, core: Core, error: ShardnodeError, now: float) -> None:  # noqa: ARG002
        self.fail(core, self._not_ready(error))

    def out_of_time(self) -> ShardnodeError:
        return self._not_ready(super().out_of_time())

    def _not_ready(self, error: ShardnodeError) -> ShardnodeError:
        return Unavailable(
            f"{self.name} is as it was wanted, but not all of its partitions answer yet"
            f" ({error.message}); it can be used as they do"
        )


class DeleteCall(OneRequest[None]):
    """Delete a topic."""

    def __init__(self, name: str) -> None:
        body = TopicDelete(name).encode()
        super().__init__(Kind.TOPIC_DELETE, body, _nothing, shard=LEGACY_SHARD)
        self._name = name

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        core.routes.forget_topic(self._name)
        super().settled(core, exchange, now)


class ListCall(Call[list[str]]):
    """The names of all topics, page by page."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._after: str | None = None

    def begin(self, core: Core, now: float) -> None:
        body = TopicList(self._after).encode()
        exchange = Exchange(Kind.TOPIC_LIST, body, shard=LEGACY_SHARD, call=self)
        self.exchanges = [exchange]
        core.submit(exchange, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        self.exchanges = []
        page = exchange.answer
        if isinstance(exchange.error, WrongShard):
            core.await_table(self, exchange.error.epoch or 0, now)
        elif exchange.error is not None:
            self.fail(core, exchange.error)
        else:
            assert isinstance(page, TopicsFound)
            self._names += page.names
            self._after = page.next
            if page.next is None:
                self.succeed(core, self._names)
            else:
                self.begin(core, now)


def _nothing(_: TopicDeleted) -> None:
    """Nothing is told of it."""
