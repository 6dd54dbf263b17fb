"""What a watcher sees, and when it is told that it came too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.shard.effects import Effects
from shardnode.shard.keyvalue import KeyValue
from shardnode.storage.engine import MemoryEngine
from shardnode.wire.cursors import position_of, split_position
from shardnode.wire.errors import Compacted
from shardnode.wire.kinds import ChangeKind, Compare, Operation
from shardnode.wire.requests import (
    DeleteMany,
    Put,
    PutMany,
    SessionClose,
    SessionOpen,
    Transact,
    Watch,
)
from tests.engine.kit import ALICE, Log


def memory_log(recent_bytes_max: int = 1 << 20) -> Log:
    effects = Effects(MemoryEngine())
    effects.keyvalue = KeyValue(effects.engine, recent_bytes_max)
    return Log(effects)


def test_changes_come_in_order_with_their_kinds() -> None:
    log = memory_log()
    log.do(PutMany([b"a", b"b"], [b"1", b"2"], ttl_ms=10))
    log.do(DeleteMany([b"none", b"b"]))
    log.stamp_ms = 5_000
    log.expire_keys()
    ask = Transact(
        bytes([Compare.VERSION_EQUAL]),
        [b"x"],
        [0],
        bytes([Operation.PUT, Operation.GET, Operation.DELETE]),
        [b"c", b"d", b"e"],
        [b"3", None, None],
        [0, 0, 0],
        b"",
        [],
        [],
        [],
    )
    log.do(ask)
    seen = log.machine.changes(Watch(after=0))
    put, delete, expire = ChangeKind.PUT, ChangeKind.DELETE, ChangeKind.EXPIRE
    assert list(seen.kinds) == [put, put, delete, expire, put]
    assert seen.keys == [b"a", b"b", b"b", b"a", b"c"]
    assert seen.values == [b"1", b"2", None, None, b"3"]
    assert seen.versions == [1, 1, 2, 3, 4]
    assert [bool(each) for each in seen.expires_at_ms] == [True, True, False, False, False]
    assert [split_position(each) for each in seen.positions] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
        (4, 0),
    ]
    assert seen.next == position_of(4)


def test_leased_keys_of_a_closed_session_are_deletions() -> None:
    log = memory_log()
    log.do(SessionOpen(5_000), ALICE)
    log.do(PutMany([b"b", b"a"], [b"", b""], leased=True), ALICE, sequence=1)
    log.do(SessionClose(), ALICE)
    seen = log.machine.changes(Watch(after=position_of(2)))
    assert (list(seen.kinds), seen.keys) == ([ChangeKind.DELETE] * 2, [b"a", b"b"])


def test_none_asks_for_the_position_of_now() -> None:
    log = memory_log()
    log.do(Put(b"k", b"v"))
    seen = log.machine.changes(Watch())
    assert (seen.keys, seen.next) == ([], position_of(1))


def test_cursor_from_the_future_stays() -> None:
    log = memory_log()
    log.do(Put(b"k", b"v"))
    assert log.machine.changes(Watch(after=position_of(9))).next == position_of(9)


def test_what_fell_out_is_compacted_and_names_what_is_there() -> None:
    log = memory_log(recent_bytes_max=2_000)
    for number in range(20):
        log.do(PutMany([b"k%d" % number, b"l"], [bytes(100), b""]))
    first = log.machine.keyvalue.recent.first_available
    assert 1 < first < 20
    with pytest.raises(Compacted) as compacted:
        log.machine.changes(Watch(after=position_of(first - 1, 0)))
    assert compacted.value.first_available == first
    # Whoever has seen the last change that fell out has missed nothing.
    seen = log.machine.changes(Watch(after=position_of(first - 1, 1)))
    assert seen.versions[0] == first


def test_after_a_restart_history_begins_where_redo_begins() -> None:
    log = memory_log()
    log.do(Put(b"a", b""))
    log.machine.flush(b"")
    log.do(Put(b"b", b""))
    engine = log.machine.engine
    assert isinstance(engine, MemoryEngine)
    engine.crash()
    machine = Effects(engine)
    machine.apply(log.entries[1:])
    with pytest.raises(Compacted) as compacted:
        machine.changes(Watch(after=position_of(1, 0)))
    assert compacted.value.first_available == 2
    assert machine.changes(Watch(after=position_of(1))).keys == [b"b"]


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"ab", b"b", b"ba"]), max_size=4, unique=True)),
    st.integers(1, 5),
    st.integers(1, 9),
    st.sampled_from([b"", b"a", b"b", b"zz"]),
)
def test_pages_of_any_size_give_every_change_once(
    batches: list[list[bytes]], limit: int, page_bytes: int, prefix: bytes
) -> None:
    log = memory_log()
    expected = []
    for keys in batches:
        if keys:
            log.do(PutMany(keys, keys))
            version = len(log.entries)
            expected += [(key, version) for key in keys if key.startswith(prefix)]
    seen, after = [], 0
    while True:
        page = log.machine.changes(
            Watch(prefix=prefix, after=after, limit=limit, page_bytes=page_bytes)
        )
        page.encode()
        assert len(page.keys) <= limit
        seen += list(zip(page.keys, page.versions, strict=True))
        if not page.keys:
            assert page.next >= after
            break
        assert page.next >= page.positions[-1]
        # Going on after any change gives the one behind it.
        middle = page.positions[len(page.keys) // 2]
        rest = log.machine.changes(Watch(prefix=prefix, after=middle))
        assert (
            rest.keys[:1]
            == [k for k, _ in expected[len(seen) - len(page.keys) :]][len(page.keys) // 2 + 1 :][:1]
        )
        after = page.next
    assert seen == expected
