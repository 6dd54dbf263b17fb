"""Power lost in the middle of what takes several steps: the log before it, or the log after it."""

from __future__ import annotations

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage.errors import SyncFailed
from shardnode.storage.records import Anchor, Record
from tests.storage.kit import (
    SHARD,
    contents,
    crash_at_every_operation,
    disk,
    filled,
    open_log,
    record,
    run,
    segments,
    tree,
)


def test_power_lost_during_a_roll_leaves_the_log_before_it_or_after_it() -> None:
    """Failure 14: at every operation of the append that begins another segment."""

    def roll(files: SimFiles) -> None:
        log = open_log(files)
        log.append_batch([record(4, size=2000)])
        log.sync()
        assert len(segments(files)) == 2

    def check(files: SimFiles, completed: bool) -> None:
        log = open_log(files, durable_mark=3)
        found = contents(log)
        after = [*run(1, 3), record(4, size=2000)]
        assert found == after if completed else found in (run(1, 3), after)
        log.append_batch([record(log.last_index + 1)])
        log.sync()
        files.crash()
        assert contents(open_log(files)) == [*found, record(len(found) + 1)]
        assert not [path for path in tree(files, SHARD) if path.endswith(".tmp")]

    crash_at_every_operation(lambda files: filled(files, 3).close(), roll, check, seeds=20)


def test_power_lost_during_a_reset_leaves_the_old_log_or_the_new() -> None:
    """Failure 14: whole, and the other one is gone for good."""
    anchor = Anchor(100, 5, 123)

    def reset(files: SimFiles) -> None:
        open_log(files).reset(anchor)

    def check(files: SimFiles, completed: bool) -> None:
        log = open_log(files)
        if completed or log.last_index == 100:
            assert (log.anchor, contents(log), log.last_term) == (anchor, [], 5)
            assert len(segments(files)) == 1
        else:
            assert contents(log) == run(1, 30)
        last = log.last_index
        files.crash()
        assert open_log(files).last_index == last

    crash_at_every_operation(lambda files: filled(files, 30).close(), reset, check)


def test_power_lost_while_opening_after_a_reset_that_was_not_synced() -> None:
    """Failure 14: the new name was in memory only when the process died, and open relies on it."""
    anchor = Anchor(100, 5, 123)

    def build(files: SimFiles) -> None:
        log = filled(files, 30)
        files.fail_after(5, "fsync")  # that of the directory, after the rename
        with pytest.raises(SyncFailed, match="directory"):
            log.reset(anchor)

    def check(files: SimFiles, completed: bool) -> None:
        log = open_log(files)
        if completed or log.anchor == anchor:
            assert (log.anchor, contents(log)) == (anchor, [])
        else:
            assert contents(log) == run(1, 30)

    crash_at_every_operation(build, open_log, check)


def test_power_lost_during_a_truncation_at_the_front_leaves_a_log_without_gaps() -> None:
    """Failure 14: segments go one by one, lowest first."""

    def truncate(files: SimFiles) -> None:
        open_log(files).truncate_front(20)

    def check(files: SimFiles, completed: bool) -> None:
        log = open_log(files, durable_mark=30)
        assert contents(log) == run(log.first_index, 30)
        assert log.first_index <= 21
        assert not completed or log.first_index > 10

    crash_at_every_operation(lambda files: filled(files, 30).close(), truncate, check)


def test_power_lost_during_an_override_leaves_the_old_end_or_the_new() -> None:
    """Failure 14: there is no moment at which the log is just shorter."""
    new = run(5, 6, term=2, size=300)

    def override(files: SimFiles) -> None:
        log = open_log(files)
        log.append_batch(new)
        log.sync()

    def check(files: SimFiles, completed: bool) -> None:
        found = contents(open_log(files))
        after: list[Record] = [*run(1, 4), *new]
        assert found == after if completed else found in (run(1, 12), after)

    crash_at_every_operation(lambda files: filled(files, 12).close(), override, check)


def test_front_truncation_outlives_the_override_that_it_rests_on() -> None:
    """Failure 14: an override in memory made a segment droppable; both must survive together."""
    for seed in range(30):
        files = disk(seed)
        log = open_log(files)
        log.append_batch([record(1, size=2000)])
        log.sync()
        log.truncate_back(0)
        log.truncate_front(0)
        files.crash()
        log = open_log(files)
        assert (log.anchor.index, log.commit_watermark) == (0, 0)
        assert contents(log) in ([], [record(1, size=2000)])


def test_front_truncation_never_begins_the_log_in_a_history_that_was_overridden() -> None:
    """A segment was begun after records that an override then made void. As long as that override
    stands in it, what lies before it stays: without it, damage to the override would leave a log
    that begins, as if committed, with what never was."""
    files = disk(0)
    log = filled(files, 30)
    first_of_last = log._timeline.segments[-1].header.anchor.index
    log.append_batch(run(first_of_last - 2, first_of_last + 1, term=2), commit=first_of_last)
    log.sync()
    log.truncate_front(first_of_last)
    begins = log._timeline.segments[0].header
    assert (begins.anchor, begins.anchor.index < first_of_last - 2) == (log.anchor, True)
    for index in range(log.first_index, log.last_index + 1):
        assert log.term(index) == (1 if index < first_of_last - 2 else 2)
    while log._timeline.segments[-1].header.anchor.index <= first_of_last + 1:
        log.append_batch([record(log.last_index + 1, term=2, size=300)])
        log.sync()
    log.truncate_front(log.last_index)
    assert log.anchor.index > first_of_last, "the next segment begins where all is settled"
