"""A topic of a running node: its bounds, the offsets of times, and pages of a range.

One rule: a topic is its numbers from the moment it was described. One that was deleted and made
again under its name is another one, and nobody reads the one for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardnode.client import topics
from shardnode.client.offsets import Start
from shardnode.client.partition_calls import FetchCall, PartitionCall
from shardnode.client.topic_calls import DescribeCall
from shardnode.client.values import Bounds
from shardnode.pipeline.topics_plan import AT_FIRST
from shardnode.pipeline.topics_rows import Stored
from shardnode.wire import limits
from shardnode.wire.errors import Unavailable
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import pack_namespace, slot_of_partition
from shardnode.wire.streams import MessagesFound, OffsetFound, OffsetLookup

if TYPE_CHECKING:
    from shardnode.client.core import Core
    from shardnode.client.exchange import Exchange
    from shardnode.pipeline.shards import Shards
    from shardnode.wire.placement import PlacementTable

PAGE_BYTES = limits.read_page_bytes_max
"""The larger a page, the fewer requests; a page is also what leaves as one record batch."""


class Topic(NamedTuple):
    """A topic as it was described."""

    name: str
    stream: int
    number: int
    partitions: int

    def namespace(self, partition: int) -> int:
        return pack_namespace(self.stream, self.number, partition)

    def shard(self, partition: int, table: PlacementTable) -> int:
        return table.shard_of_slot(slot_of_partition(self.namespace(partition)))


class LookupCall(PartitionCall[OffsetFound]):
    """The offset of a point or a time, and the bounds of a partition, by its namespace."""

    def __init__(self, namespace: int, start: Start) -> None:
        super().__init__()
        assert start.point is not None, "an offset needs no look"
        self._namespace = namespace
        self._body = OffsetLookup(namespace, start.point, start.value)

    def go_on(self, core: Core, now: float) -> None:
        self.ask(core, Kind.OFFSET_LOOKUP, self._body, self._namespace, now)

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        assert isinstance(exchange.answer, OffsetFound)
        self.succeed(core, exchange.answer)


def describe(shards: Shards, name: str) -> Topic:
    """What a topic is now; raises `NotFound`."""
    found = shards.run(DescribeCall(topics.to_topic_name(name)))
    return Topic(found.name, found.stream, found.topic, found.partitions)


def bounds(shards: Shards, topic: Topic) -> list[Bounds]:
    """What each partition holds now."""
    found = look_up(shards, topic, [AT_FIRST] * topic.partitions)
    return [Bounds(each.first, each.end) for each in found]


def times(shards: Shards, topic: Topic, starts: Sequence[Start]) -> list[int]:
    """The first offset of each partition that is of a time or later."""
    return [found.offset for found in look_up(shards, topic, starts)]


def look_up(shards: Shards, topic: Topic, starts: Sequence[Start]) -> list[OffsetFound]:
    """The offsets that points and times stand for, one for each partition."""
    return shards.run_all(
        [LookupCall(topic.namespace(number), start) for number, start in enumerate(starts)]
    )


def pages(shards: Shards, namespace: int, start: int, end: int) -> Iterator[Iterator[Stored]]:
    """The batches that hold these offsets, page by page; while one is worked on, the next is on its
    way. Raises `Compacted` when the rest begins below what is still there."""
    offset = start
    call = _fetch(shards, namespace, offset)
    try:
        while True:
            found = shards.finish(call)
            if found.next <= offset:
                raise Unavailable(
                    f"expected messages of partition {namespace:#x} up to offset {end}, found that"
                    f" it ends at {found.end}; read again, or look at what was restored"
                )
            offset = found.next
            if offset < end:
                call = _fetch(shards, namespace, offset)
            yield _stored(found)
            if offset >= end:
                return
    finally:
        shards.cancel(call)


def _fetch(shards: Shards, namespace: int, offset: int) -> FetchCall:
    call = FetchCall(namespace, offset, page_bytes=PAGE_BYTES, wait_s=0.0)
    shards.ahead(call)
    return call


def _stored(found: MessagesFound) -> Iterator[Stored]:
    columns = zip(found.base_offsets, found.counts, found.timestamps_ms, found.batches, strict=True)
    return map(Stored._make, columns)
