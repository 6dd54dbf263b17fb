"""Streams and topics, as shard 0's control partition keeps them. Pure: requests in, answers out.

    stream  →  topic  →  partitions 0 to n − 1      "shop/orders": topic `orders` of stream `shop`

The one rule: a number is given once. The namespace of a partition is made of the numbers of its
stream and topic, and names its log on every replica: a topic that is deleted and created anew gets
other numbers, so nobody ever finds the messages of the old one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace

import msgpack

from shardnode.wire import limits
from shardnode.wire.control import TopicAlter, TopicCreate, TopicFound, TopicList, TopicsFound
from shardnode.wire.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from shardnode.wire.placement import PlacementTable, pack_namespace, slot_of_partition

RESTORED_VERSIONS = 1 << 32
"""More than a cluster ever has."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    stream: int
    number: int
    partitions: int
    retention_ms: int
    retention_bytes: int
    created_at_ms: int
    segment_bytes: int = 0
    """Of its partitions' files, which never changes, so that they are the same on all replicas."""


SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX = 64 << 10, 64 << 20
RETAINED_SEGMENTS = 4
"""Retention by size goes by whole segments: they are at most this part of what is kept."""


class Topics:
    """All of a cluster."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change: whoever follows knows whether there is anything new."""
        self._topics: dict[str, Topic] = {}
        self._streams: dict[str, int] = {}
        self._next_topic: dict[int, int] = {}
        """Stream → the number that its next topic gets."""

    def __len__(self) -> int:
        return len(self._topics)

    def items(self) -> list[tuple[str, Topic]]:
        """Every topic, by name."""
        return sorted(self._topics.items())

    def create(self, ask: TopicCreate, stamp_ms: int) -> TopicFound:
        """A new topic, and its stream if there is none of that name."""
        if ask.name in self._topics:
            raise Conflict(f"expected no topic {ask.name}, found one; alter it, or delete it first")
        total = sum(topic.partitions for topic in self._topics.values())
        _check("cluster_partitions_max", limits.cluster_partitions_max, total + ask.partitions)
        name = ask.name.partition("/")[0]
        stream = self._streams.get(name, len(self._streams))
        _check("stream_id_max", limits.stream_id_max, stream)
        number = self._next_topic.get(stream, 0)
        _check("topic_id_max", limits.topic_id_max, number)
        self._streams[name] = stream
        self._next_topic[stream] = number + 1
        self._topics[ask.name] = Topic(
            stream,
            number,
            ask.partitions,
            ask.retention_ms,
            ask.retention_bytes,
            stamp_ms,
            segment_bytes_of(ask.retention_bytes),
        )
        self.version += 1
        return self.describe(ask.name)

    def alter(self, ask: TopicAlter) -> TopicFound:
        """Change what is named; a topic never has fewer partitions than before."""
        topic = self._find(ask.name)
        wanted = topic.partitions if ask.partitions is None else ask.partitions
        if wanted < topic.partitions:
            raise InvalidRequest(
                f"expected at least the {topic.partitions} partitions of {ask.name}, found"
                f" {wanted}; the messages of a partition have nowhere else to go"
            )
        total = sum(each.partitions for each in self._topics.values()) - topic.partitions
        _check("cluster_partitions_max", limits.cluster_partitions_max, total + wanted)
        changed = replace(
            topic,
            partitions=wanted,
            retention_ms=topic.retention_ms if ask.retention_ms is None else ask.retention_ms,
            retention_bytes=(
                topic.retention_bytes if ask.retention_bytes is None else ask.retention_bytes
            ),
        )
        if changed != topic:
            self._topics[ask.name] = changed
            self.version += 1
        return self.describe(ask.name)

    def delete(self, name: str) -> None:
        """A topic is no more; its stream stays, with its numbers."""
        self._find(name)
        del self._topics[name]
        self.version += 1

    def begin_anew(self) -> None:
        """The shards may come from moments that differ a little: whatever version of the topics
        they have heard of, this one is newer, and they make the partitions that it has."""
        if self.version:
            self.version += RESTORED_VERSIONS

    def describe(self, name: str) -> TopicFound:
        """One topic."""
        topic = self._find(name)
        return TopicFound(
            name,
            topic.stream,
            topic.number,
            topic.partitions,
            topic.retention_ms,
            topic.retention_bytes,
            topic.created_at_ms,
        )

    def list(self, ask: TopicList) -> TopicsFound:
        """One page, by name."""
        names = sorted(self._topics)
        first = bisect_right(names, ask.after) if ask.after is not None else 0
        last = first + (ask.limit or limits.list_entries_max)
        page = names[first:last]
        topics = [self._topics[name] for name in page]
        return TopicsFound(
            page,
            [topic.stream for topic in topics],
            [topic.number for topic in topics],
            [topic.partitions for topic in topics],
            page[-1] if last < len(names) else None,
        )

    def partitions_of(self, shard: int, table: PlacementTable) -> dict[int, dict[str, int]]:
        """Namespace → settings of the partitions that belong to a shard."""
        found = {}
        for topic in self._topics.values():
            settings = {
                "retention_ms": topic.retention_ms,
                "retention_bytes": topic.retention_bytes,
                "segment_bytes": topic.segment_bytes,
            }
            for partition in range(topic.partitions):
                namespace = pack_namespace(topic.stream, topic.number, partition)
                if table.shard_of_slot(slot_of_partition(namespace)) == shard:
                    found[namespace] = settings
        return found

    def partitions_with(
        self, ask: TopicCreate | TopicAlter, table: PlacementTable
    ) -> Mapping[int, int]:
        """Shard → how many partitions it would have if that came true."""
        known = self._topics.get(ask.name)
        begin = known.partitions if known is not None else 0
        end = ask.partitions if ask.partitions is not None else begin
        if end <= begin:
            return {}
        counts: Counter[int] = Counter()
        for topic in self._topics.values():
            counts.update(_shards_of(topic.stream, topic.number, range(topic.partitions), table))
        stream = self._streams.get(ask.name.partition("/")[0], len(self._streams))
        number = known.number if known is not None else self._next_topic.get(stream, 0)
        if stream <= limits.stream_id_max and number <= limits.topic_id_max:
            counts.update(_shards_of(stream, number, range(begin, end), table))
        return counts

    def _find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name}; create it first, or check its name")
        return topic

    def encode(self) -> bytes:
        """For a flush, a snapshot and the other shards; empty before there was any topic."""
        if not self.version:
            return b""
        rows = [[name, *astuple(topic)] for name, topic in self.items()]
        streams = sorted(self._streams.items())
        return bytes(msgpack.packb([self.version, streams, sorted(self._next_topic.items()), rows]))

    @classmethod
    def decode(cls, data: bytes) -> Topics:
        """The inverse of `encode`."""
        topics = cls()
        if data:
            topics.version, streams, numbers, rows = msgpack.unpackb(data)
            topics._streams, topics._next_topic = dict(streams), dict(numbers)
            topics._topics = {name: Topic(*rest) for name, *rest in rows}
        return topics


def _shards_of(
    stream: int, topic: int, partitions: Iterable[int], table: PlacementTable
) -> Iterator[int]:
    for partition in partitions:
        yield table.shard_of_slot(slot_of_partition(pack_namespace(stream, topic, partition)))


def segment_bytes_of(retention_bytes: int) -> int:
    """How large the files of a partition are to be."""
    if not retention_bytes:
        return SEGMENT_BYTES_MAX
    return min(max(retention_bytes // RETAINED_SEGMENTS, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)


def _check(name: str, limit: int, found: int) -> None:
    if found > limit:
        raise LimitExceeded(
            f"expected at most {limit} ({name}), found {found}; delete topics, or use fewer"
            " partitions",
            limit_name=name,
            limit=limit,
            found=found,
        )
