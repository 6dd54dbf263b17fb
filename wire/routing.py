"""Which shard a request is for.

One rule: only the envelope decides, never the body. Router, shard 0 (for legacy clients) and the
simulator all ask here, so they cannot disagree.

    prefix          goes to
    a shard         that shard, if the table has it
    PLACE_FOR_ME    the owner of the routing key; without one, shard 0
    none (legacy)   shard 0, which executes it or passes it on to the owner of the routing key
"""

from shardnode.wire.errors import InvalidRequest
from shardnode.wire.frames import PLACE_FOR_ME, Request
from shardnode.wire.kinds import PARTITION_ADDRESSED, SHARD_ADDRESSED, Flag, Kind
from shardnode.wire.placement import PlacementTable, namespace_from_bytes, slot_of_partition

LEGACY_SHARD = 0


def entry_shard(request: Request, table: PlacementTable) -> int:
    """The shard to hand a request to; raises `InvalidRequest` if there is none."""
    if request.prefix is None:
        return LEGACY_SHARD
    if request.prefix == PLACE_FOR_ME:
        return owner_shard(request, table)
    if request.prefix >= table.shards:
        raise InvalidRequest(
            f"expected a shard below {table.shards}, found {request.prefix}; there are no more"
            f" shards in epoch {table.epoch}: ask for the topology"
        )
    return request.prefix


def owner_shard(request: Request, table: PlacementTable) -> int:
    """The shard that owns what a request is about, by its routing key.

    A request about a whole shard has no owner, unless one shard owns everything: answering for
    one shard as if it were all would leave out the others without a word.
    """
    if request.header.flags & Flag.NAMESPACE:
        return table.shard_of_slot(slot_of_partition(namespace_from_bytes(request.routing_key)))
    if request.header.kind in PARTITION_ADDRESSED:
        raise InvalidRequest(
            f"expected a namespace and its flag with {Kind(request.header.kind).name}, found a"
            f" routing key of {len(request.routing_key)} bytes without the flag; send the"
            " namespace of the partition as routing key"
        )
    if request.routing_key:
        return table.shard_of_key(request.routing_key)
    if request.header.kind not in SHARD_ADDRESSED:
        return LEGACY_SHARD
    sole = table.sole_owner()
    if sole is None:
        raise InvalidRequest(
            f"expected the prefix of a shard with {Kind(request.header.kind).name}, found none;"
            f" name the shard it concerns, or send it to each of the {table.shards} shards"
        )
    return sole
