"""What a node tells about itself and its cluster: topology, route, status.

One rule: these are views. They may be out of date when they arrive; whoever acts on one does so
with its epoch, and a shard that knows better answers `WrongShard` or `NotLeader`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from shardnode.wire import limits
from shardnode.wire.codec import Answer
from shardnode.wire.errors import malformed
from shardnode.wire.fields import Bytes, Int, IntColumn, Number, OptionalNumber, Text, TextColumn

_Name = Annotated[str, Text("name_bytes_max")]
_ShardNumbers = Annotated[Sequence[int], IntColumn("shards_max")]
_OptionalShardNumbers = Annotated[Sequence[int | None], IntColumn("shards_max", optional=True)]
_ShardNames = Annotated[Sequence[str], TextColumn("name_bytes_max", "shards_max")]
_ShardTexts = Annotated[Sequence[str], TextColumn("error_message_bytes_max", "shards_max")]
_MarkNumbers = Annotated[Sequence[int], IntColumn("watermarks_max")]


@dataclass(frozen=True, slots=True)
class TopologyFound(Answer):
    """Where everything is: the placement table, the nodes, and each shard's replicas."""

    cluster: _Name
    table: Annotated[bytes, Bytes("body_bytes_max")]
    """A `placement.PlacementTable`, encoded."""
    leaders: Annotated[Sequence[int], IntColumn("shards_max", "node_id_max")]
    """The leading node of each shard; 0: none known."""
    node_ids: Annotated[Sequence[int], IntColumn("nodes_max", "node_id_max", low=1)]
    node_endpoints: Annotated[Sequence[str], TextColumn("endpoint_bytes_max", "nodes_max")]
    """Each node's router."""
    replica_shards: Annotated[Sequence[int], IntColumn("replicas_max", "shard_id_max")]
    replica_nodes: Annotated[Sequence[int], IntColumn("replicas_max", "node_id_max", low=1)]
    replica_endpoints: Annotated[Sequence[str], TextColumn("endpoint_bytes_max", "replicas_max")]
    """Each replica's direct port."""
    cluster_id: Number = 0
    """Tells this cluster from others of its name: a node that joins has to know it."""

    def validate(self) -> None:
        nodes = len(self.node_ids) == len(self.node_endpoints)
        replicas = (
            len(self.replica_shards) == len(self.replica_nodes) == len(self.replica_endpoints)
        )
        if not (nodes and replicas):
            raise malformed(
                "an endpoint for each node and each replica",
                "columns of different length",
                "the node that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class Route(Answer):
    """Where a key is, and why."""

    hash: Number
    slot: Annotated[int, Int("slot_id_max")]
    shard: Annotated[int, Int("shard_id_max")]
    leader: OptionalNumber
    """A node id."""
    epoch: Number
    pid: OptionalNumber
    """The worker's process; None while it has none."""
    core: OptionalNumber
    """The CPU the worker is pinned to."""


@dataclass(frozen=True, slots=True)
class StatusFound(Answer):
    """One node's shards, as parallel columns: all of them from a node, one from a shard itself."""

    node_id: Number
    cluster: _Name
    epoch: Number
    ids: Annotated[Sequence[int], IntColumn("shards_max", "shard_id_max")]
    pids: _OptionalShardNumbers
    cores: _OptionalShardNumbers
    roles: _ShardNames
    """leader, follower, candidate or learner."""
    leaders: _OptionalShardNumbers
    terms: _ShardNumbers
    commit_indexes: _ShardNumbers
    applied_indexes: _ShardNumbers
    durable_indexes: _ShardNumbers
    truncation_indexes: _ShardNumbers
    states: _ShardNames
    """starting, recovering, serving, fenced, removed or parked."""
    restarts: _ShardNumbers
    digests: _ShardNumbers
    """A hash of everything applied through `applied_indexes`: equal on all replicas."""
    needed_indexes: _ShardNumbers
    """The log may be cut before these: partitions, members and snapshots need the rest."""
    snapshot_indexes: _ShardNumbers
    """Where the newest snapshot ends; 0: there is none."""
    log_bytes: _ShardNumbers
    errors: _ShardTexts
    """What is wrong: the damage, the file and what to do; empty when nothing is."""
    mark_shards: Annotated[Sequence[int], IntColumn("watermarks_max", "shard_id_max")] = ()
    mark_partitions: _MarkNumbers = ()
    mark_applied: _MarkNumbers = ()
    """The last of a partition's own entries that has taken effect."""
    mark_durable: _MarkNumbers = ()
    """… and the last whose effect no crash can undo."""
    mark_required: _MarkNumbers = ()
    """The oldest index of the log that the partition still requires; 0: none."""

    def validate(self) -> None:
        marks = (self.mark_partitions, self.mark_applied, self.mark_durable, self.mark_required)
        if any(len(column) != len(self.mark_shards) for column in marks):
            raise malformed(
                f"columns of {len(self.mark_shards)} partitions",
                f"lengths {[len(column) for column in marks]}",
                "the node that sent it breaks the protocol",
            )
        columns: tuple[Sequence[object], ...] = (
            self.pids,
            self.cores,
            self.roles,
            self.leaders,
            self.terms,
            self.commit_indexes,
            self.applied_indexes,
            self.durable_indexes,
            self.truncation_indexes,
            self.states,
            self.restarts,
            self.digests,
            self.needed_indexes,
            self.snapshot_indexes,
            self.log_bytes,
            self.errors,
        )
        if any(len(column) != len(self.ids) for column in columns):
            raise malformed(
                f"columns of {len(self.ids)} shards",
                f"lengths {[len(column) for column in columns]}",
                "the node that sent it breaks the protocol",
            )


def mark_columns(marks: Mapping[int, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
    """The columns of watermarks from rows of [partition, applied, durable, required] by shard."""
    rows = [[shard, *mark] for shard, each in marks.items() for mark in each]
    names = ("shards", "partitions", "applied", "durable", "required")
    return {f"mark_{name}": [row[at] for row in rows] for at, name in enumerate(names)}


def cut(message: str) -> str:
    """As much of a message as a status may hold."""
    return message.encode()[: limits.error_message_bytes_max].decode(errors="ignore")
