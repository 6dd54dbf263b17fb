"""How far a streaming query is, told to the cluster as a consumer group.

Nothing depends on it: Spark keeps the offsets in its checkpoint. It is for people, who see the lag
in `shardnode group describe`, and for consumers that shall go on where a query stopped.

A query is no member. It joins for a moment when it begins, so that the group is known and names the
topic, and commits with the generation that the group has. A group that has members is theirs:
another generation than theirs would take their partitions from them, so then nothing is told.

    the first offsets of a run     may go back: a query that was given an older checkpoint is there
    all later ones                 only go on

One rule: whatever goes wrong here is logged, and the query goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardnode.client.calls import KeyCall
from shardnode.client.partition_calls import CommitCall, Taken
from shardnode.pipeline.topics_losses import log
from shardnode.wire.errors import Conflict, NotFound, ShardnodeError
from shardnode.wire.groups import GroupAssigned, GroupDescribe, GroupFound, GroupJoin, GroupLeave
from shardnode.wire.kinds import Kind
from shardnode.wire.limits import session_ttl_ms_min

if TYPE_CHECKING:
    from shardnode.pipeline.shards import Shards
    from shardnode.pipeline.topics_shards import Topic
    from shardnode.wire.codec import Answer, Body

TIMEOUT_S = 5.0
"""A query does not wait longer than that for something it does not need."""

MEMBER = "spark"


def group_of(topic: str) -> str:
    """The group of a query that names none. Two queries of one topic share it unless they say
    otherwise: Spark tells a source nothing by which it could know them apart."""
    return f"spark.{topic.replace('/', '.')}"


class Progress:
    """That of one query in one topic."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: dict[int, int] = {}
        self._taken: Taken | None = None
        self._trouble = ""

    def tell(self, shards: Shards, topic: Topic, offsets: Mapping[int, int]) -> None:
        """The query has dealt with everything below these offsets."""
        news = {
            number: offset
            for number, offset in offsets.items()
            if self._told.get(number) != offset and number < topic.partitions
        }
        if not news:
            return
        try:
            try:
                self._commit(shards, topic, news)
            except Conflict:
                self._taken = None
                self._commit(shards, topic, news)
        except ShardnodeError as error:
            self._complain(f"its offsets could not be committed: {error}")
        else:
            self._told |= news

    def _commit(self, shards: Shards, topic: Topic, news: Mapping[int, int]) -> None:
        if self._taken is None:
            self._taken = self._introduce(shards, topic)
        if self._taken is None:
            self._complain("it has members, whose group it is; name another one")
            return
        taken = self._taken
        calls = [
            CommitCall(topic.namespace(number), taken, offset, back=number not in self._told)
            for number, offset in news.items()
        ]
        shards.run_all(calls, TIMEOUT_S)

    def _introduce(self, shards: Shards, topic: Topic) -> Taken | None:
        """Let the group be known as one that reads the topic; None when it is others'."""
        wanted = topic.namespace(0)
        try:
            found = self._look(shards)
        except NotFound:
            found = None
        if found is not None and found.members:
            return None
        if found is None or wanted not in found.namespaces:
            join = GroupJoin(self._group, MEMBER, [topic.name], session_ttl_ms_min)
            joined = self._ask(shards, Kind.GROUP_JOIN, join)
            assert isinstance(joined, GroupAssigned)
            self._ask(shards, Kind.GROUP_LEAVE, GroupLeave(self._group, MEMBER))
            found = self._look(shards)
        return Taken(self._group, found.generation)

    def _look(self, shards: Shards) -> GroupFound:
        found = self._ask(shards, Kind.GROUP_DESCRIBE, GroupDescribe(self._group))
        assert isinstance(found, GroupFound)
        return found

    def _ask(self, shards: Shards, kind: Kind, body: Body) -> Answer:
        key = self._group.encode()
        return shards.run(KeyCall(kind, body.encode(), _same, key=key), TIMEOUT_S)

    def _complain(self, why: str) -> None:
        """Once for each reason: it may be the same at every micro-batch."""
        if why != self._trouble:
            self._trouble = why
            log.warning("group %s does not show how far this query is: %s", self._group, why)


def _same(answer: Answer) -> Answer:
    return answer
