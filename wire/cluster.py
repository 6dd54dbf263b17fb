"""What a node tells about itself and its cluster: topology, route, status.

One rule: these are views. They may be out of date when they arrive; whoever acts on one does so
with its epoch, and a shard that knows better answers `WrongShard` or `NotLeader`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from shardnode.wire.codec import Answer
from shardnode.wire.errors import malformed
from shardnode.wire.fields import Bytes, Int, IntColumn, Number, OptionalNumber, Text, TextColumn

_Name = Annotated[str, Text("name_bytes_max")]
_ShardNumbers = Annotated[Sequence[int], IntColumn("shards_max")]
_OptionalShardNumbers = Annotated[Sequence[int | None], IntColumn("shards_max", optional=True)]
_ShardNames = Annotated[Sequence[str], TextColumn("name_bytes_max", "shards_max")]


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

    def validate(self) -> None:
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
        )
        if any(len(column) != len(self.ids) for column in columns):
            raise malformed(
                f"columns of {len(self.ids)} shards",
                f"lengths {[len(column) for column in columns]}",
                "the node that sent it breaks the protocol",
            )
