"""Placement: one function, the same everywhere and for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    KEY_VALUE_PARTITION,
    RAFT_PARTITION,
    PlacementTable,
    bit_reverse14,
    group_by_shard,
    hash_of_key,
    initial_table,
    member_id,
    namespace_from_bytes,
    namespace_to_bytes,
    pack_namespace,
    partition_of_key,
    slot_of_key,
    slot_of_partition,
    split_member_id,
    split_namespace,
    tag_of,
)

MASK = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
BRACED = st.lists(st.sampled_from([b"{", b"}", b"a", b"\n", b"\xff", b"\x00"]), max_size=12)
STREAMS = st.integers(0, limits.stream_id_max)
TOPICS = st.integers(0, limits.topic_id_max)
PARTITIONS = st.integers(0, limits.partition_id_max)


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def mix(lane: int, word: int) -> int:
    return rotate(lane + word * P2 & MASK, 31) * P1 & MASK


def xxh64(data: bytes, seed: int) -> int:
    """The published algorithm, written out: the library is compared with it."""
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) // 8 * 8, 8)]
    if len(data) >= 32:
        lanes = [seed + P1 + P2 & MASK, seed + P2 & MASK, seed, seed - P1 & MASK]
        striped = len(words) // 4 * 4
        for at in range(striped):
            lanes[at % 4] = mix(lanes[at % 4], words[at])
        state = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            state = ((state & MASK) ^ mix(0, lane)) * P1 + P4
        words = words[striped:]
    else:
        state = seed + P5
    state = state + len(data) & MASK
    for word in words:
        state = rotate(state ^ mix(0, word), 27) * P1 + P4 & MASK
    rest = data[len(data) // 8 * 8 :]
    if len(rest) >= 4:
        state = rotate(state ^ int.from_bytes(rest[:4], "little") * P1 & MASK, 23) * P2 + P3 & MASK
        rest = rest[4:]
    for byte in rest:
        state = rotate(state ^ byte * P5 & MASK, 11) * P1 & MASK
    state = (state ^ state >> 33) * P2 & MASK
    state = (state ^ state >> 29) * P3 & MASK
    return state ^ state >> 32


@given(st.binary(max_size=200))
def test_hash_is_the_published_xxh64(key: bytes) -> None:
    assert hash_of_key(key) == xxh64(tag_of(key), 42)
    assert slot_of_key(key) == hash_of_key(key) >> 50 < limits.slots


def test_reference_gives_the_digest_that_xxhash_publishes() -> None:
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        (b"user:1", b"user:1"),
        (b"{user:1}:cart", b"user:1"),
        (b"a{b}c{d}", b"b"),
        (b"{}x", b"{}x"),
        (b"{}{b}", b"{}{b}"),
        (b"{{b}}", b"{b"),
        (b"}{b}", b"b"),
        (b"{open", b"{open"),
        (b"close}", b"close}"),
        (b"{", b"{"),
        (b"", b""),
    ],
)
def test_tag_is_between_the_first_brace_and_the_next_closing_one(key: bytes, tag: bytes) -> None:
    assert tag_of(key) == tag


@given(BRACED.map(b"".join))
def test_tag_is_the_one_that_spark_extracts(key: bytes) -> None:
    """The expression is the one of the Spark pipeline, where no match gives the empty string."""
    match = re.match(r"^[^{]*\{([^}]+)\}", key.decode("iso-8859-1"))
    assert tag_of(key) == (match.group(1).encode("iso-8859-1") if match else key)


def test_placement_is_the_same_in_every_process() -> None:
    """Python's own hashing differs between processes; nothing here may depend on it."""
    program = (
        "from shardnode.wire.placement import *\n"
        "keys = [b'key:%d' % n for n in range(500)] + [b'{t%d}x' % n for n in range(500)]\n"
        "groups = group_by_shard(keys, initial_table(7))\n"
        "print([slot_of_key(k) for k in keys], sorted(groups.items()))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith(f"[{slot_of_key(b'key:0')}, ")


@given(st.lists(st.binary(max_size=20) | BRACED.map(b"".join)), st.integers(1, limits.shards_max))
def test_keys_are_grouped_by_their_owner_in_the_order_given(keys: list[bytes], shards: int) -> None:
    table = initial_table(shards)
    groups = group_by_shard(keys, table)
    assert sorted(position for group in groups.values() for position in group) == [
        *range(len(keys))
    ]
    for shard, positions in groups.items():
        assert positions == sorted(positions) != []
        assert {table.shard_of_key(keys[position]) for position in positions} == {shard}


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 64, 99, 100])
def test_first_table_has_contiguous_even_ranges(shards: int) -> None:
    table = initial_table(shards)
    owners = [table.shard_of_slot(slot) for slot in range(limits.slots)]
    assert owners == sorted(owners) == [slot * shards >> 14 for slot in range(limits.slots)]
    sizes = Counter(owners).values()
    assert (len(sizes), sum(sizes)) == (shards, limits.slots)
    assert max(sizes) - min(sizes) <= 1


