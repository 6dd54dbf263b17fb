"""The judge of histories is judged: right ones pass, and each kind of wrong one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.sim.history import Model, Operation, check
from shardnode.sim.machine import KV_PARTITION, pack_command, pack_entry
from shardnode.sim.world import SimFailure, World

OPEN = pack_command("open", 7)


def put(sequence: int, value: bytes, acked_below: int = 0) -> bytes:
    return pack_command("put", 7, sequence, acked_below, b"k", value)


def log(*commands: bytes) -> dict[int, Entry]:
    """A committed log that begins with the no-op of a leader."""
    entries = {1: Entry(1, 1, RAFT_PARTITION, 1, b"")}
    for index, command in enumerate(commands, 2):
        entries[index] = Entry(index, 1, KV_PARTITION, index - 1, pack_entry(index, command))
    return entries


COMMITTED = log(OPEN, put(1, b"one"), put(2, b"two"), put(2, b"two"))
FIRST = Operation(7, 1, "put", b"k", b"one", 0, begun=10, ended=20, status="ok", index=3)
SECOND = Operation(7, 2, "put", b"k", b"two", 0, begun=30, ended=40, status="ok", index=4)
READ = Operation(7, 0, "get", b"k", b"", 0, begun=50, ended=60, index=4, seen=b"two")
EARLY_READ = replace(READ, begun=22, ended=28, index=3, seen=b"one")


def judge(*operations: Operation) -> Model:
    return check(World(0, None), operations, COMMITTED)


def test_right_history_passes_and_a_repeat_in_the_log_has_no_second_effect() -> None:
    model = judge(FIRST, EARLY_READ, SECOND, READ)
    assert model.data == {b"k": (b"two", 4)}
    assert model.effects == {(7, 1): ("ok", 3), (7, 2): ("ok", 4)}


def test_operation_of_unknown_outcome_may_be_in_the_log_or_not() -> None:
    judge(FIRST, replace(SECOND, ended=None, status="", index=0))
    judge(FIRST, replace(SECOND, sequence=9, ended=None, status="", index=0))


@pytest.mark.parametrize(
    ("why", "operations"),
    [
        ("not in the log", [FIRST, replace(SECOND, sequence=3)]),
        ("was answered", [FIRST, replace(SECOND, index=5)]),
        ("was answered", [FIRST, replace(SECOND, status="conflict")]),
        ("saw", [FIRST, SECOND, replace(READ, seen=b"one")]),
        ("saw", [FIRST, SECOND, replace(READ, seen=None)]),
        ("had ended before", [FIRST, SECOND, replace(READ, index=3, seen=b"one")]),
        ("had ended before", [replace(FIRST, begun=45, ended=48), SECOND]),
        ("had ended before", [FIRST, SECOND, READ, replace(EARLY_READ, begun=70, ended=80)]),
    ],
)
def test_wrong_history_is_refused(why: str, operations: list[Operation]) -> None:
    with pytest.raises(SimFailure, match=why):
        judge(*operations)


def test_write_of_an_ended_session_has_no_effect_in_the_model() -> None:
    ended = log(OPEN, pack_command("expire", expected=100), put(1, b"late"), OPEN)
    model = Model(ended)
    assert model.data == {}
    assert model.sessions == set()
