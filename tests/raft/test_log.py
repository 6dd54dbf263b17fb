"""The log as the core sees it, against a list that does the same slowly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.raft import Entry
from shardnode.raft.log import RaftLog
from tests.raft.host import MemoryLog
from tests.raft.kit import run_of

NO_LIMIT = 1 << 30
PAYLOAD_BYTES = len(run_of(1, 1)[0].payload)


class CountingLog(MemoryLog):
    """Tells how often entries were read back from it."""

    reads = 0

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        self.reads += 1
        return super().read(first, last, bytes_max)


def persist(log: RaftLog, disk: MemoryLog) -> None:
    disk.append_batch(log.unstable())
    log.persisted(log.last_index, log.last_term)


def whole(log: RaftLog) -> list[Entry]:
    found: list[Entry] = []
    while (first := log.anchor_index + 1 + len(found)) <= log.last_index:
        found += log.read(first, log.last_index, NO_LIMIT, NO_LIMIT)
    return found


def test_log_begins_with_what_is_durable() -> None:
    log = RaftLog(MemoryLog(run_of(1, 1, 1, 2)), NO_LIMIT)
    assert (log.last_index, log.last_term, log.stable) == (3, 2, 3)
    assert log.unstable() == []
    assert [log.term(index) for index in range(5)] == [0, 1, 1, 2, None]


def test_new_entries_are_unstable_until_they_are_persisted() -> None:
    disk = MemoryLog(run_of(1, 1))
    log = RaftLog(disk, NO_LIMIT)
    log.append(run_of(2, 2, 2))
    assert (log.stable, log.unstable()) == (1, list(run_of(2, 2, 2)))
    persist(log, disk)
    assert (log.stable, log.unstable()) == (3, [])


def test_overwritten_entries_are_never_read_back() -> None:
    disk = MemoryLog(run_of(1, 1, 1, 1, 1))
    log = RaftLog(disk, NO_LIMIT)
    log.append(run_of(3, 2))
    assert (log.last_index, log.last_term, log.stable) == (3, 2, 2)
    assert whole(log) == [*run_of(1, 1, 1), *run_of(3, 2)]
    assert log.term(4) is None


def test_late_fsync_of_what_was_overwritten_makes_nothing_stable() -> None:
    log = RaftLog(MemoryLog(run_of(1, 1)), NO_LIMIT)
    log.append(run_of(2, 1, 1))
    log.append(run_of(2, 2, 2))
    log.persisted(3, 1)
    assert log.stable == 1
    log.persisted(3, 2)
    assert log.stable == 3


def test_dropping_what_the_disk_refused_goes_back_to_what_is_durable() -> None:
    log = RaftLog(MemoryLog(run_of(1, 1, 1)), NO_LIMIT)
    log.append(run_of(2, 2, 2, 2))
    log.drop_unstable()
    assert (log.last_index, log.last_term, log.unstable()) == (1, 1, [])


def test_gap_is_refused() -> None:
    log = RaftLog(MemoryLog(run_of(1, 1)), NO_LIMIT)
    with pytest.raises(AssertionError, match="gap"):
        log.append(run_of(3, 1))


@pytest.mark.parametrize("durable", [True, False])
def test_read_gives_at_least_one_entry_and_then_obeys_the_bounds(durable: bool) -> None:
    entries = run_of(1, *[1] * 9)
    log = RaftLog(MemoryLog(entries if durable else ()), NO_LIMIT)
    if not durable:
        log.append(entries)
    assert len(log.read(1, 9, 0, NO_LIMIT)) == 1
    assert len(log.read(1, 9, 3 * PAYLOAD_BYTES, NO_LIMIT)) == 3
    assert len(log.read(1, 9, NO_LIMIT, 4)) == 4
    assert len(log.read(4, 6, NO_LIMIT, NO_LIMIT)) == 3


def test_cache_lets_go_only_of_what_is_durable_and_applied() -> None:
    disk = CountingLog()
    log = RaftLog(disk, cache_bytes_max=4 * PAYLOAD_BYTES)
    log.append(run_of(1, *[1] * 8))
    log.trim(applied=8)
    assert len(log.unstable()) == 8, "nothing was durable"
    persist(log, disk)
    log.trim(applied=0)
    assert whole(log) == list(run_of(1, *[1] * 8))
    assert disk.reads == 0, "nothing was applied"
    log.trim(applied=8)
    assert log.read(7, 8, NO_LIMIT, NO_LIMIT) == list(run_of(7, 1, 1))
    assert disk.reads == 0, "what is recent stays, up to half of the bound"
    assert log.read(6, 8, NO_LIMIT, NO_LIMIT) == list(run_of(6, 1))
    assert disk.reads == 1


def test_compaction_moves_the_anchor() -> None:
    disk = MemoryLog(run_of(1, 1, 1, 2, 2))
    log = RaftLog(disk, NO_LIMIT)
    disk.compact(3)
    log.refresh_anchor()
    assert [log.term(index) for index in range(1, 6)] == [None, None, 2, 2, None]
    assert whole(log) == list(run_of(4, 2))


def test_snapshot_replaces_everything() -> None:
    disk = MemoryLog(run_of(1, 1, 1))
    log = RaftLog(disk, NO_LIMIT)
    log.append(run_of(3, 1))
    disk.reset(9, 4)
    log.reset(9, 4)
    assert (log.anchor_index, log.last_index, log.last_term, log.stable) == (9, 9, 4, 9)
    assert log.unstable() == []
    log.append(run_of(10, 5))
    assert log.unstable() == list(run_of(10, 5))


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (9, 9, (5, 4)),
        (4, 9, (4, 4)),
        (5, 3, (3, 2)),
        (5, 1, (1, 1)),
        (5, 0, (0, 0)),
        (0, 9, (0, 0)),
    ],
)
def test_hint_is_the_last_place_where_logs_may_agree(
    index: int, term: int, expected: tuple[int, int]
) -> None:
    log = RaftLog(MemoryLog(run_of(1, 1, 2, 2, 4, 4)), NO_LIMIT)
    assert log.last_at_or_below(index, term) == expected


@pytest.mark.parametrize(
    ("terms", "conflict"), [([2, 2], 2), ([2, 3], 1), ([3, 3], 0), ([2, 2, 4, 4, 4], 4), ([], 0)]
)
def test_first_conflict_is_the_first_entry_that_is_not_there(
    terms: list[int], conflict: int
) -> None:
    log = RaftLog(MemoryLog(run_of(1, 1, 2, 2, 4, 4)), NO_LIMIT)
    assert log.first_conflict(run_of(2, *terms)) == conflict


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "overwrite", "persist", "trim", "compact", "drop"]),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(STEPS)
def test_log_equals_a_list_whatever_happens(steps: list[tuple[str, int]]) -> None:
    disk = MemoryLog()
    log = RaftLog(disk, cache_bytes_max=3 * PAYLOAD_BYTES)
    model: list[Entry] = []
    durable = applied = 0
    for term, (name, number) in enumerate(steps, 1):
        if name in ("append", "overwrite"):
            keep = len(model) if name == "append" else max(applied, len(model) - number)
            fresh = run_of(keep + 1, *[term] * (number + 1))
            model[keep:] = fresh
            durable = min(durable, keep)
            log.append(fresh)
        elif name == "persist" and log.unstable():
            persist(log, disk)
            durable = len(model)
        elif name == "trim":
            applied = max(applied, durable - number)
            log.trim(applied)
        elif name == "compact" and applied > log.anchor_index:
            disk.compact(applied)
            log.refresh_anchor()
        elif name == "drop":
            del model[durable:]
            log.drop_unstable()
        assert whole(log) == model[log.anchor_index :]
        assert log.unstable() == model[durable:]
        assert (log.stable, log.last_index) == (durable, len(model))
