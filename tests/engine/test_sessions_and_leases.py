"""A retry never applies twice, and what a session held goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardnode.shard.effects import Effects
from shardnode.shard.keyvalue_leases import LEASED_KEYS_MAX
from shardnode.shard.sessions import REPLIES_MAX
from shardnode.storage.engine import Engine
from shardnode.wire.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    Overloaded,
    SessionExpired,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.requests import (
    Cas,
    DeleteMany,
    Put,
    PutMany,
    SessionClose,
    SessionKeepAlive,
    SessionOpen,
)
from tests.engine.kit import ALICE, BOB, Log, parts_of, restore


def opened(log: Log, client: bytes = ALICE, ttl_ms: int = 5_000) -> None:
    assert log.do(SessionOpen(ttl_ms), client).ttl_ms == ttl_ms


def test_repeat_gets_the_first_reply_and_has_no_effect(log: Log) -> None:
    opened(log)
    body = Put(b"k", b"v").encode()
    first = log.send(Kind.PUT, body, ALICE, sequence=1)
    log.do(Put(b"k", b"other"))
    assert log.send(Kind.PUT, body, ALICE, sequence=1) == first
    assert log.machine.get(b"k") == (b"other", 3, 0)


def test_repeat_of_a_conflict_is_the_same_conflict(log: Log) -> None:
    opened(log)
    body = Cas(b"k", b"v", 9).encode()
    first = log.send(Kind.CAS, body, ALICE, sequence=1)
    log.do(Put(b"k", b"x"))
    assert log.send(Kind.CAS, body, ALICE, sequence=1) == first
    with pytest.raises(Conflict) as conflict:
        log.do(Cas(b"k", b"v", 9), ALICE, sequence=1)
    assert conflict.value.version == 0


def test_outside_a_session_nothing_is_remembered(log: Log) -> None:
    log.do(Put(b"k", b"v"), sequence=1)
    assert log.do(Put(b"k", b"v"), sequence=1).version == 2


def test_unknown_session_is_refused(log: Log) -> None:
    with pytest.raises(SessionExpired):
        log.do(Put(b"k", b"v"), ALICE, sequence=1)
    with pytest.raises(SessionExpired):
        log.do(SessionKeepAlive(), ALICE)
    with pytest.raises(SessionExpired):
        log.do(SessionClose(), ALICE)
    assert log.machine.get(b"k") is None


def test_session_needs_a_client_id(log: Log) -> None:
    for ask in (SessionOpen(5_000), SessionKeepAlive(), SessionClose(), Put(b"k", b"v", 0, True)):
        with pytest.raises(InvalidRequest):
            log.do(ask)


def test_acknowledged_sequence_is_refused_and_too_many_replies_too(log: Log) -> None:
    opened(log)
    log.do(Put(b"k", b"v"), ALICE, sequence=5, acked_below=5)
    with pytest.raises(InvalidRequest):
        log.do(Put(b"k", b"w"), ALICE, sequence=4)
    session = log.machine.sessions
    for sequence in range(6, 5 + REPLIES_MAX):
        session.record(int.from_bytes(ALICE, "big"), sequence, b"", 0, 0)
    with pytest.raises(Overloaded):
        log.do(Put(b"k", b"w"), ALICE, sequence=100_000)
    assert log.machine.get(b"k") == (b"v", 2, 0)


def test_session_lives_for_its_own_time_after_the_last_sign_of_life(log: Log) -> None:
    opened(log, ALICE, 2_000)
    opened(log, BOB, 10_000)
    assert log.machine.sessions.first_deadline() == 3_000
    log.stamp_ms = 2_900
    assert log.do(SessionKeepAlive(), ALICE).ttl_ms == 2_000
    log.stamp_ms = 4_900
    log.expire_sessions()
    log.do(SessionKeepAlive(), ALICE)
    log.stamp_ms = 6_901
    log.expire_sessions()
    with pytest.raises(SessionExpired):
        log.do(SessionKeepAlive(), ALICE)
    with pytest.raises(SessionExpired):
        log.do(SessionOpen(5_000), ALICE)
    log.do(SessionKeepAlive(), BOB)


def test_closing_deletes_leased_keys_and_again_is_harmless(log: Log) -> None:
    opened(log)
    log.do(PutMany([b"a", b"b", b"c", b"d"], [b"1"] * 4, leased=True), ALICE, sequence=1)
    log.do(Put(b"b", b"taken over"))
    log.do(DeleteMany([b"c"]))
    log.do(Put(b"c", b"new"))
    log.do(SessionClose(), ALICE, sequence=2)
    assert log.machine.get_many([b"a", b"b", b"c", b"d"]) == [None, b"taken over", b"new", None]
    log.do(Put(b"a", b"later"))
    log.do(SessionClose(), ALICE, sequence=2)
    assert log.machine.get_many([b"a"]) == [b"later"]


def test_expiry_deletes_leased_keys_of_that_session_alone(log: Log) -> None:
    opened(log, ALICE, 2_000)
    opened(log, BOB, 10_000)
    log.do(Put(b"a", b"1", 0, True), ALICE, sequence=1)
    log.do(Put(b"b", b"1", 0, True), BOB, sequence=1)
    log.do(Cas(b"c", b"1", 0, 0, True), ALICE, sequence=2)
    log.do(Cas(b"c", b"2", log.machine.applied_index, 0, True), BOB, sequence=2)
    log.stamp_ms = 5_000
    log.expire_sessions()
    assert log.machine.get_many([b"a", b"b", b"c"]) == [None, b"1", b"2"]


def test_leases_of_one_session_are_bounded(log: Log) -> None:
    opened(log)
    keys = [b"%05d" % number for number in range(LEASED_KEYS_MAX)]
    log.do(PutMany(keys, keys, leased=True), ALICE, sequence=1)
    log.do(PutMany(keys[:9], keys[:9], leased=True), ALICE, sequence=2)
    with pytest.raises(LimitExceeded):
        log.do(Put(b"more", b"", 0, True), ALICE, sequence=3)
    assert log.machine.get(b"more") is None


def test_sessions_and_leases_survive_a_snapshot(
    log: Log, new_engine: Callable[..., Engine]
) -> None:
    opened(log)
    body = Put(b"leased", b"v", 0, True).encode()
    first = log.send(Kind.PUT, body, ALICE, sequence=1)
    other = Effects(new_engine())
    restore(other, log.machine.applied_index, parts_of(log.machine))
    log.machines.append(other)
    assert log.send(Kind.PUT, body, ALICE, sequence=1) == first
    log.do(SessionClose(), ALICE, sequence=2)
    assert [machine.get(b"leased") for machine in log.machines] == [None, None]
    assert parts_of(log.machines[0]) == parts_of(other)
