"""Replicas agree, whenever each of them flushes, crashes or starts from a snapshot."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.raft import Membership, Role
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.control import Wish, encode_control
from shardnode.shard.effects import REDO_BYTES_MAX, Effects
from shardnode.shard.entries import CONTROL_SET, EXPIRE_SESSIONS, encode_entry
from shardnode.shard.replica import Fate, Replica, Request
from shardnode.sim.disk import SimFiles
from shardnode.storage.engine import Engine, MemoryEngine
from shardnode.storage.errors import SnapshotCorrupt
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.kinds import Kind, Operation
from shardnode.wire.placement import CONTROL_PARTITION, KEY_VALUE_PARTITION, initial_table
from shardnode.wire.requests import (
    Cas,
    DeleteMany,
    Put,
    PutMany,
    SessionClose,
    SessionOpen,
    Transact,
)
from tests.engine.kit import SMALL, Log, make_engine, parts_of, redo, reopen, restore


def random_step(log: Log, rng: random.Random) -> None:
    """Something that a client or the leader might do, sensible or not."""
    keys = [b"%d" % number for number in rng.sample(range(30), rng.randint(1, 5))]
    values = [rng.randbytes(rng.randint(0, 40)) for _ in keys]
    client = bytes([rng.randint(0, 9)]) * 16
    sequence, ttl_ms, leased = rng.randint(1, 40), rng.choice((0, 0, 20)), rng.random() < 0.3
    operations = bytes(rng.choice((1, 2, 3)) for _ in keys)
    is_put = [kind == Operation.PUT for kind in operations]
    bodies = [
        Put(keys[0], values[0], ttl_ms, leased),
        PutMany(keys, values, ttl_ms, leased),
        DeleteMany(keys),
        Cas(keys[0], values[0], rng.randint(0, len(log.entries)), ttl_ms, leased),
        SessionOpen(1_000),
        Transact(
            b"\x03",
            [keys[0]],
            [rng.randint(0, len(log.entries))],
            operations,
            keys,
            [v if put else None for v, put in zip(values, is_put, strict=True)],
            [ttl_ms if put else 0 for put in is_put],
            b"",
            [],
            [],
            [],
        ),
    ]
    log.stamp_ms += rng.randint(0, 8)
    choice = rng.randint(0, 9)
    if choice == 0:
        log.expire_keys(limit=4)
    elif choice == 1 and rng.random() < 0.2:
        log.expire_sessions(forget_before=log.stamp_ms - 2_000)
    elif choice == 2 and rng.random() < 0.1:
        body = encode_control(initial_table(4, rng.randint(1, 9)), Wish(1, {1: "tcp://a"}))
        payload = encode_entry(log.stamp_ms, CONTROL_SET, body)
        log.apply(log.append(payload, CONTROL_PARTITION))
    else:
        ask = SessionClose() if rng.random() < 0.02 else rng.choice(bodies)
        with suppress(ShardnodeError):
            log.do(ask, client, sequence=sequence, acked_below=max(0, sequence - 20))


def test_flush_times_make_no_difference(new_engine: Callable[..., Engine]) -> None:
    rng = random.Random(7)
    eager, sliced, lazy = (Effects(new_engine()) for _ in range(3))
    log = Log(eager, sliced, lazy)
    for _ in range(600):
        random_step(log, rng)
        if rng.random() < 0.3:
            eager.flush(b"m")
        if sliced.flushing:
            sliced.flush_slice(2)
        elif sliced.wants_flush:
            sliced.begin_flush(b"m")
        assert eager.digest == sliced.digest == lazy.digest
    assert len(eager.sessions) > 0
    assert eager.table is not None
    assert parts_of(eager) == parts_of(sliced) == parts_of(lazy)


@pytest.mark.parametrize("seed", range(4))
def test_redo_after_a_crash_applies_nothing_twice(kind: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    engine = make_engine(kind, tmp_path / "kv")
    steady, crashing = Effects(MemoryEngine(SMALL)), Effects(engine)
    log = Log(steady, crashing)
    for _ in range(300):
        random_step(log, rng)
        chance = rng.random()
        if crashing.flushing:
            crashing.flush_slice(2)
        elif chance < 0.1:
            crashing.begin_flush(b"m")
        elif chance < 0.15:
            crashing.flush(b"m")
        if rng.random() < 0.05:
            durable = crashing.durable_index
            if isinstance(engine, MemoryEngine) and rng.random() < 0.5:
                engine.crash(power=True)
            else:
                engine = reopen(engine, tmp_path / "kv")
            crashing = Effects(engine)
            assert crashing.applied_index >= durable
            redo(crashing, log.entries)
            log.machines[1] = crashing
        assert crashing.digest == steady.digest
    assert parts_of(crashing) == parts_of(steady)
    engine.close()


def test_restore_gives_an_equal_machine(new_engine: Callable[..., Engine]) -> None:
    rng = random.Random(3)
    log = Log(Effects(new_engine()))
    other = Effects(new_engine())
    for _ in range(50):
        random_step(log, rng)
    redo(other, log.entries[:20])
    other.begin_flush(b"old")
    other.flush_slice(1)
    parts = parts_of(log.machine)
    restore(other, 50, parts)
    assert (other.applied_index, other.durable_index, other.membership) == (50, 50, b"members")
    assert other.partition_indexes == log.machine.partition_indexes
    assert parts_of(other) == parts
    log.machines.append(other)
    for _ in range(50):
        random_step(log, rng)
    assert parts_of(other) == parts_of(log.machine)


def test_snapshot_is_of_the_moment_it_was_asked_for(log: Log) -> None:
    log.do(Put(b"a", b"1"))
    parts = log.machine.snapshot()
    before = parts_of(log.machine)
    log.do(Put(b"a", b"2"))
    log.machine.flush(b"m")
    assert {name: b"".join(chunks) for name, chunks in parts.items()} == before


def test_snapshot_with_another_index_or_parts_is_refused(
    log: Log, new_engine: Callable[..., Engine]
) -> None:
    log.do(Put(b"a", b"1"))
    parts = parts_of(log.machine)
    other = Effects(new_engine())
    with pytest.raises(SnapshotCorrupt):
        restore(other, 2, parts)
    with pytest.raises(SnapshotCorrupt):
        restore(other, 1, {**parts, "keys": parts["keys"][:-1]})
    with pytest.raises(SnapshotCorrupt):
        restore(other, 1, {name: data for name, data in parts.items() if name != "leases"})
    assert other.applied_index == 0
    restore(other, 1, parts)


def test_control_takes_only_newer_tables(log: Log) -> None:
    for epoch, shards in ((2, 4), (2, 3), (1, 2), (3, 5)):
        body = encode_control(initial_table(shards, epoch), Wish(1, {2: "tcp://b", 1: "tcp://a"}))
        payload = encode_entry(log.stamp_ms, CONTROL_SET, body)
        log.apply(log.append(payload, CONTROL_PARTITION))
    assert log.machine.table == initial_table(5, 3)
    assert list(log.machine.control.wish.members.items()) == [(1, "tcp://a"), (2, "tcp://b")]
    bad = encode_entry(log.stamp_ms, CONTROL_SET, b"\x92\xc4\x00\x80")
    assert log.apply(log.append(bad, CONTROL_PARTITION))[:2] == b"\x00\x08"
    wrong = encode_entry(log.stamp_ms, EXPIRE_SESSIONS, b"\x90")
    assert log.apply(log.append(wrong, CONTROL_PARTITION))[:2] == b"\x00\x08"


def test_control_survives_flush_and_reopening(kind: str, tmp_path: Path) -> None:
    engine = make_engine(kind, tmp_path / "kv")
    log = Log(Effects(engine))
    body = encode_control(initial_table(4), Wish(1, {1: "tcp://a"}))
    log.apply(log.append(encode_entry(1, CONTROL_SET, body), CONTROL_PARTITION))
    log.machine.flush(b"who")
    machine = Effects(reopen(engine, tmp_path / "kv"))
    assert (machine.table, machine.membership) == (initial_table(4), b"who")
    assert machine.control.wish.members == {1: "tcp://a"}
    assert machine.partition_indexes == {CONTROL_PARTITION: 1}
    machine.close()


def test_replica_drives_it_through_snapshots_and_crashes(kind: str, tmp_path: Path) -> None:
    files, engine = SimFiles(random.Random(1)), make_engine(kind, tmp_path / "kv")
    replica_settings = ReplicaSettings(
        directory="shard-0",
        cluster=1,
        member=1,
        bootstrap=Membership.of([1]),
        flush_every_entries=5,
        snapshot_every_entries=11,
        keep_entries=2,
    )
    now_ms = 0
    for life in range(4):
        machine = Effects(engine)
        assert life == 0 or machine.applied_index > 0
        replica = Replica(
            replica_settings,
            files=files,
            machine=machine,
            rng=random.Random(life),
            now_ms=now_ms,
            send=lambda _: None,
        )
        while replica.raft.role is not Role.LEADER:
            now_ms += 100
            replica.tick(now_ms)
            replica.pump()
        for number in range(10):
            body = Put(b"%d.%d" % (life, number), b"v").encode()
            payload = encode_entry(now_ms, Kind.PUT, body)
            replica.propose([Request(number, KEY_VALUE_PARTITION, payload)])
            replica.pump()
        for earlier in range(life + 1):
            assert machine.get_many([b"%d.%d" % (earlier, n) for n in range(10)]) == [b"v"] * 10
        assert {outcome.fate for outcome in replica.outcomes} == {Fate.APPLIED}
        files.crash()
        engine = reopen(engine, tmp_path / "kv")
        now_ms += 10_000
    engine.close()


@given(st.integers(0, 1 << 32))
@settings(max_examples=15)
def test_any_history_gives_equal_replicas(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(Effects(MemoryEngine(SMALL)), Effects(MemoryEngine(SMALL)))
    for _ in range(60):
        random_step(log, rng)
        if rng.random() < 0.2:
            log.machines[1].flush(b"m")
    late = Effects(MemoryEngine(SMALL))
    late.apply(log.entries)
    assert parts_of(late) == parts_of(log.machines[1]) == parts_of(log.machines[0])


def test_full_second_table_makes_slices_larger_and_waits_for_the_commit(
    kind: str, tmp_path: Path
) -> None:
    log = Log(Effects(make_engine(kind, tmp_path / "kv", replace(SMALL, table_bytes=100_000))))
    machine = log.machine

    def fill_table(name: bytes) -> None:
        while not machine.engine.wants_flush:
            log.do(Put(b"%s%d" % (name, len(log.entries)), bytes(50)))

    fill_table(b"a")
    index = machine.applied_index
    machine.begin_flush(b"m")
    fill_table(b"b")
    calls = 1
    while (done := machine.flush_slice(32)) is None:
        calls += 1
    assert done == index == machine.engine.index
    assert calls <= 6, "a sort, a slice or two, the times, one commit that is waited for"
    machine.begin_flush(b"m")  # the second one can go on
    machine.close()


def test_large_values_do_not_make_a_long_redo(kind: str, tmp_path: Path) -> None:
    large = replace(SMALL, table_bytes=1 << 40, map_bytes=1 << 28)
    log = Log(Effects(make_engine(kind, tmp_path / "kv", large)))
    machine = log.machine
    redo_bytes, worst = 0, 0
    for number in range(80):
        log.do(PutMany([b"%d" % number], [bytes(2 << 20)]))
        redo_bytes += 2 << 20
        if machine.flushing or machine.wants_flush:
            if not machine.flushing:
                machine.begin_flush(b"m")
                begun = redo_bytes
            if machine.flush_slice() is not None:
                redo_bytes -= begun
        worst = max(worst, redo_bytes)
    assert worst <= REDO_BYTES_MAX
    machine.close()
