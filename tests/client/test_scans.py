"""Scans: all shards, in order, nothing left out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode import Client, DeadlineExceeded, Unavailable
from shardnode.client.many import column, cuts, groups_of
from shardnode.client.scans import Scan
from shardnode.wire import limits
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import initial_table
from shardnode.wire.replies import Page
from shardnode.wire.requests import Scan as Asked
from tests.client.fake import FakeNode
from tests.client.fake_shard import FakeShard

KEYS = [b"key-%03d" % number for number in range(300)]


def fill(node: FakeNode, db: Client, page_entries: int = 7) -> None:
    db.put_many({key: key[::-1] for key in KEYS})
    for shard in node.shards:
        shard.page_entries = page_entries


def test_all_shards_are_merged_in_order_page_by_page(node: FakeNode, db: Client) -> None:
    fill(node, db)
    assert [(e.key, e.value) for e in db.scan()] == [(key, key[::-1]) for key in KEYS]
    assert [e.key for e in db.scan(reverse=True)] == KEYS[::-1]
    assert node.kinds_seen().count(Kind.SCAN) > 2 * len(KEYS) // 7


def test_limit_counts_over_all_shards(node: FakeNode, db: Client) -> None:
    fill(node, db)
    for limit in (0, 1, 6, 7, 8, 100, 299, 300, 1000):
        assert [e.key for e in db.scan(limit=limit)] == KEYS[:limit]


def test_range_and_prefix_narrow_each_other(node: FakeNode, db: Client) -> None:
    fill(node, db)
    found = [e.key for e in db.scan(prefix=b"key-1", start=b"key-150", end=b"key-152")]
    assert found == [b"key-150", b"key-151"]
    assert [e.key for e in db.scan(prefix="key-29", start=b"a")] == KEYS[290:]
    assert list(db.scan(start=b"z", end=b"a")) == []
    assert [e.key for e in db.scan(prefix="key-29", reverse=True, limit=2)] == [
        KEYS[299],
        KEYS[298],
    ]


def test_keys_alone_come_without_values(node: FakeNode, db: Client) -> None:
    fill(node, db)
    assert {e.value for e in db.scan(keys_only=True)} == {b""}
    assert all(e.version for e in db.scan(keys_only=True))


def test_absent_shard_fails_the_scan_by_its_name(node: FakeNode, db: Client) -> None:
    fill(node, db)
    node.rule("refuse", Unavailable("down"), kind=Kind.SCAN, shard=1)
    with pytest.raises(Unavailable, match="shard 1"):
        list(db.scan(timeout=0.2))


def test_shard_that_falls_silent_in_the_middle_fails_the_scan(node: FakeNode, db: Client) -> None:
    fill(node, db)
    entries = db.scan(timeout=0.2)
    assert next(entries).key == KEYS[0]
    node.rule("drop", kind=Kind.SCAN, shard=0)
    with pytest.raises(DeadlineExceeded, match="shard 0"):
        list(entries)


def test_next_pages_are_asked_for_while_the_caller_is_busy(node: FakeNode, db: Client) -> None:
    fill(node, db, page_entries=100)  # two pages on each shard
    entries = db.scan()
    assert next(entries).key == KEYS[0]
    while node.kinds_seen().count(Kind.SCAN) < 4:
        node.do(lambda: None)
    assert [e.key for e in entries] == KEYS[1:]


def test_scan_that_is_left_early_leaves_nothing_under_way(node: FakeNode, db: Client) -> None:
    fill(node, db)
    for entry in db.scan():
        if entry.key == KEYS[3]:
            break
    del entry
    assert db.get(KEYS[0]) == KEYS[0][::-1]
    assert db._engine is not None
    assert db._engine.core.wake_at() is None


def test_slots_that_move_in_the_middle_lose_no_key(node: FakeNode, db: Client) -> None:
    fill(node, db)
    found = []
    for entry in db.scan():
        found.append(entry.key)
        if len(found) == 50:
            node.move(range(limits.slots // 2), 1)
    assert found == KEYS


@given(
    st.sets(st.binary(min_size=1, max_size=3), max_size=60),
    st.integers(1, 5),
    st.integers(1, 7),
    st.booleans(),
    st.none() | st.integers(0, 70),
    st.randoms(use_true_random=False),
)
def test_merge_gives_what_one_sorted_list_would(
    keys: set[bytes],
    shards: int,
    page_entries: int,
    reverse: bool,
    limit: int | None,
    order: random.Random,
) -> None:
    table = initial_table(shards)
    stores = [FakeShard(number, page_entries=page_entries) for number in range(shards)]
    for key in keys:
        stores[table.shard_of_key(key)].put(key, key, 0)
    scan = Scan(
        prefix=b"",
        start=None,
        end=None,
        limit=limit,
        reverse=reverse,
        keys_only=False,
        consistency="linearizable",
    )
    found = []
    if not scan.over:
        scan.restart(table)
    while not scan.over:
        calls = [*scan.new_calls(), *(call for call in scan.needed())]
        order.shuffle(calls)
        for call in calls:
            assert call.shard is not None
            if not call.done:
                page = stores[call.shard].page(Asked.decode(call.body))
                assert isinstance(page, Page)
                call._value, call.done = (page, 1), True
        found += [entry.key for entry in scan.take()]
    assert found == sorted(keys, reverse=reverse)[:limit]


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=50), st.integers(1, 9))
def test_groups_hold_every_position_once_and_at_the_owner(keys: list[bytes], shards: int) -> None:
    table = initial_table(shards)
    groups = groups_of(keys, table)
    assert sorted(p for positions in groups.values() for p in positions) == list(range(len(keys)))
    for shard, positions in groups.items():
        assert {table.shard_of_key(key) for key in column(keys, positions)} == {shard}


@given(st.lists(st.integers(0, limits.value_bytes_max), min_size=1, max_size=40))
def test_cuts_cover_everything_in_order_and_fit(sizes: list[int]) -> None:
    slices = list(cuts(sizes))
    assert [size for cut in slices for size in sizes[cut]] == sizes
    assert all(sum(sizes[cut]) <= limits.body_bytes_max for cut in slices)
    assert all(sizes[cut] for cut in slices)


def test_cuts_hold_no_more_keys_than_a_batch_may() -> None:
    sizes = [10] * (2 * limits.batch_keys_max + 1)
    assert [len(sizes[cut]) for cut in cuts(sizes)] == [limits.batch_keys_max] * 2 + [1]
