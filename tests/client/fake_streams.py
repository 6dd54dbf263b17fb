"""Topics and partitions of the fake node: lists in memory, checked as a shard checks them.

`slow` keeps new partitions from the shards until `spread`, as it happens for a moment with real
ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shardnode.shard.topics import Topics
from shardnode.wire.appends import check_batches
from shardnode.wire.codec import Body
from shardnode.wire.control import (
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDeleted,
    TopicDescribe,
    TopicList,
)
from shardnode.wire.errors import Compacted, Conflict, InvalidRequest, NotFound
from shardnode.wire.kinds import OffsetPoint
from shardnode.wire.placement import pack_namespace
from shardnode.wire.streams import (
    Append,
    Appended,
    AppendMany,
    MessagesFound,
    OffsetFound,
    OffsetLookup,
    Read,
)

STAMP_MS = 1_700_000_000_000


class Stored(NamedTuple):
    """A batch as it came."""

    offset: int
    size: int
    stamp_ms: int
    data: bytes


@dataclass
class FakePartition:
    """The batches of one partition."""

    batches: list[Stored] = field(default_factory=list)
    first: int = 0
    end: int = 0
    producers: dict[bytes, tuple[int, Appended]] = field(default_factory=dict)

    def append(self, ask: Append, stamp_ms: int) -> Appended:
        last, reply = self.producers.get(ask.producer, (-1, None))
        if ask.producer and ask.producer_sequence <= last:
            if ask.producer_sequence < last or reply is None:
                raise Conflict("a sequence that is too low")
            return reply
        appended = Appended(self.end, stamp_ms)
        self.batches.append(Stored(self.end, ask.count, stamp_ms, ask.batch))
        self.end += ask.count
        self.producers[ask.producer] = (ask.producer_sequence, appended)
        return appended

    def trim(self, first: int) -> None:
        """Retention: batches before an offset are gone."""
        self.batches = [each for each in self.batches if each.offset + each.size > first]
        self.first = self.batches[0].offset if self.batches else self.end

    def read(self, ask: Read) -> MessagesFound:
        if ask.offset < self.first:
            raise Compacted("deleted", first_available=self.first)
        if ask.offset > self.end:
            raise InvalidRequest(f"expected an offset up to {self.end}, found {ask.offset}")
        page: list[Stored] = []
        for each in self.batches:
            if each.offset + each.size > ask.offset:
                page.append(each)
                size = sum(len(one.data) for one in page)
                reached = each.offset + each.size - ask.offset
                if reached >= (ask.limit or 1 << 60) or size >= (ask.page_bytes or 1 << 20):
                    break
        return MessagesFound(
            base_offsets=[each.offset for each in page],
            counts=[each.size for each in page],
            timestamps_ms=[each.stamp_ms for each in page],
            batches=[each.data for each in page],
            next=page[-1].offset + page[-1].size if page else ask.offset,
            first=self.first,
            end=self.end,
        )

    def find(self, ask: OffsetLookup) -> OffsetFound:
        later = (each.offset for each in self.batches if each.stamp_ms >= ask.timestamp_ms)
        offset = {
            OffsetPoint.EARLIEST: self.first,
            OffsetPoint.LATEST: self.end,
            OffsetPoint.LAST: max(self.first, self.end - 1),
            OffsetPoint.TIMESTAMP: next(later, self.end),
        }[ask.point]
        return OffsetFound(offset, self.first, self.end)


class FakeStreams:
    """All topics of the fake node, and the partitions of all its shards."""

    def __init__(self) -> None:
        self.topics = Topics()
        self.partitions: dict[int, FakePartition] = {}
        self.slow = False
        self.stamp_ms = STAMP_MS

    def spread(self) -> None:
        """The shards follow the topics."""
        wanted = {
            pack_namespace(topic.stream, topic.number, number)
            for _, topic in self.topics.items()
            for number in range(topic.partitions)
        }
        self.partitions = {space: self.partitions.get(space, FakePartition()) for space in wanted}

    def of(self, namespace: int) -> FakePartition:
        if namespace not in self.partitions:
            raise NotFound(f"expected a partition of this shard, found namespace {namespace:#x}")
        return self.partitions[namespace]

    def door(self, body: Body) -> None:
        """What a shard refuses before it looks at sessions."""
        if isinstance(body, Append | AppendMany):
            self.of(body.namespace)
            check_batches(body)

    def write(self, body: Body) -> Body | None:
        """None: it is not about streams."""
        if isinstance(body, Append):
            self.stamp_ms += 1_000
            return self.of(body.namespace).append(body, self.stamp_ms)
        if isinstance(body, AppendMany):
            self.stamp_ms += 1_000
            partition, first = self.of(body.namespace), self.of(body.namespace).end
            for count, batch in body.each():
                partition.append(Append(body.namespace, count, batch), self.stamp_ms)
            return Appended(first, self.stamp_ms)
        if isinstance(body, TopicCreate | TopicAlter):
            if isinstance(body, TopicCreate):
                answer = self.topics.create(body, self.stamp_ms)
            else:
                answer = self.topics.alter(body)
            if not self.slow:
                self.spread()
            return answer
        if isinstance(body, TopicDelete):
            self.topics.delete(body.name)
            self.spread()
            return TopicDeleted()
        return None

    def read(self, body: Body) -> Body | None:
        if isinstance(body, Read):
            return self.of(body.namespace).read(body)
        if isinstance(body, OffsetLookup):
            return self.of(body.namespace).find(body)
        if isinstance(body, TopicDescribe):
            return self.topics.describe(body.name)
        if isinstance(body, TopicList):
            return self.topics.list(body)
        return None
