"""Changes of the cluster itself: its topics and its nodes.

One rule: shard 0 keeps what is wanted, and the shards follow. A reply says that the wish is
durable; `cluster.StatusFound` and `cluster.TopologyFound` say how far it has come true. Only
`LeaderTransfer` concerns one shard and is sent to it by its prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from shardnode.wire.codec import Answer, Body
from shardnode.wire.errors import malformed
from shardnode.wire.fields import (
    Int,
    IntColumn,
    Name,
    Number,
    OptionalNumber,
    Text,
    TextColumn,
    TopicName,
)

_Partitions = Annotated[int, Int("partitions_max", low=1)]
_RetentionMs = Annotated[int, Int("ttl_ms_max")]
_NodeId = Annotated[int, Int("node_id_max", low=1)]


@dataclass(frozen=True, slots=True)
class TopicCreate(Body):
    """Create a topic, and its stream if need be. Answered by `TopicFound`, or `Conflict` if there
    is one of that name."""

    name: TopicName
    partitions: _Partitions
    retention_ms: _RetentionMs = 0
    """Older messages are deleted; 0: none for their age."""
    retention_bytes: Number = 0
    """The oldest messages of a larger partition are deleted; 0: none for its size."""


@dataclass(frozen=True, slots=True)
class TopicAlter(Body):
    """Change what is not None. Answered by `TopicFound`."""

    name: TopicName
    partitions: Annotated[int | None, Int("partitions_max", low=1, optional=True)] = None
    """More than before: the messages of a partition have nowhere else to go."""
    retention_ms: Annotated[int | None, Int("ttl_ms_max", optional=True)] = None
    retention_bytes: OptionalNumber = None


@dataclass(frozen=True, slots=True)
class TopicDelete(Body):
    """Delete a topic and its messages. Answered by `TopicDeleted`, or `NotFound`."""

    name: TopicName


@dataclass(frozen=True, slots=True)
class TopicDeleted(Answer):
    """The topic is gone; its numbers are never given to another."""


@dataclass(frozen=True, slots=True)
class TopicDescribe(Body):
    """What is this topic? Answered by `TopicFound`, or `NotFound`."""

    name: TopicName


@dataclass(frozen=True, slots=True)
class TopicFound(Answer):
    """A topic; with its numbers a client makes the namespaces of its partitions."""

    name: TopicName
    stream: Annotated[int, Int("stream_id_max")]
    topic: Annotated[int, Int("topic_id_max")]
    partitions: _Partitions
    retention_ms: _RetentionMs
    retention_bytes: Number
    created_at_ms: Number


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """One page of all topics, by name. Answered by `TopicsFound`."""

    after: Annotated[str | None, Name(parts=2, optional=True)] = None
    limit: Annotated[int, Int("list_entries_max")] = 0


@dataclass(frozen=True, slots=True)
class TopicsFound(Answer):
    """Topics as parallel columns."""

    names: Annotated[Sequence[str], TextColumn("topic_name_bytes_max", "list_entries_max")]
    streams: Annotated[Sequence[int], IntColumn("list_entries_max", "stream_id_max")]
    topics: Annotated[Sequence[int], IntColumn("list_entries_max", "topic_id_max")]
    partitions: Annotated[Sequence[int], IntColumn("list_entries_max", "partitions_max", low=1)]
    next: Annotated[str | None, Name(parts=2, optional=True)]
    """The `after` of the next page; None at the end."""

    def validate(self) -> None:
        counts = {len(self.names), len(self.streams), len(self.topics), len(self.partitions)}
        if len(counts) > 1:
            raise malformed(
                "two numbers and the partitions of each topic",
                f"{sorted(counts)} of them",
                "the shard that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class MemberAdd(Body):
    """Let a node join every shard's group; again is harmless. Answered by `Changed`."""

    node: _NodeId
    endpoint: Annotated[str, Text("endpoint_bytes_max")]
    """Its router."""


@dataclass(frozen=True, slots=True)
class MemberRemove(Body):
    """Take a node out of every shard's group; again is harmless. Answered by `Changed`."""

    node: _NodeId


@dataclass(frozen=True, slots=True)
class LeaderTransfer(Body):
    """Hand the lead of the shard that this is sent to over to a node. Answered by `Changed` when
    it has it; `Unavailable` if it could not take over in time, which changes nothing."""

    node: _NodeId


@dataclass(frozen=True, slots=True)
class Rebalance(Body):
    """Spread leaders and replicas evenly over the nodes. Answered by `Changed`."""


@dataclass(frozen=True, slots=True)
class Changed(Answer):
    """The wish is durable."""

    version: Number
    """Of the wanted state: it grows with every change, and stays if there was nothing to do."""
