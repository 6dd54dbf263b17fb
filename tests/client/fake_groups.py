"""Groups and offsets of the fake node: the tables of a real shard, and time by this machine."""

from __future__ import annotations

import time

from shardnode.shard.groups import Groups, Place
from shardnode.shard.offsets import Offsets
from shardnode.wire.codec import Body
from shardnode.wire.errors import Unavailable
from shardnode.wire.groups import (
    GroupDescribe,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupLeft,
    GroupList,
    GroupRelease,
    GroupReleased,
    OffsetClaim,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFound,
)
from tests.client.fake_streams import FakeStreams


class FakeGroups:
    """All groups of the fake node."""

    def __init__(self, streams: FakeStreams) -> None:
        self.streams = streams
        self.groups = Groups()
        self.offsets = Offsets()
        self.beats: list[GroupHeartbeat] = []

    def _end_of(self, namespace: int) -> int:
        return self.streams.of(namespace).end

    def door(self, body: Body) -> None:
        """What a shard refuses before it looks at sessions."""
        topics = dict(self.streams.topics.items())
        if isinstance(body, GroupJoin) and not set(body.topics) <= topics.keys():
            raise Unavailable("this shard has not heard of that topic")
        places = {
            name: Place(topic.stream, topic.number, topic.partitions)
            for name, topic in topics.items()
        }
        self.groups.set_places(self.streams.topics.version, places)
        self.groups.expire(_now_ms(), 0)

    def write(self, body: Body) -> Body | None:
        """None: it is not about groups."""
        groups = self.groups
        if isinstance(body, GroupJoin):
            member = body.member or "member"
            return groups.join(body.group, member, body.topics, body.ttl_ms, _now_ms())
        if isinstance(body, GroupHeartbeat):
            self.beats.append(body)
            return groups.beat(body.group, body.member, body.generation, body.held, _now_ms())
        if isinstance(body, GroupLeave):
            groups.leave(body.group, body.member)
            return GroupLeft()
        if isinstance(body, GroupRelease):
            groups.release(body.group, body.released)
            return GroupReleased()
        if isinstance(body, OffsetCommit):
            self.offsets.commit(
                body.group,
                body.generation,
                body.namespaces,
                body.offsets,
                back=body.back,
                end_of=self._end_of,
            )
            return OffsetsCommitted()
        if isinstance(body, OffsetClaim):
            for namespace in body.namespaces:
                self._end_of(namespace)
            found = self.offsets.claim(body.group, body.generation, body.namespaces)
            return OffsetsFound(found)
        return None

    def read(self, body: Body) -> Body | None:
        if isinstance(body, OffsetFetch):
            return OffsetsFound(self.offsets.fetch(body.group, body.namespaces))
        if isinstance(body, GroupDescribe):
            return self.groups.describe(body.group)
        if isinstance(body, GroupList):
            return self.groups.page(body.after, body.limit)
        return None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
