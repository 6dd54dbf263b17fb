"""Power lost at any moment of a partition's life: redo from the last record gives what was there,
in the same bytes as on a replica to which nothing happened."""

from __future__ import annotations

import random

import pytest

from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.errors import PartitionDamaged
from shardnode.storage.partition_log import NOTHING, Batch, Mark
from tests.storage.kit import crash_at_every_operation, disk
from tests.storage.partition_kit import (
    Shard,
    batch,
    batches,
    contents,
    filled,
    image,
    open_log,
    paths,
    reference,
)

GIVEN = batches(40)


def live_image(shard: Shard) -> dict[str, bytes]:
    """The files that a reader may need."""
    needed = {f"{segment.base_offset:020}" for segment in shard.log.segments}
    found = image(shard.files)
    return {path: data for path, data in found.items() if path[-24:-4] in needed}


def history(seed: int, length: int = 60) -> list[Batch | int | None]:
    """Entries of all kinds; a trim is never beyond what was appended before it."""
    rng = random.Random(seed)
    entries: list[Batch | int | None] = []
    end = 0
    for log_index in range(1, length + 1):
        kind = rng.random()
        if kind < 0.7:
            size = rng.choice([0, 60, 60, 400, 2000])
            each = batch(log_index, end, rng.randint(1, 4), size)
            end = each.end_offset
            entries.append(each)
        else:
            entries.append(rng.randint(0, end) if kind < 0.85 else None)
    return entries


def run(shard: Shard, entries: list[Batch | int | None], seed: int) -> None:
    """Apply the rest of the history, with flushes and releases in between."""
    rng = random.Random(seed)
    while len(shard.entries) < len(entries):
        first = len(shard.entries)
        shard.entries += entries[first : first + rng.randint(1, 6)]
        shard.apply(first)
        if rng.random() < 0.4:
            shard.flush()
        if rng.random() < 0.3:
            shard.release()


def test_replicas_that_crash_at_different_moments_have_the_same_bytes() -> None:
    """Each entry is in the log exactly once, and segments roll at the same places."""
    for seed in range(60):
        entries = history(seed)
        calm = Shard(disk())
        run(calm, entries, seed)
        rng = random.Random(seed)
        troubled = Shard(disk(seed))
        crashes = 0
        troubled.files.fail_after(rng.randrange(12), "crash")
        while len(troubled.entries) < len(entries):
            try:
                run(troubled, entries, rng.getrandbits(32))
            except SimCrash:
                crashes += 1
                troubled.files.crash()
                troubled.restart()
                troubled.files.fail_after(rng.randrange(1, 30), "crash")
        troubled.files.calm()
        assert crashes > 0
        calm.flush()
        troubled.flush()
        assert troubled.log.mark == calm.log.mark
        assert contents(troubled.log) == contents(calm.log)
        assert live_image(troubled) == live_image(calm)
        assert troubled.log.sealed() == calm.log.sealed()
        assert list(troubled.log.verify()) == list(calm.log.verify())


def test_power_lost_while_batches_are_appended_and_synced() -> None:
    """Failure 14: at each operation, across several rolls."""
    marks: dict[int, Mark] = {}

    def build(files: SimFiles) -> None:
        marks[id(files)] = filled(files, GIVEN[:10]).durable

    def act(files: SimFiles) -> None:
        log = open_log(files, marks[id(files)])
        for first in range(10, 40, 3):
            log.append(GIVEN[first : first + 1])
            log.append(GIVEN[first + 1 : first + 3])
            mark = log.sync()
        marks[id(files)] = mark

    def check(files: SimFiles, completed: bool) -> None:
        log = open_log(files, marks[id(files)])
        number = 40 if completed else 10
        assert contents(log) == GIVEN[:number]
        if not completed:
            log.append(GIVEN[10:])
            log.sync()
        assert image(files) == reference(GIVEN)

    crash_at_every_operation(build, act, check, seeds=5)


def test_power_lost_before_anything_was_recorded_leaves_nothing_that_matters() -> None:
    """Failure 14: the directory and the first segment may be there, in part or not."""

    def act(files: SimFiles) -> None:
        log = open_log(files)
        log.append(GIVEN)
        log.sync()

    def check(files: SimFiles, _: bool) -> None:
        log = open_log(files)
        assert (contents(log), paths(files)) == ([], []), "nobody recorded a mark"
        log.append(GIVEN)
        mark = log.sync()
        files.crash()
        assert contents(open_log(files, mark)) == GIVEN
        assert image(files) == reference(GIVEN)

    crash_at_every_operation(lambda _: None, act, check, seeds=20)


def test_power_lost_during_a_release_leaves_any_of_the_files_and_none_is_missed() -> None:
    """Names are not synced one by one, so there may be gaps below the start of the log."""
    marks: dict[int, Mark] = {}

    def build(files: SimFiles) -> None:
        log = filled(files, GIVEN)
        log.trim(60)
        marks[id(files)] = log.sync()

    def act(files: SimFiles) -> None:
        mark = marks[id(files)]
        open_log(files, mark).release(mark)
        files.sync_dir("shard-0/partitions/orders")

    def check(files: SimFiles, completed: bool) -> None:
        mark = marks[id(files)]
        log = open_log(files, mark)
        assert contents(log) == [each for each in GIVEN if each.end_offset > 60]
        assert not completed or len(paths(files)) == len(log.segments)
        log.release(mark)
        assert len(paths(files)) == len(log.segments), "the next release removes what came back"

    crash_at_every_operation(build, act, check, seeds=20)


def test_power_lost_while_opening_is_like_power_lost_before_it() -> None:
    marks: dict[int, Mark] = {}

    def build(files: SimFiles) -> None:
        log = filled(files, GIVEN[:10])
        marks[id(files)] = log.durable
        log.append(GIVEN[10:])
        log.sync()

    def check(files: SimFiles, _: bool) -> None:
        log = open_log(files, marks[id(files)])
        assert contents(log) == GIVEN[:10]
        log.append(GIVEN[10:])
        log.sync()
        assert image(files) == reference(GIVEN)

    crash_at_every_operation(build, lambda f: open_log(f, marks[id(f)]), check)


def test_without_its_sync_a_recorded_mark_is_found_out() -> None:
    """The test of the tests: a caller that records what it did not sync is told so at open."""
    refused = 0
    for seed in range(40):
        files = disk(seed)
        log = open_log(files)
        log.append(GIVEN)
        mark = log.mark
        files.crash()
        try:
            log = open_log(files, mark)
            list(log.verify())
        except PartitionDamaged:
            refused += 1
        else:
            assert contents(log) == GIVEN
    assert refused > 20


def test_what_a_release_removed_too_early_is_found_out() -> None:
    files = disk()
    log = filled(files, GIVEN)
    early = log.durable
    log.trim(60)
    log.release(log.sync())
    before = image(files)
    with pytest.raises(PartitionDamaged, match="offset 0 is missing"):
        open_log(files, early)
    assert image(files) == before
    assert early.first_offset == NOTHING.first_offset
