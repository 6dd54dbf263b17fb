"""What makes the restored log of a shard that of another cluster, with one member. Pure.

    … the last entry of the cut
    a configuration       this member alone, whoever belonged to the group before
    RESTORED              on shard 0: none of the nodes of before is wanted

The one rule: the history is not touched. What is added stands behind it, in a term of its own, so
every entry of the cut is what it was, at its index, and the chain goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from shardnode.raft import RAFT_PARTITION, Entry, Membership
from shardnode.shard.entries import RESTORED, encode_entry
from shardnode.wire.placement import CONTROL_PARTITION
from shardnode.wire.routing import LEGACY_SHARD

EFFECTS_PART = "effects"
"""The part of a snapshot that says how far it goes."""


def read_effects(part: bytes) -> tuple[Mapping[int, int], int]:
    """(partition → its last number, highest stamp) of a snapshot, from that part of it."""
    _, _, pairs, _, *more = msgpack.unpackb(part)
    return dict(pairs), max(more, default=0)


def closing_entries(
    shard: int, member: int, *, index: int, term: int, numbers: Mapping[int, int], stamp_ms: int
) -> list[Entry]:
    """The entries behind the last one of the cut, which has this index, term and stamp; `numbers`
    are those of each partition's last entry."""
    term += 1
    alone = Membership.of([member]).encode()
    entries = [Entry(index + 1, term, RAFT_PARTITION, index + 1, alone)]
    if shard == LEGACY_SHARD:
        number = numbers.get(CONTROL_PARTITION, 0) + 1
        payload = encode_entry(stamp_ms, RESTORED, b"")
        entries.append(Entry(index + 2, term, CONTROL_PARTITION, number, payload))
    return entries
