"""Keys expire by entries of the log, wherever the index of their times is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shardnode.shard.effects import Effects
from shardnode.storage.engine import Engine, MemoryEngine
from shardnode.wire.requests import Put, PutMany, Transact
from tests.engine.kit import SMALL, Log, make_engine, parts_of, reopen, restore


def test_expiry_is_the_stamp_and_the_time_to_live(log: Log) -> None:
    log.do(Put(b"k", b"v", 500))
    assert log.machine.get(b"k") == (b"v", 1, 1_500)
    assert log.machine.due(1_499, 10) == ([], [])
    assert log.machine.due(1_500, 10) == ([b"k"], [1])


def test_no_read_hides_a_key_that_is_due(log: Log) -> None:
    log.do(Put(b"k", b"v", 500))
    log.stamp_ms = 99_999
    log.do(Put(b"other", b"v"))
    assert log.machine.get(b"k") is not None
    assert log.expire_keys() == 1
    assert log.machine.get(b"k") is None
    assert log.machine.due(log.stamp_ms, 10) == ([], [])


def test_key_written_again_is_not_due_at_its_old_time(log: Log) -> None:
    for flush in (False, True):
        log.do(PutMany([b"a", b"b"], [b"", b""], ttl_ms=500))
        if flush:
            log.machine.flush(b"")
        log.do(Put(b"a", b""))
        log.do(Put(b"b", b"", 1_000))
        assert log.machine.due(log.stamp_ms + 999, 10) == ([], [])
        assert log.machine.due(log.stamp_ms + 1_000, 10)[0] == [b"b"]


def test_transaction_sets_times_to_live(log: Log) -> None:
    ask = Transact(b"", [], [], b"\x01\x01", [b"a", b"b"], [b"", b""], [10, 0], b"", [], [], [])
    log.do(ask)
    assert log.machine.due(9_999, 10) == ([b"a"], [1])


def test_due_keys_are_found_after_flush_restart_and_restore(
    kind: str, tmp_path: Path, new_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(kind, tmp_path / "kv")
    log = Log(Effects(engine))
    for number in range(20):
        log.do(PutMany([b"%d" % number, b"x%d" % number], [b"", b""], ttl_ms=100 + number))
    log.machine.flush(b"")
    engine = reopen(engine, tmp_path / "kv")
    log.machines = [Effects(engine)]
    other = Effects(new_engine())
    restore(other, 20, parts_of(log.machine))
    for machine in (log.machine, other):
        assert machine.due(1_104, 100)[0] == sorted(
            [b"%s%d" % (x, n) for n in range(5) for x in (b"", b"x")],
            key=lambda key: (int(key.strip(b"x")), key),
        )
    log.machines.append(other)
    log.stamp_ms = 1_150
    for machine in log.machines:
        machine.flush(b"again")
    while log.expire_keys(limit=3):
        for machine in log.machines:
            machine.flush(b"")
    assert log.machine.due(9_999, 100) == other.due(9_999, 100) == ([], [])
    assert parts_of(log.machine) == parts_of(other)
    engine.close()


def test_rows_that_are_done_are_removed_from_the_store(log: Log) -> None:
    for number in range(50):
        log.do(Put(b"%d" % number, b"", 100))
    log.machine.flush(b"")
    log.stamp_ms = 2_000
    while log.expire_keys(limit=7):
        pass
    log.machine.flush(b"")
    log.machine.due(log.stamp_ms, 100)
    log.do(Put(b"k", b""))
    log.machine.flush(b"")
    assert log.machine.engine._store.times(b"", b"\xff", 100) == []  # type: ignore[attr-defined]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 30)),
            st.tuples(
                st.sampled_from(["flush", "begin", "slice", "sweep"]), st.just(0), st.just(0)
            ),
        ),
        max_size=40,
    )
)
def test_every_key_is_due_at_its_time_and_only_then(steps: list[tuple[str, int, int]]) -> None:
    log = Log(Effects(MemoryEngine(SMALL)))
    expected: dict[bytes, int] = {}
    for what, number, ttl_ms in steps:
        machine, key = log.machine, b"%d" % number
        log.stamp_ms += 5
        if what == "put":
            log.do(Put(key, b"", ttl_ms))
            expected[key] = log.stamp_ms + ttl_ms if ttl_ms else 1 << 60
        elif what == "flush":
            machine.flush(b"")
        elif what == "begin" and not machine.flushing:
            machine.begin_flush(b"")
        elif what == "slice" and machine.flushing:
            machine.flush_slice(1)
        elif what == "sweep":
            log.expire_keys(limit=2)
            for key in [key for key in expected if machine.get(key) is None]:
                assert expected.pop(key) <= log.stamp_ms
        due = {key for key, expires_ms in expected.items() if expires_ms <= log.stamp_ms}
        assert set(machine.due(log.stamp_ms, 100)[0]) == due
