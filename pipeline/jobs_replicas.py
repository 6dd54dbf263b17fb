"""The rows of every replica of every shard, at one index for all replicas of a shard.

    1. every replica makes a snapshot of its own state, and gives a cut of it
    2. of a shard, whoever is behind the one that is furthest is asked for a cut of that index,
       which the log behind its snapshot leads to

One rule: replicas are compared at the same index or not at all; what one of them has not heard of
yet is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardnode.pipeline.keys_cut import ShardKeys, Wish, open_cuts
from shardnode.wire.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from shardnode.client.cuts import CutReader
    from shardnode.client.values import Topology
    from shardnode.pipeline.options import Options

ANY_LOG = 1 << 40
"""However much log there is: the snapshot was made a moment ago."""

Replicas = Mapping[int, Mapping[int, ShardKeys]]
"""Shard → node → its keys."""


def open_replicas(reader: CutReader, options: Options) -> Replicas:
    """The replicas of all shards; raises `InvalidRequest` where there is only one of each."""
    places = replicas_of(reader.topology())
    wishes = [Wish(shard, 0, node, 0) for shard, nodes in places.items() for node in nodes]
    opened = list(zip(wishes, open_cuts(reader, options, wishes), strict=True))
    ends = furthest([keys for _, keys in opened])
    behind = [
        Wish(wish.shard, ends[wish.shard], wish.node, ANY_LOG)
        for wish, keys in opened
        if keys.index < ends[wish.shard]
    ]
    again = zip(behind, open_cuts(reader, options, behind), strict=True)
    found: dict[int, dict[int, ShardKeys]] = {}
    for wish, keys in (*opened, *again):
        found.setdefault(wish.shard, {})[wish.node] = keys
    for shard, nodes in found.items():
        others = {node: keys.index for node, keys in nodes.items() if keys.index != ends[shard]}
        if others:
            raise Unavailable(
                f"shard {shard}: expected all replicas at index {ends[shard]}, found {others};"
                " somebody else made a newer snapshot meanwhile: run it again"
            )
    return found


def replicas_of(topology: Topology) -> dict[int, list[int]]:
    """Shard → its nodes."""
    found = {place.id: sorted(place.replicas) for place in topology.shards}
    if all(len(nodes) < 2 for nodes in found.values()):
        raise InvalidRequest(
            f"expected shards with several replicas, found that cluster {topology.cluster} has one"
            " of each; compare it with a backup: --path"
        )
    return found


def furthest(keys: Sequence[ShardKeys]) -> dict[int, int]:
    """Shard → the highest index that any replica is at."""
    ends: dict[int, int] = {}
    for each in keys:
        ends[each.shard] = max(ends.get(each.shard, 0), each.index)
    return ends


def pairs_of(found: Replicas) -> dict[tuple[int, int], tuple[list[ShardKeys], list[ShardKeys]]]:
    """(node, other node) → the shards that both have, of each. Every replica of a shard is compared
    with that of its lowest node."""
    pairs: dict[tuple[int, int], tuple[list[ShardKeys], list[ShardKeys]]] = {}
    for nodes in found.values():
        first, *others = sorted(nodes)
        for other in others:
            mine, theirs = pairs.setdefault((first, other), ([], []))
            mine.append(nodes[first])
            theirs.append(nodes[other])
    return pairs
