"""Whether a request belongs to this shard.

The one rule: no key is ever stored outside its owner. Every key that a request names is looked up
in the table, whatever the sender thought.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.wire.codec import Body
from shardnode.wire.errors import InvalidRequest, WrongShard
from shardnode.wire.frames import PLACE_FOR_ME, Request
from shardnode.wire.groups import OffsetClaim, OffsetCommit, OffsetFetch
from shardnode.wire.kinds import SHARD_ADDRESSED, Flag, Kind
from shardnode.wire.placement import PlacementTable, slot_of_partition
from shardnode.wire.requests import Cas, DeleteMany, Get, GetMany, Put, PutMany, Transact
from shardnode.wire.routing import LEGACY_SHARD

SESSIONS = frozenset((Kind.SESSION_OPEN, Kind.SESSION_KEEP_ALIVE, Kind.SESSION_CLOSE))
"""A legacy client has its session on shard 0, which opens it elsewhere when it is needed."""


def keys_of(body: Body) -> Sequence[bytes]:
    """The keys that a request names."""
    if isinstance(body, PutMany | GetMany | DeleteMany):
        return body.keys
    if isinstance(body, Put | Get | Cas):
        return (body.key,)
    if isinstance(body, Transact):
        return (*body.compare_keys, *body.then_keys, *body.otherwise_keys)
    return ()


def shards_of(body: Body, table: PlacementTable) -> set[int]:
    """The shards that own what a request names: its keys, partitions of streams, or a group."""
    namespace = getattr(body, "namespace", None)
    if isinstance(namespace, int):
        return {table.shard_of_slot(slot_of_partition(namespace))}
    if isinstance(body, OffsetCommit | OffsetClaim | OffsetFetch):
        return {table.shard_of_slot(slot_of_partition(each)) for each in body.namespaces}
    group = getattr(body, "group", None)
    if isinstance(group, str):
        return {table.shard_of_key(group.encode())}
    return set(map(table.shard_of_key, keys_of(body)))


def check_owner(request: Request, body: Body, own: int, table: PlacementTable) -> int:
    """The shard that has to execute it: `own`, or another one for a legacy request. Else it raises
    what the sender has to hear."""
    prefix = request.prefix
    if prefix is None:
        return _legacy_owner(request, body, own, table)
    if prefix not in (own, PLACE_FOR_ME):
        raise WrongShard(
            f"this is shard {own}, the request is for shard {prefix}", epoch=table.epoch
        )
    if table.sole_owner() != own and not shards_of(body, table) <= {own}:
        raise WrongShard(
            f"shard {own} does not own all that it names by the table of epoch {table.epoch}",
            epoch=table.epoch,
        )
    return own


def _legacy_owner(request: Request, body: Body, own: int, table: PlacementTable) -> int:
    if own != LEGACY_SHARD or request.header.flags & Flag.FORWARDED:
        raise InvalidRequest(
            f"expected the prefix of shard {own}, found none; requests without a prefix belong to "
            "shard 0"
        )
    owners = shards_of(body, table) or {own}
    if len(owners) > 1:
        raise InvalidRequest(
            f"its keys belong to {len(owners)} shards; without a prefix a request must stay on "
            "one: ask key by key, or give the keys a common {tag}"
        )
    kind = request.header.kind
    if kind in SHARD_ADDRESSED - SESSIONS and table.sole_owner() is None:
        raise InvalidRequest(
            f"{Kind(kind).name} concerns a whole shard; send it to each of the "
            f"{table.shards} shards with its prefix"
        )
    return owners.pop()
