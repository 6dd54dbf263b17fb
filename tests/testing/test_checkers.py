"""The judges: what is right passes both, what is wrong is found by the one that must see it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.testing.checkers import check_by_index
from shardnode.testing.checkers_search import check_by_search
from shardnode.testing.history import Operation
from tests.testing.histories import (
    cas,
    conflict,
    delete,
    failed,
    get,
    nothing,
    plain_delete,
    put,
    swap,
    unknown,
)
from tests.testing.register import histories

A, B, C = b"a", b"b", b"c"

GOOD: dict[str, Sequence[Operation]] = {
    "nothing at all": [],
    "one after another": [
        put(A, 1, (0, 1)),
        get(A, 1, (2, 3)),
        cas(B, (A, 1), 2, (4, 5)),
        conflict(C, (A, 1), 2, (6, 7)),
        delete(2, 4, (8, 9)),
        nothing((10, 11)),
    ],
    "overlapping reads see either": [
        put(A, 1, (0, 1)),
        put(B, 2, (2, 9)),
        get(B, 2, (3, 4)),
        get(A, 1, (3, 4)),
    ],
    "answers come in another order than entries": [
        put(A, 2, (0, 5)),
        put(B, 1, (0, 9)),
        get(A, 2, (10, 11)),
    ],
    "an unknown write that took effect": [
        put(A, 1, (0, 1)),
        unknown(put(B, 2, (2, 3))),
        get(A, 1, (4, 5)),
        get(B, 2, (6, 7)),
    ],
    "an unknown write that never did": [unknown(put(A, 1, (0, 1))), nothing((2, 3))],
    "an unknown write that is found, never read": [
        unknown(put(A, 1, (0, 1))),
        conflict(B, (None, 0), 1, (2, 3)),
    ],
    "an unknown delete that took effect": [
        put(A, 1, (0, 1)),
        unknown(delete(1, 2, (2, 3))),
        get(A, 1, (4, 5)),
        nothing((6, 7)),
        cas(B, (None, 0), 3, (8, 9)),
    ],
    "an unknown cas that took effect": [
        put(A, 1, (0, 1)),
        unknown(cas(B, (A, 1), 2, (2, 3))),
        swap(C, 2, 3, (4, 5)),
    ],
    "a refused write that did not": [
        put(A, 1, (0, 1)),
        failed(put(B, 2, (2, 3))),
        get(A, 1, (4, 5)),
    ],
    "plain deletes": [
        plain_delete(False, (0, 1)),
        put(A, 2, (2, 3)),
        plain_delete(True, (4, 5)),
        nothing((6, 7)),
        put(B, 5, (8, 9)),
        get(B, 5, (10, 11)),
    ],
    "a chain of swaps": [
        swap(A, 0, 1, (0, 5)),
        swap(C, 2, 3, (0, 9)),
        swap(B, 1, 2, (0, 7)),
        get(C, 3, (10, 11)),
    ],
    "two keys": [
        put(A, 1, (0, 1), b"one"),
        put(B, 2, (0, 1), b"two"),
        get(A, 1, (2, 3), b"one"),
        nothing((2, 3), b"three"),
    ],
    "three writes at once, read in the order of the log": [
        put(A, 1, (0, 20)),
        put(B, 2, (0, 20)),
        put(C, 3, (0, 20)),
        get(A, 1, (1, 2)),
        get(B, 2, (3, 4)),
        get(C, 3, (5, 6)),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_history_passes_both(name: str) -> None:
    assert check_by_index(GOOD[name]) == []
    assert check_by_search(GOOD[name]) == []


BOTH, INDEX, SEARCH = "both", "index", "search"

BAD: dict[str, tuple[str, str, Sequence[Operation]]] = {
    "stale read": (
        BOTH,
        "order",
        [put(A, 1, (0, 1)), put(B, 2, (2, 3)), get(A, 1, (4, 5))],
    ),
    "lost write": (BOTH, "order", [put(A, 1, (0, 1)), nothing((2, 3))]),
    "lost write, the one before is back": (
        BOTH,
        "order",
        [put(A, 1, (0, 1)), cas(B, (A, 1), 2, (2, 3)), get(A, 1, (8, 9))],
    ),
    "swap that took effect twice, seen by a value": (
        BOTH,
        "twice",
        [swap(A, 0, 1, (0, 1)), swap(B, 1, 2, (2, 3)), swap(C, 3, 4, (4, 5), seen=A)],
    ),
    "swap that took effect twice, seen by a version": (
        INDEX,
        "nowhere",
        [swap(A, 0, 1, (0, 1)), swap(B, 1, 2, (2, 3)), swap(C, 3, 4, (4, 5))],
    ),
    "put that took effect twice": (
        BOTH,
        "twice",
        [put(A, 1, (0, 1)), put(B, 2, (2, 3)), get(A, 3, (4, 5))],
    ),
    "unknown put that took effect twice": (
        BOTH,
        "twice",
        [
            unknown(put(A, 1, (0, 1))),
            get(A, 1, (2, 3)),
            put(B, 2, (4, 5)),
            get(B, 2, (6, 7)),
            get(A, 3, (8, 9)),
        ],
    ),
    "value from nowhere": (BOTH, "nowhere", [put(A, 1, (0, 1)), get(B, 1, (2, 3))]),
    "value of another key": (
        BOTH,
        "nowhere",
        [put(A, 1, (0, 1), b"other"), put(B, 2, (0, 1)), get(A, 1, (2, 3))],
    ),
    "version from nowhere": (
        INDEX,
        "nowhere",
        [put(A, 1, (0, 1)), conflict(B, (A, 1), 7, (2, 3)), put(C, 8, (2, 3))],
    ),
    "reads that go back": (
        BOTH,
        "order",
        [
            put(A, 1, (0, 20)),
            put(B, 2, (0, 20)),
            get(A, 1, (1, 2)),
            get(B, 2, (3, 4)),
            get(A, 1, (5, 6)),
        ],
    ),
    "reads against the order of the log": (
        INDEX,
        "order",
        [put(A, 1, (0, 20)), put(B, 2, (0, 20)), get(B, 2, (3, 4)), get(A, 1, (5, 6))],
    ),
    "cas that expected something else": (
        BOTH,
        "answer",
        [put(A, 1, (0, 1)), put(B, 2, (2, 3)), cas(C, (A, 1), 3, (4, 5))],
    ),
    "two cas that win over one version": (
        BOTH,
        "answer",
        [put(A, 1, (0, 1)), cas(B, (A, 1), 2, (2, 9)), cas(C, (A, 1), 3, (2, 9))],
    ),
    "cas that was refused although it was right": (
        BOTH,
        "answer",
        [put(A, 1, (0, 1)), conflict(B, (A, 1), 1, (2, 3))],
    ),
    "two swaps that saw one value": (
        BOTH,
        "answer",
        [put(A, 1, (0, 1)), swap(B, 1, 2, (2, 9)), swap(C, 1, 3, (2, 9))],
    ),
    "refused write that took effect": (
        BOTH,
        "refused",
        [failed(put(A, 1, (0, 1))), get(A, 1, (2, 3))],
    ),
    "cas that took effect although it said conflict": (
        BOTH,
        "refused",
        [put(A, 1, (0, 1)), conflict(B, (C, 9), 1, (2, 3)), get(B, 2, (4, 5))],
    ),
    "read of the future": (BOTH, "future", [get(A, 1, (0, 1)), put(A, 1, (2, 3))]),
    "version given twice": (
        INDEX,
        "version",
        [put(A, 1, (0, 1), b"one"), put(B, 1, (0, 1), b"two")],
    ),
    "writes against real time": (INDEX, "order", [put(A, 2, (0, 1)), put(B, 1, (2, 3))]),
    "writes to two keys against real time": (
        INDEX,
        "order",
        [put(A, 2, (0, 1), b"one"), put(B, 1, (2, 3), b"two")],
    ),
    "unknown write against real time": (
        INDEX,
        "order",
        [
            put(A, 5, (0, 1), b"other"),
            unknown(put(B, 4, (2, 3))),
            get(B, 4, (4, 5)),
        ],
    ),
    "delete undone": (
        BOTH,
        "order",
        [put(A, 1, (0, 1)), delete(1, 2, (2, 3)), get(A, 1, (4, 5))],
    ),
    "plain delete undone": (
        SEARCH,
        "",
        [put(A, 1, (0, 1)), plain_delete(True, (2, 3)), get(A, 1, (4, 5))],
    ),
    "plain delete that found nothing": (
        BOTH,
        "order",
        [put(A, 1, (0, 1)), plain_delete(False, (2, 3))],
    ),
    "delete that found an old version": (
        BOTH,
        "answer",
        [put(A, 1, (0, 1)), put(B, 2, (2, 3)), delete(1, 3, (4, 5)), nothing((6, 7))],
    ),
    "unknown write that comes and goes": (
        BOTH,
        "order",
        [
            put(A, 1, (0, 1)),
            unknown(put(B, 2, (2, 3))),
            get(B, 2, (4, 5)),
            get(A, 1, (6, 7)),
        ],
    ),
    "key that flickers after an unknown delete": (
        SEARCH,
        "",
        [
            put(A, 1, (0, 1)),
            unknown(delete(1, 2, (2, 3))),
            nothing((4, 5)),
            get(A, 1, (6, 7)),
        ],
    ),
    "two copies of the data": (
        BOTH,
        "order",
        [
            put(A, 1, (0, 1)),
            put(B, 2, (2, 3)),
            get(B, 2, (4, 5)),
            get(A, 1, (6, 7)),
            get(B, 2, (8, 9)),
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_history_is_found(name: str) -> None:
    judge, rule, history = BAD[name]
    if judge != SEARCH:
        assert rule in {finding.rule for finding in check_by_index(history)}
    if judge != INDEX:
        assert {finding.rule for finding in check_by_search(history)} == {"search"}


def test_entries_may_be_shared_by_keys_when_that_is_said() -> None:
    history = [put(A, 1, (0, 1), b"one"), put(B, 1, (0, 1), b"two")]
    assert check_by_index(history, shared_entries=True) == []
    history = [put(A, 1, (0, 1)), put(B, 1, (0, 1))]
    assert [f.rule for f in check_by_index(history, shared_entries=True)] == ["version"]


def test_shards_have_logs_of_their_own() -> None:
    history = [put(A, 5, (0, 1), b"one"), put(B, 1, (2, 3), b"two")]
    history[1].shard = 1
    assert check_by_index(history) == []


def test_finding_tells_what_happened_around_it() -> None:
    _, _, history = BAD["stale read"]
    [finding] = check_by_search(history)
    assert "no order explains" in str(finding)
    assert "b'b'" in str(finding)


def test_search_that_takes_too_long_gives_no_verdict() -> None:
    history = [put(b"%d" % n, n + 1, (0, 100)) for n in range(12)]
    history.append(get(b"11", 12, (1, 2)))
    assert [f.rule for f in check_by_search(history, budget=5)] == ["undecided"]


@settings(max_examples=400)
@given(histories())
def test_histories_of_a_real_register_pass_both(history: list[Operation]) -> None:
    assert check_by_index(history) == []
    assert check_by_search(history) == []


@given(histories(), st.data())
def test_read_of_a_value_that_was_overwritten_before_it_began_is_found(
    history: list[Operation], data: st.DataObject
) -> None:
    end = max((o.returned_ns or 0 for o in history), default=0)
    acknowledged = [o for o in history if o.status == "ok" and o.version and o.kind == "put"]
    if not acknowledged:
        return
    victim = data.draw(st.sampled_from(acknowledged))
    assert victim.version is not None
    assert victim.value is not None
    last = 1 + max(o.version or o.seen_version or 0 for o in history)
    late = [
        put(b"new", last, (end + 1, end + 2), victim.key),
        get(victim.value, victim.version, (end + 3, end + 4), victim.key),
    ]
    assert "order" in {finding.rule for finding in check_by_index([*history, *late])}
    assert "search" in {finding.rule for finding in check_by_search([*history, *late])}
