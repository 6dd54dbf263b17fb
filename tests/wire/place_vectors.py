"""The published vectors of placement: which slot a key, a namespace or a message's key has."""

from __future__ import annotations

from typing import Any

from shardnode.wire import limits, placement

SHARD_COUNTS = (1, 2, 3, 4, 7, 16, 64, 100)

TAGGED_KEYS = (
    b"{user:1}:cart",
    b"user:1",
    b"{user:1}",
    b"a{b}c{d}e",
    b"{}whole",
    b"{}{b}",
    b"{{b}}",
    b"{open",
    b"close}",
    b"}a{b}",
    b"a{\n}b",
    b"\xff{\xfe\x00}\xfd",
    b"\x80\x81\xfe\xff",
    "schlüssel".encode(),
    b"k" * limits.key_bytes_max,
)
NAMESPACES = (
    (0, 0, 0),
    (1, 2, 0),
    (1, 2, 1),
    (1, 2, 2),
    (1, 2, 3),
    (1, 2, 16383),
    (1, 2, 16384),
    # Its bytes contain a brace, another byte and a closing brace: still a number, not a tag.
    (0x07B41, 0x7D0, 5),
    (limits.stream_id_max, limits.topic_id_max, limits.partition_id_max),
)


def key_vector(key: bytes) -> dict[str, Any]:
    slot = placement.slot_of_key(key)
    return {
        "key": key.hex(),
        "hashed": placement.tag_of(key).hex(),
        "hash": f"{placement.hash_of_key(key):016x}",
        "slot": slot,
        "shard_of": {str(n): placement.initial_table(n).shard_of_slot(slot) for n in SHARD_COUNTS},
    }


def placement_vectors() -> dict[str, Any]:
    lengths = [bytes((7 * n + 3) % 251 for n in range(length)) for length in range(70)]
    return {
        "seed": placement.SEED,
        "slots": limits.slots,
        "keys": [key_vector(key) for key in (*lengths, *TAGGED_KEYS)],
        "tables": [
            {"shards": n, "epoch": 1, "encoded": placement.initial_table(n).encode().hex()}
            for n in SHARD_COUNTS
        ],
        "namespaces": [
            {
                "stream": stream,
                "topic": topic,
                "partition": partition,
                "namespace": placement.namespace_to_bytes(namespace).hex(),
                "slot": placement.slot_of_partition(namespace),
            }
            for stream, topic, partition in NAMESPACES
            for namespace in [placement.pack_namespace(stream, topic, partition)]
        ],
        "message_keys": [
            {
                "key": key.hex(),
                "partitions": partitions,
                "partition": placement.partition_of_key(key, partitions),
            }
            for key in (b"customer-7", b"user:1", b"{user:1}:cart")
            for partitions in (1, 8, 100, limits.partitions_max)
        ],
        "internal_partitions": {
            "raft": f"{placement.RAFT_PARTITION:016x}",
            "key_value": f"{placement.KEY_VALUE_PARTITION:016x}",
            "control": f"{placement.CONTROL_PARTITION:016x}",
        },
        "members": [
            {"shard": shard, "node": node, "member": f"{placement.member_id(shard, node):016x}"}
            for shard, node in ((0, 1), (3, 7), (99, limits.node_id_max))
        ],
    }
