"""Routing: the envelope alone decides, and a missing shard is never guessed."""

from __future__ import annotations

import pytest

from shardnode.wire import errors
from shardnode.wire.codec import parts_of
from shardnode.wire.frames import PLACE_FOR_ME, Request, build_request, parse_request
from shardnode.wire.kinds import PARTITION_ADDRESSED, SHARD_ADDRESSED, Flag, Kind
from shardnode.wire.placement import (
    PlacementTable,
    initial_table,
    namespace_to_bytes,
    pack_namespace,
    slot_of_key,
    slot_of_partition,
)
from shardnode.wire.requests import REQUESTS
from shardnode.wire.routing import LEGACY_SHARD, entry_shard, owner_shard

TABLE = initial_table(4)


def request(
    kind: int = Kind.GET,
    prefix: int | None = PLACE_FOR_ME,
    routing_key: bytes = b"",
    flags: int = 0,
) -> Request:
    # The body is no msgpack: whoever looked into it would fail.
    message = build_request(kind, b"\xc1", prefix=prefix, routing_key=routing_key, flags=flags)
    return parse_request(message)


KEYS = [b"user:%d" % n for n in range(50)]


@pytest.mark.parametrize("key", KEYS)
def test_placed_request_goes_to_the_owner_of_its_key(key: bytes) -> None:
    assert entry_shard(request(routing_key=key), TABLE) == slot_of_key(key) * 4 >> 14


def test_tag_places_a_request_like_its_key() -> None:
    placed = {owner_shard(request(routing_key=b"{user:1}:%d" % n), TABLE) for n in range(20)}
    assert placed == {TABLE.shard_of_key(b"user:1")}


@pytest.mark.parametrize("partition", range(16))
def test_namespace_goes_to_the_owner_of_its_partition(partition: int) -> None:
    namespace = pack_namespace(1, 2, partition)
    key = namespace_to_bytes(namespace)
    owner = TABLE.shard_of_slot(slot_of_partition(namespace))
    assert entry_shard(request(64, routing_key=key, flags=Flag.NAMESPACE), TABLE) == owner


@pytest.mark.parametrize("key", [b"", b"short", bytes(9), b"\x80" + bytes(7), b"\0\x10" + bytes(6)])
def test_routing_key_that_is_no_namespace_is_refused(key: bytes) -> None:
    with pytest.raises(errors.MalformedFrame, match="a namespace"):
        entry_shard(request(64, routing_key=key, flags=Flag.NAMESPACE), TABLE)


@pytest.mark.parametrize("kind", sorted(PARTITION_ADDRESSED), ids=lambda kind: kind.name)
@pytest.mark.parametrize("key", [b"", bytes(8), b"shop/orders"])
def test_request_about_a_partition_is_not_placed_by_a_key(kind: Kind, key: bytes) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"a namespace and its flag with {kind.name}"):
        entry_shard(request(kind, routing_key=key), TABLE)


def test_kinds_about_partitions_are_those_that_name_them() -> None:
    fields = {kind: {part.name for part in parts_of(cls)} for kind, cls in REQUESTS.items()}
    naming = {kind for kind in Kind if fields[kind] & {"namespace", "namespaces"}}
    assert naming == PARTITION_ADDRESSED
    assert not PARTITION_ADDRESSED & SHARD_ADDRESSED


def test_group_is_coordinated_where_its_name_would_be_stored_as_a_key() -> None:
    shard = entry_shard(request(Kind.GROUP_JOIN, routing_key=b"billing"), TABLE)
    assert shard == TABLE.shard_of_key(b"billing")


@pytest.mark.parametrize("kind", [Kind.TOPIC_CREATE, Kind.MEMBER_ADD, Kind.REBALANCE])
def test_control_goes_to_shard_0(kind: Kind) -> None:
    assert entry_shard(request(kind), TABLE) == 0


def test_prefix_wins_over_the_routing_key() -> None:
    assert {entry_shard(request(prefix=2, routing_key=key), TABLE) for key in KEYS} == {2}


def test_shard_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"below 4, found 4.*epoch 1"):
        entry_shard(request(prefix=4), TABLE)


def test_legacy_request_goes_to_shard_0_which_finds_the_owner() -> None:
    legacy = [request(prefix=None, routing_key=key) for key in KEYS]
    assert {entry_shard(one, TABLE) for one in legacy} == {LEGACY_SHARD}
    assert {owner_shard(one, TABLE) for one in legacy} == {0, 1, 2, 3}


def test_request_without_a_key_goes_to_shard_0() -> None:
    assert entry_shard(request(Kind.TOPOLOGY), TABLE) == LEGACY_SHARD


@pytest.mark.parametrize("kind", sorted(SHARD_ADDRESSED), ids=lambda kind: kind.name)
@pytest.mark.parametrize("prefix", [PLACE_FOR_ME, None])
def test_request_about_a_whole_shard_is_never_guessed(kind: Kind, prefix: int | None) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"{kind.name}.*each of the 4 shards"):
        owner_shard(request(kind, prefix), TABLE)
    assert owner_shard(request(kind, prefix), initial_table(1)) == 0
    drained = PlacementTable(9, 4, bytes([2]) * 16384)
    assert owner_shard(request(kind, prefix), drained) == 2
