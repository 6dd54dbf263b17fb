"""Which member does a partition's background work: tiering, retention.

    Elected()       the highest hash of member and partition among the voters: every member finds
                    the same one without asking, and a change of members moves few partitions
    Fixed(member)   the one that was named, while it is a voter
    Nobody()        the partition is unowned: no background work is done

The one rule: mastership is a division of labour, never a permission. What a master decides goes
through the log like everything else, so two that think they are it do no harm; the leader stands
in for one that is down.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest


class Elected(NamedTuple):
    """By rendezvous hashing."""


class Fixed(NamedTuple):
    """By name."""

    member: int


class Nobody(NamedTuple):
    """Disabled."""


Mastership = Elected | Fixed | Nobody

_PAIR = Struct(">QQ")


def master_of(partition: int, voters: Collection[int], policy: Mastership) -> int:
    """The member that is to do the work; 0 when nobody is."""
    if isinstance(policy, Fixed):
        return policy.member if policy.member in voters else 0
    if isinstance(policy, Nobody) or not voters:
        return 0
    return max(voters, key=lambda member: (_weight(member, partition), member))


def acting_master(
    partition: int,
    voters: Collection[int],
    policy: Mastership,
    *,
    leader: int,
    in_touch: Collection[int],
) -> int:
    """Who does it now: the master, or the leader when the master is not heard of. 0: nobody."""
    if isinstance(policy, Nobody):
        return 0
    master = master_of(partition, voters, policy)
    return master if master == leader or master in in_touch else leader


def _weight(member: int, partition: int) -> int:
    return xxh3_64_intdigest(_PAIR.pack(member, partition))