def test_sole_owner_is_known() -> None:
    assert initial_table(1).sole_owner() == 0
    assert initial_table(2).sole_owner() is None
    assert PlacementTable(2, 3, b"\2" * limits.slots).sole_owner() == 2


@given(st.integers(1, 2**64 - 1), st.lists(st.tuples(st.integers(0, 16383), st.integers(0, 6))))
def test_any_table_survives_its_compact_form(epoch: int, moves: list[tuple[int, int]]) -> None:
    owners = bytearray(initial_table(7).owners)
    for slot, shard in moves:
        owners[slot] = shard
    table = PlacementTable(epoch, 7, bytes(owners))
    assert PlacementTable.decode(table.encode()) == table


def test_compact_form_is_compact() -> None:
    assert len(initial_table(4).encode()) < 30
    assert len(initial_table(limits.shards_max).encode()) < 512


HALF = limits.slots // 2
REFUSED_TABLES = {
    "no epoch": [0, 2, [HALF, HALF], b"\0\1"],
    "no shards": [1, 0, [limits.slots], b"\0"],
    "too many shards": [1, 101, [limits.slots], b"\0"],
    "no runs": [1, 1, [], b""],
    "slots left out": [1, 2, [HALF, HALF - 1], b"\0\1"],
    "slots twice": [1, 2, [HALF, HALF + 1], b"\0\1"],
    "run of no slots": [1, 2, [limits.slots, 0], b"\0\1"],
    "more shards than lengths": [1, 2, [HALF, HALF], b"\0\1\0"],
    "owner that does not exist": [1, 2, [HALF, HALF], b"\0\2"],
    "neighbours not merged": [1, 2, [HALF, HALF], b"\1\1"],
    "negative length": [1, 2, [limits.slots + 1, -1], b"\0\1"],
    "huge length": [1, 2, [2**60], b"\0"],
}


@pytest.mark.parametrize("name", REFUSED_TABLES)
def test_table_that_is_not_whole_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="expected"):
        PlacementTable.decode(msgpack.packb(REFUSED_TABLES[name]))


@pytest.mark.parametrize(
    ("epoch", "shards", "owners", "said"),
    [
        (0, 1, bytes(limits.slots), "an epoch from 1"),
        (1, 101, bytes(limits.slots), "shards_max"),
        (1, 0, bytes(limits.slots), "shards_max"),
        (1, 1, bytes(limits.slots - 1), "an owner for each of 16384 slots, found 16383"),
        (1, 1, b"\1" * limits.slots, "owners below 1"),
    ],
)
def test_table_cannot_be_made_in_parts(epoch: int, shards: int, owners: bytes, said: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=said):
        PlacementTable(epoch, shards, owners)


@pytest.mark.parametrize("shards", [0, -1, 101])
def test_first_table_needs_a_possible_number_of_shards(shards: int) -> None:
    with pytest.raises(errors.LimitExceeded, match="shards_max"):
        initial_table(shards)


@given(STREAMS, TOPICS, PARTITIONS)
def test_namespace_holds_its_three_numbers(stream: int, topic: int, partition: int) -> None:
    namespace = pack_namespace(stream, topic, partition)
    assert namespace >> 52 == 0
    assert split_namespace(namespace) == (stream, topic, partition)
    assert namespace_from_bytes(namespace_to_bytes(namespace)) == namespace
    assert namespace not in (RAFT_PARTITION, KEY_VALUE_PARTITION, CONTROL_PARTITION)


