"""Joining a cluster that runs: ask one of its nodes who they are, and be added.

The one rule: a node that joins founds nothing. It has no members of its own, waits to be found by
the groups' leaders, and votes only after one of them has made it a voter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardnode.node.config import Config
from shardnode.node.config_kinds import Address
from shardnode.node.ports import endpoint
from shardnode.wire.errors import InvalidRequest

JOIN_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a node of it said."""

    name: str
    cluster_id: int
    shards: int
    routers: Mapping[int, str]


def ask_cluster(at: Address) -> Cluster:
    """Who is there; raises `Unavailable` when nobody answers."""
    from shardnode.client import Client

    with Client(str(at), timeout=JOIN_TIMEOUT_S) as client:
        found = client.topology()
    return Cluster(found.cluster, found.cluster_id, found.table.shards, dict(found.nodes))


def fit_in(config: Config, cluster: Cluster) -> Config:
    """The configuration of a node that joins: the cluster decides how many shards there are."""
    if config.cluster.name != cluster.name:
        raise InvalidRequest(
            f"cluster.name: expected {cluster.name!r}, the name of the cluster at"
            f" {config.join_address}, found {config.cluster.name!r}; set it, or join another"
        )
    known = cluster.routers.get(config.node.id)
    own = endpoint(config.advertised)
    if known is not None and known != own and config.node.listen.port:
        raise InvalidRequest(
            f"node.id: expected an id that is free, found {config.node.id} in use at {known};"
            " give --node-id another, or remove that node first"
        )
    if config.sharding.enabled and config.shard_count != cluster.shards:
        raise InvalidRequest(
            f"sharding.shards: expected {cluster.shards} as in the cluster at"
            f" {config.join_address}, found {config.shard_count}; leave it out to follow it"
        )
    return config.with_shards(cluster.shards)


def add_member(at: Address, node: int, router: str) -> None:
    """Let the cluster want this node; again is harmless."""
    from shardnode.client import Client

    with Client(str(at), timeout=JOIN_TIMEOUT_S) as client:
        client.add_member(node, router)
