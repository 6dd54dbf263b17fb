"""Recording, saving and measuring what clients saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardnode import (
    Conflict,
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    SessionExpired,
    ShardnodeError,
    Unavailable,
)
from shardnode.testing.history import Recorder, load
from shardnode.testing.load_base import longest_gap_s
from tests.testing.histories import put
from tests.testing.register import simulate


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable(), "failed"),
        (DeadlineExceeded(), "failed"),
        (Overloaded(), "failed"),
        (OutcomeUnknown(), "unknown"),
        (SessionExpired(), "unknown"),
        (ShardnodeError(), "unknown"),
        (Conflict(version=7), "conflict"),
    ],
)
def test_only_what_promises_no_effect_counts_as_failed(error: ShardnodeError, status: str) -> None:
    operation = Recorder().begin(1, "cas", b"k", value=b"v")
    operation.ended_with(error)
    assert operation.status == status
    assert operation.seen_version == (7 if status == "conflict" else None)


def test_operation_that_never_ends_is_unknown_and_never_over() -> None:
    operation = Recorder().begin(1, "put", b"k", value=b"v")
    assert operation.status == "unknown"
    assert operation.ended_ns == float("inf")
    operation.unknown()
    assert operation.ended_ns == float("inf")


def test_saved_history_is_loaded_as_it_was(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.operations = simulate(1, 3, 20)
    recorder.begin(1, "put", bytes(range(256)), value=b"\x00\xff").ok(version=3)
    recorder.save(tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == recorder.operations


def test_longest_gap_counts_from_the_first_to_the_last_moment() -> None:
    second = 1_000_000_000
    writes = [put(b"%d" % n, n, (0, n * second)) for n in (2, 3, 5)]
    assert longest_gap_s(writes, 0, second, 6 * second) == 2.0
    assert longest_gap_s(writes, 0, second, 9 * second) == 4.0
    assert longest_gap_s(writes, 1, second, 9 * second) == 8.0