def test_namespace_bits_are_where_the_layout_says() -> None:
    assert namespace_to_bytes(pack_namespace(0xABCDE, 0x123, 0x45678)).hex() == "000abcde12345678"


@pytest.mark.parametrize(
    ("numbers", "limit"),
    [
        ((1 << 20, 0, 0), "stream_id_max"),
        ((0, 1 << 12, 0), "topic_id_max"),
        ((0, 0, 1 << 20), "partition_id_max"),
        ((-1, 0, 0), "stream_id_max"),
        ((0, -1, 0), "topic_id_max"),
        ((0, 0, -1), "partition_id_max"),
    ],
)
def test_namespace_out_of_bounds_is_refused(numbers: tuple[int, int, int], limit: str) -> None:
    with pytest.raises(errors.LimitExceeded, match=limit):
        pack_namespace(*numbers)


@pytest.mark.parametrize(
    "number", [RAFT_PARTITION, KEY_VALUE_PARTITION, CONTROL_PARTITION, 1 << 52, -1]
)
def test_internal_partition_is_no_namespace(number: int) -> None:
    with pytest.raises(errors.MalformedFrame, match="upper 12 bits are 0"):
        split_namespace(number)


@given(STREAMS, TOPICS)
def test_partition_0_goes_through_the_hash_as_8_bytes(stream: int, topic: int) -> None:
    namespace = pack_namespace(stream, topic, 0)
    assert slot_of_partition(namespace) == xxh64(namespace.to_bytes(8, "big"), 42) >> 50


def test_braces_in_a_namespace_are_no_tag() -> None:
    namespace = pack_namespace(0x07B41, 0x7D0, 0)
    raw = namespace_to_bytes(namespace)
    assert tag_of(raw) == b"A"
    assert slot_of_partition(namespace) != slot_of_key(raw)


@given(STREAMS, TOPICS, st.integers(1, 100), st.integers(0, 10))
def test_partitions_of_a_topic_spread_evenly(
    stream: int, topic: int, shards: int, power: int
) -> None:
    """With a power of two of partitions, no shard has two more than its share."""
    table, count = initial_table(shards), 1 << power
    slots = [slot_of_partition(pack_namespace(stream, topic, n)) for n in range(count)]
    per_shard = Counter(map(table.shard_of_slot, slots))
    assert max(per_shard.values()) <= -(-count // shards) + 1


def test_bits_are_reversed_and_repeat_after_14() -> None:
    assert [bit_reverse14(n) for n in (0, 1, 2, 3, 16383)] == [0, 8192, 4096, 12288, 16383]
    assert sorted(map(bit_reverse14, range(limits.slots))) == [*range(limits.slots)]
    assert bit_reverse14(limits.slots + 1) == bit_reverse14(1)


@given(st.integers(0, limits.shard_id_max), st.integers(1, limits.node_id_max))
def test_member_id_holds_shard_and_node(shard: int, node: int) -> None:
    member = member_id(shard, node)
    assert 0 < member < 2**64
    assert member >> 48 == shard
    assert split_member_id(member) == (shard, node)


@pytest.mark.parametrize(
    ("shard", "node", "said"),
    [
        (limits.shards_max, 1, "shard_id_max"),
        (-1, 1, "shard_id_max"),
        (0, 0, "a node id from 1"),
        (0, -1, "node_id_max"),
        (0, limits.node_id_max + 1, "node_id_max"),
    ],
)
def test_member_id_out_of_bounds_is_refused(shard: int, node: int, said: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=said):
        member_id(shard, node)


@given(st.binary(max_size=40), st.integers(1, limits.partitions_max))
def test_message_key_has_a_partition_of_its_topic(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of_key(key, partitions) < partitions


@pytest.mark.parametrize("partitions", [1, 3, 8, 100])
def test_message_keys_spread_evenly_over_partitions(partitions: int) -> None:
    keys = [b"customer-%d" % n for n in range(1_000 * partitions)]
    counts = Counter(partition_of_key(key, partitions) for key in keys)
    assert len(counts) == partitions
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


def test_messages_with_one_tag_share_a_partition() -> None:
    tagged = {partition_of_key(b"{user:1}:%d" % n, 64) for n in range(20)}
    assert tagged == {partition_of_key(b"user:1", 64)}
