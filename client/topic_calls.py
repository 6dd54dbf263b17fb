"""Calls about a topic: from its name to its numbers, to its partitions.

One rule: what a client knows of a topic is a belief, and its shards check it. A partition that a
shard does not know has been deleted, or is not there yet: then the topic is described anew, and the
request repeated until it works or time is up. That is safe, because nothing of it had an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardnode.client.calls import T
from shardnode.client.exchange import Exchange
from shardnode.client.messages import Outgoing, Position
from shardnode.client.offsets import Start
from shardnode.client.partition_calls import GRACE_S, PartitionCall
from shardnode.wire.appends import pack_append_many
from shardnode.wire.control import TopicDescribe, TopicFound
from shardnode.wire.errors import Compacted, NotFound, ShardnodeError, WrongShard
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import pack_namespace, partition_of_key
from shardnode.wire.routing import LEGACY_SHARD
from shardnode.wire.streams import (
    Append,
    Appended,
    MessagesFound,
    OffsetFound,
    OffsetLookup,
    Read,
)

if TYPE_CHECKING:
    from shardnode.client.core import Core

DESCRIBE_S = 5.0
"""How long a description that nobody waits for may take."""


class TopicCall(PartitionCall[T]):
    """A call that begins with the numbers of a topic."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._used: TopicFound | None = None
        """What the last requests were built by."""
        self._is_checked = False
        """Whether the topic was described anew for a partition that it did not have."""

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        """Send what comes next, by the numbers of the topic."""
        raise NotImplementedError

    def go_on(self, core: Core, now: float) -> None:
        known = core.routes.topics.get(self.name)
        if known is None:
            self.describe(core, now)
        else:
            self._use(core, known.found, now)

    def absent(self, core: Core, error: NotFound, now: float) -> None:
        self._missing = error
        self.describe(core, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        described = exchange.kind is Kind.TOPIC_DESCRIBE
        if not described or isinstance(exchange.error, WrongShard):
            super().settled(core, exchange, now)
            return
        self.exchanges.remove(exchange)
        if exchange.error is not None:
            if isinstance(exchange.error, NotFound):
                core.routes.forget_topic(self.name)
            self.fail(core, exchange.error)
            return
        found, used = exchange.answer, self._used
        assert isinstance(found, TopicFound)
        core.routes.learn_topic(found, now)
        if used is None or (found.stream, found.topic) != (used.stream, used.topic):
            self._use(core, found, now)
        else:
            self.pause(core, now)

    def describe(self, core: Core, now: float) -> None:
        """Ask shard 0 what the topic is."""
        body = TopicDescribe(self.name).encode()
        self.submit(core, Kind.TOPIC_DESCRIBE, body, LEGACY_SHARD, b"", now)

    def _use(self, core: Core, topic: TopicFound, now: float) -> None:
        self._used = topic
        try:
            self.use(core, topic, now)
        except ShardnodeError as error:  # what cannot be encoded
            self.fail(core, error)

    def knows(self, core: Core, topic: TopicFound, partition: int, now: float) -> bool:
        """Whether the topic has that partition. If not, it is described anew once, and then this
        call fails."""
        if partition < topic.partitions:
            return True
        if self._is_checked:
            error = f"expected a partition of {self.name} below {topic.partitions}"
            self.fail(core, NotFound(f"{error}, found {partition}; a topic can be given more"))
        else:
            self._is_checked, self._used = True, None
            self.describe(core, now)
        return False


class DescribeCall(TopicCall[TopicFound]):
    """What a topic is, as shard 0 knows it now."""

    def go_on(self, core: Core, now: float) -> None:
        self.describe(core, now)

    def use(self, core: Core, topic: TopicFound, now: float) -> None:  # noqa: ARG002
        self.succeed(core, topic)


class _Appends(TopicCall[Position]):
    """What appends share: what is known of the topic is looked at anew now and then, so that new
    partitions get their part."""

    def go_on(self, core: Core, now: float) -> None:
        known = core.routes.topics.get(self.name)
        if known is not None and now >= known.fresh_until:
            core.routes.learn_topic(known.found, now)  # so that one call asks, and none waits
            core.start(DescribeCall(self.name), now, DESCRIBE_S)
        super().go_on(core, now)


class AppendCall(_Appends):
    """Append a batch to one partition."""

    def __init__(
        self,
        name: str,
        batch: Outgoing,
        data: bytes,
        *,
        partition: int | None,
        turn: int,
        producer: bytes = b"",
        sequence: int = 0,
    ) -> None:
        """`turn`: where a batch without partition and key goes, modulo the partitions."""
        super().__init__(name)
        self.size = batch.size
        self.data = data
        self._key = batch.key
        self._wanted = partition
        self._turn = turn
        self._producer = producer
        self._sequence = sequence
        self._partition = 0

    def place(self, core: Core) -> int | None:
        """The partition, if it may go there together with others."""
        known = core.routes.topics.get(self.name)
        if known is None or self._producer:
            return None
        partition = self._partition_of(known.found)
        return partition if partition < known.found.partitions else None

    def _partition_of(self, topic: TopicFound) -> int:
        if self._wanted is not None:
            return self._wanted
        if self._key is not None:
            return partition_of_key(self._key, topic.partitions)
        return self._turn % topic.partitions

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        partition = self._partition_of(topic)
        if self.knows(core, topic, partition, now):
            self._partition = partition
            space = pack_namespace(topic.stream, topic.topic, partition)
            body = Append(space, self.size, self.data, self._producer, self._sequence)
            self.ask(core, Kind.APPEND, body, space, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, Appended)
        self.succeed(core, Position(self._partition, exchange.answer.offset))


class AppendManyCall(_Appends):
    """Append several batches to one partition, one behind the other, all or nothing; where the
    first of them is."""

    def __init__(self, name: str, partition: int, appends: Sequence[AppendCall]) -> None:
        super().__init__(name)
        self._partition = partition
        self._counts = [each.size for each in appends]
        self._batches = [each.data for each in appends]

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        if self.knows(core, topic, self._partition, now):
            space = pack_namespace(topic.stream, topic.topic, self._partition)
            body = pack_append_many(space, self._counts, self._batches)
            self.send(core, Kind.APPEND_MANY, body, space, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, Appended)
        self.succeed(core, Position(self._partition, exchange.answer.offset))


class Page(NamedTuple):
    """What was read, from which offset on."""

    start: int
    found: MessagesFound


class ReadCall(TopicCall[Page]):
    """Read a page of one partition. Where to begin may have to be looked up first."""

    def __init__(
        self,
        name: str,
        partition: int,
        start: Start,
        *,
        limit: int = 0,
        page_bytes: int = 0,
        wait_s: float = 0.0,
    ) -> None:
        super().__init__(name)
        self._partition = partition
        self._start = start
        self._offset = start.value if start.point is None else None
        self._limit = limit
        self._page_bytes = page_bytes
        self._wait_ms = round(wait_s * 1000)

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        if not self.knows(core, topic, self._partition, now):
            return
        space = pack_namespace(topic.stream, topic.topic, self._partition)
        if self._offset is None:
            assert self._start.point is not None
            lookup = OffsetLookup(space, self._start.point, self._start.value)
            self.ask(core, Kind.OFFSET_LOOKUP, lookup, space, now)
            return
        body = Read(space, self._offset, self._limit, self._page_bytes, self._wait_ms)
        attempt_s = self._wait_ms / 1000 + GRACE_S if self._wait_ms else 0.0
        self.ask(core, Kind.READ, body, space, now, attempt_s)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        answer = exchange.answer
        if isinstance(answer, OffsetFound):
            self._offset = answer.offset
            self.begin(core, now)
        else:
            assert isinstance(answer, MessagesFound)
            assert self._offset is not None
            self.succeed(core, Page(self._offset, answer))

    def refused(self, core: Core, error: ShardnodeError, now: float) -> None:
        looked_up = self._start.point is not None
        if looked_up and isinstance(error, Compacted) and error.first_available is not None:
            self._offset = error.first_available  # it was deleted after it was found
            self.begin(core, now)
        else:
            self.fail(core, error)


class LookupCall(TopicCall[OffsetFound]):
    """Look up an offset of one partition, and its bounds."""

    def __init__(self, name: str, partition: int, start: Start) -> None:
        super().__init__(name)
        self._partition = partition
        self._start = start

    def use(self, core: Core, topic: TopicFound, now: float) -> None:
        if self.knows(core, topic, self._partition, now):
            space = pack_namespace(topic.stream, topic.topic, self._partition)
            assert self._start.point is not None, "an offset needs no look"
            body = OffsetLookup(space, self._start.point, self._start.value)
            self.ask(core, Kind.OFFSET_LOOKUP, body, space, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, OffsetFound)
        self.succeed(core, exchange.answer)
