"""Where things live: key or partition → slot → shard; and the numbers that name them.

One rule: a slot never changes. It is a pure function of the key's bytes (xxh64 with seed 42, top
14 bits; Spark's built-in `xxhash64` is the same), so clients, router, shards and Spark's JVM agree
without asking. Only the table that maps slots to shards changes, and every change has a new epoch.

    slot of a key        xxh64(its tag, or the whole key) >> 50
    tag                  the bytes between the first `{` and the next `}`, if there are any
    slot of a partition  (slot of its topic's partition 0 + the reversed 14 low bits of its
                         number) mod 16384: the partitions of a topic spread evenly
    message with a key   to partition (xxh64 >> 32) * partitions >> 32 of its topic

    namespace, 64 bits   0 ×12 | stream 20 | topic 12 | partition 20
    internal partition   1 | 0 … | which: the bit 63 that no namespace has
    member, 64 bits      shard 16 | node 48
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from struct import Struct
from typing import Annotated, Self

from xxhash import xxh64_intdigest

from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.errors import limit_exceeded, malformed
from shardnode.wire.fields import Bytes, Int, IntColumn

SEED = 42
SLOT_SHIFT = 64 - limits.slot_bits

NAMESPACE_BYTES = 8
_NAMESPACE = Struct(">Q")
_STREAM_SHIFT = 32
_TOPIC_SHIFT = 20

INTERNAL = 1 << 63
RAFT_PARTITION = INTERNAL | 0
KEY_VALUE_PARTITION = INTERNAL | 1
CONTROL_PARTITION = INTERNAL | 2
GROUP_PARTITION = INTERNAL | 3

_MEMBER_SHIFT = 48


def tag_of(key: bytes) -> bytes:
    """The part of a key that is hashed: its tag if it has one, else all of it."""
    opening = key.find(b"{")
    if opening < 0:
        return key
    closing = key.find(b"}", opening + 1)
    if closing <= opening + 1:
        return key
    return key[opening + 1 : closing]


def hash_of_key(key: bytes) -> int:
    """The 64 bits of which a key's slot is the top 14."""
    return xxh64_intdigest(tag_of(key), SEED)


