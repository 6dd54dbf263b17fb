"""What callers get: entries, changes, routes, states of a cluster. Plain values, no connection.

One rule: bytes are always `bytes` and times are always aware datetimes in UTC, whatever the caller
passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from shardnode.wire.cluster import StatusFound, TopologyFound
from shardnode.wire.control import TopicFound
from shardnode.wire.cursors import WatchCursor
from shardnode.wire.placement import PlacementTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(milliseconds: int) -> datetime | None:
    """A time of the wire; 0 there means never."""
    return _EPOCH + timedelta(milliseconds=milliseconds) if milliseconds else None


def stamp_of(milliseconds: int) -> datetime:
    """When something happened, by the wire's milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


class Entry(NamedTuple):
    """A key with its value. In a scan of keys alone, `value` is empty."""

    key: bytes
    value: bytes
    version: int
    expires_at: datetime | None


class Where(NamedTuple):
    """What a change's cursor is made from, when somebody asks for it."""

    epoch: int
    positions: Mapping[int, int]
    """Of all shards when the page of the change came."""
    shard: int
    position: int

    def to_text(self) -> str:
        positions = {**self.positions, self.shard: self.position}
        return WatchCursor(self.epoch, list(positions), list(positions.values())).to_text()


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a key: `kind` is `put`, `delete` or `expire`."""

    kind: str
    key: bytes
    value: bytes | None
    """None unless the change is a put."""
    version: int
    where: Where = field(repr=False)

    @property
    def cursor(self) -> str:
        """Pass it as `start` to a later watch, which goes on behind this change."""
        return self.where.to_text()


@dataclass(frozen=True, slots=True)
class Route:
    """Where a key is, and why."""

    hash: int
    slot: int
    shard: int
    leader: int | None
    epoch: int
    pid: int | None
    core: int | None


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far one partition is, counted in its own entries, and what it needs of the log."""

    partition: int
    applied_index: int
    durable_index: int
    """The last entry whose effect no crash can undo."""
    required_index: int
    """The oldest index of the log that it still requires; 0: none."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How one shard of a node is."""

    id: int
    pid: int | None
    core: int | None
    role: str
    leader: int | None
    term: int
    commit_index: int
    applied_index: int
    durable_index: int
    truncation_index: int
    state: str
    restarts: int
    digest: str
    """A hash of everything applied so far, as 16 hexadecimal digits: equal on all replicas that
    have applied the same index."""
    needed_index: int
    """The log may be cut before this index: partitions, members or snapshots need the rest."""
    snapshot_index: int
    log_bytes: int
    error: str
    """What is wrong, with the file and what to do; empty when nothing is."""
    partitions: tuple[Watermark, ...] = ()
    """The internal partitions: 2^63 + 1 is key-value, 2^63 + 2 control."""


@dataclass(frozen=True, slots=True)
class Status:
    """How the shards of one node are."""

    node_id: int
    cluster: str
    epoch: int
    shards: tuple[ShardStatus, ...]

    @classmethod
    def of(cls, found: StatusFound) -> Status:
        marks: dict[int, tuple[Watermark, ...]] = {}
        for shard, *mark in zip(
            *(found.mark_shards, found.mark_partitions, found.mark_applied),
            *(found.mark_durable, found.mark_required),
            strict=True,
        ):
            marks[shard] = (*marks.get(shard, ()), Watermark(*mark))
        columns = (
            found.ids,
            found.pids,
            found.cores,
            found.roles,
            found.leaders,
            found.terms,
            found.commit_indexes,
            found.applied_indexes,
            found.durable_indexes,
            found.truncation_indexes,
            found.states,
            found.restarts,
            [f"{digest:016x}" for digest in found.digests],
            found.needed_indexes,
            found.snapshot_indexes,
            found.log_bytes,
            found.errors,
            [marks.get(shard, ()) for shard in found.ids],
        )
        rows: Sequence[tuple[object, ...]] = list(zip(*columns, strict=True))
        shards = tuple(ShardStatus(*row) for row in rows)  # type: ignore[arg-type]
        return cls(found.node_id, found.cluster, found.epoch, shards)


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where one shard is."""

    id: int
    leader: int | None
    """The node that leads it, if one is known."""
    replicas: Mapping[int, str]
    """Node → the address of the shard's direct port there."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where everything is, as of an epoch."""

    cluster: str
    epoch: int
    nodes: Mapping[int, str]
    """Node → the address of its router."""
    shards: tuple[ShardPlace, ...]
    table: PlacementTable
    cluster_id: int = 0
    """Tells this cluster from others of its name."""

    @classmethod
    def of(cls, found: TopologyFound) -> Topology:
        table = PlacementTable.decode(found.table)
        replicas: dict[int, dict[int, str]] = {shard: {} for shard in range(table.shards)}
        for shard, node, endpoint in zip(
            found.replica_shards, found.replica_nodes, found.replica_endpoints, strict=True
        ):
            replicas.setdefault(shard, {})[node] = endpoint
        leaders = dict(enumerate(found.leaders))
        shards = tuple(
            ShardPlace(shard, leaders.get(shard) or None, replicas[shard])
            for shard in range(table.shards)
        )
        nodes = dict(zip(found.node_ids, found.node_endpoints, strict=True))
        return cls(found.cluster, table.epoch, nodes, shards, table, found.cluster_id)


class OperationResult(NamedTuple):
    """What one operation of a transaction did."""

    version: int
    """Put: the new version. Delete and get: the version found, 0 if there was none."""
    value: bytes | None
    """Get: the value found. Otherwise None."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a transaction did."""

    succeeded: bool
    """Whether all comparisons held: `then` was done, otherwise `otherwise`."""
    results: tuple[OperationResult, ...]
    """Of the operations of the branch that was taken, in order."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is."""

    name: str
    """With its stream, as in `default/orders`."""
    partitions: int
    retention_time: timedelta | None
    """Older messages are deleted; None: none for their age."""
    retention_bytes: int | None
    """The oldest messages of a larger partition are deleted; None: none for its size."""
    created_at: datetime

    @classmethod
    def of(cls, found: TopicFound) -> TopicInfo:
        return cls(
            found.name,
            found.partitions,
            timedelta(milliseconds=found.retention_ms) if found.retention_ms else None,
            found.retention_bytes or None,
            stamp_of(found.created_at_ms),
        )


class Bounds(NamedTuple):
    """What a partition holds."""

    first: int
    """The offset of the first message that is still there."""
    end: int
    """Behind the last message: what the next one will get."""


class GroupPartition(NamedTuple):
    """How far a group is in one partition."""

    topic: str
    partition: int
    member: str | None
    """Who reads it; None: nobody for the moment."""
    committed: int | None
    """Where the group goes on; None if it never committed."""
    end: int | None
    """Behind the last message; None while the partition cannot be used."""

    @property
    def lag(self) -> int | None:
        """How many messages are still to be dealt with; None where that is not known: without a
        commit a group may begin anywhere."""
        return None if self.committed is None or self.end is None else self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a consumer group is."""

    name: str
    generation: int
    """Grows with every change of who reads what."""
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]
    """Of the topics that its members read, or read last."""