def slot_of_key(key: bytes) -> int:
    """The slot of a key, for ever."""
    return hash_of_key(key) >> SLOT_SHIFT


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a topic that messages with this key go to. Only numbers that a signed 64-bit
    integer holds come up on the way, so that every language can do the same."""
    assert 1 <= partitions <= limits.partitions_max, "a topic has partitions, and has a limit"
    return (hash_of_key(key) >> 32) * partitions >> 32


def pack_namespace(stream: int, topic: int, partition: int) -> int:
    """The 64-bit id of a stream partition; raises `LimitExceeded` for a number out of bounds."""
    _check_id("stream_id_max", stream)
    _check_id("topic_id_max", topic)
    _check_id("partition_id_max", partition)
    return stream << _STREAM_SHIFT | topic << _TOPIC_SHIFT | partition


def split_namespace(namespace: int) -> tuple[int, int, int]:
    """(stream, topic, partition) of a 64-bit id; raises `MalformedFrame` for an internal one."""
    stream = namespace >> _STREAM_SHIFT
    if not 0 <= stream <= limits.stream_id_max:
        raise malformed(
            "a namespace whose upper 12 bits are 0",
            f"{namespace:#x}",
            "pack it from stream, topic and partition",
        )
    topic = namespace >> _TOPIC_SHIFT & limits.topic_id_max
    return stream, topic, namespace & limits.partition_id_max


def namespace_to_bytes(namespace: int) -> bytes:
    """The form in which a namespace is hashed, and sent as a routing key."""
    return _NAMESPACE.pack(namespace)


def namespace_from_bytes(routing_key: bytes) -> int:
    """The namespace of a routing key; raises `MalformedFrame` if it cannot be one."""
    if len(routing_key) != NAMESPACE_BYTES:
        raise malformed(
            f"a namespace of {NAMESPACE_BYTES} bytes", f"{len(routing_key)}", "send it big endian"
        )
    namespace: int = _NAMESPACE.unpack(routing_key)[0]
    split_namespace(namespace)
    return namespace


def slot_of_partition(namespace: int) -> int:
    """The slot of a stream partition. A namespace is a number: braces in it mean nothing."""
    _, _, partition = split_namespace(namespace)
    first = xxh64_intdigest(namespace_to_bytes(namespace - partition), SEED) >> SLOT_SHIFT
    return (first + bit_reverse14(partition)) % limits.slots


def bit_reverse14(number: int) -> int:
    """The 14 low bits in reverse: consecutive numbers land far apart, and evenly."""
    return int(f"{number % limits.slots:014b}"[::-1], 2)


def member_id(shard: int, node: int) -> int:
    """The 64-bit id of a node's member of a shard's group. It is never 0: nodes start at 1."""
    _check_id("shard_id_max", shard)
    if node == 0:
        raise malformed("a node id from 1 up", "0, which means nobody", "number nodes from 1")
    _check_id("node_id_max", node)
    return shard << _MEMBER_SHIFT | node


def split_member_id(member: int) -> tuple[int, int]:
    """(shard, node) of a member id."""
    return member >> _MEMBER_SHIFT, member & limits.node_id_max


def _check_id(limit_name: str, found: int) -> None:
    limit: int = getattr(limits, limit_name)
    if not 0 <= found <= limit:
        raise limit_exceeded(limit_name, limit, found, "use a number from 0 to that")


@dataclass(frozen=True, slots=True)
class _TableBody(Body):
    """A table on the wire: runs of neighbouring slots with one owner, lengths and shards."""

    epoch: Annotated[int, Int(low=1)]
    shards: Annotated[int, Int("shards_max", low=1)]
    run_lengths: Annotated[Sequence[int], IntColumn("slots", "slots", low=1)]
    run_shards: Annotated[bytes, Bytes("slots", length_min=1)]


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """Which shard owns which slot, as of an epoch. Raises `MalformedFrame` if it is not whole."""

    epoch: int
    """Grows with every change; 0 is what a client sends that has no table."""
    shards: int
    owners: bytes
    """One byte per slot: the number of its shard."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= limits.shards_max:
            raise limit_exceeded("shards_max", limits.shards_max, self.shards, "use 1 or more")
        if self.epoch < 1:
            raise malformed("an epoch from 1 up", f"{self.epoch}", "0 means that there is no table")
        if len(self.owners) != limits.slots:
            raise malformed(
                f"an owner for each of {limits.slots} slots", f"{len(self.owners)}", "name them all"
            )
        if max(self.owners) >= self.shards:
            raise malformed(
                f"owners below {self.shards}, the number of shards",
                f"{max(self.owners)}",
                "raise the number of shards first",
            )

    def shard_of_slot(self, slot: int) -> int:
        """The owner of a slot."""
        return self.owners[slot]

    def shard_of_key(self, key: bytes) -> int:
        """The owner of a key."""
        return self.owners[slot_of_key(key)]

    def sole_owner(self) -> int | None:
        """The shard that owns every slot, if there is one."""
        return _sole_owner(self.owners)

    def encode(self) -> bytes:
        """The compact form: about three bytes per run; one table has one form."""
        shards, lengths = _runs(self.owners)
        return _TableBody(self.epoch, self.shards, lengths, bytes(shards)).encode()

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Self:
        """The table in a body; raises an `InvalidRequest` for anything but a whole one."""
        packed = _TableBody.decode(body)
        lengths, shards = packed.run_lengths, packed.run_shards
        if (
            len(lengths) != len(shards)
            or sum(lengths) != limits.slots
            or any(one == other for one, other in pairwise(shards))
        ):
            raise malformed(
                f"runs of slots with different neighbours that add up to {limits.slots}",
                f"{len(lengths)} lengths and {len(shards)} shards, together {sum(lengths)}",
                "encode the whole table, merging equal neighbours",
            )
        owners = b"".join(
            bytes((shard,)) * length for shard, length in zip(shards, lengths, strict=True)
        )
        return cls(packed.epoch, packed.shards, owners)


@lru_cache(maxsize=8)
def _sole_owner(owners: bytes) -> int | None:
    """Asked for each request, and a table is not changed but replaced."""
    first = owners[0]
    return first if owners.count(first) == limits.slots else None


@lru_cache(maxsize=8)
def _runs(owners: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shards, lengths) of neighbours with one owner. Asked for at each flush."""
    runs = [(shard, sum(1 for _ in slots)) for shard, slots in groupby(owners)]
    shards, lengths = zip(*runs, strict=True)
    return shards, lengths


def initial_table(shards: int, epoch: int = 1) -> PlacementTable:
    """The first table of a cluster: contiguous, even ranges. With one shard it owns every slot,
    which is also how an unsharded directory is described."""
    if not 1 <= shards <= limits.shards_max:
        raise limit_exceeded("shards_max", limits.shards_max, shards, "use 1 or more")
    owners = bytes(slot * shards >> limits.slot_bits for slot in range(limits.slots))
    return PlacementTable(epoch, shards, owners)


def slots_of_keys(keys: Sequence[bytes]) -> "array[int]":
    """The slots of keys, as unsigned 16-bit numbers."""
    hashed = list(map(tag_of, keys)) if b"{" in b"".join(keys) else keys
    return array("H", [xxh64_intdigest(key, SEED) >> SLOT_SHIFT for key in hashed])


def group_by_shard(keys: Sequence[bytes], table: PlacementTable) -> dict[int, list[int]]:
    """Shard → the positions of its keys, in the order given.

    Positions, so that a column beside the keys is split the same way; `operator.itemgetter` does
    that in C.
    """
    owners = table.owners
    groups: dict[int, list[int]] = {}
    for position, slot in enumerate(slots_of_keys(keys)):
        shard = owners[slot]
        if shard in groups:
            groups[shard].append(position)
        else:
            groups[shard] = [position]
    return groups
