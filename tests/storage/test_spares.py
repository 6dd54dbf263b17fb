"""Segments that were cut in front and written over: what an earlier life left means nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from shardnode.offline.inspect_log import segment_rows
from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.audit import Book
from shardnode.storage.audit_log import audit_log
from shardnode.storage.errors import Compacted, LogDamaged, NoSpace
from shardnode.storage.files import Files
from shardnode.storage.log import SegmentedLog
from shardnode.storage.options import Opened
from shardnode.storage.records import BATCH_MAGIC, Anchor
from shardnode.storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from shardnode.storage.spares import SPARE
from shardnode.storage.stretch import prove
from tests.storage.kit import (
    SHARD,
    TINY,
    batches_in,
    contents,
    crash_at_every_operation,
    disk,
    filled,
    open_log,
    overwrite,
    read_all,
    run,
    segments,
)

DIRECTORY = f"{SHARD}/log"


def spares(files: Files) -> list[str]:
    return [name for name in files.listdir(DIRECTORY) if name.endswith(SPARE)]


def append(log: SegmentedLog, records: int) -> None:
    """Batches of three, each durable; those that another log would have written there too."""
    for _ in range(records // 3):
        log.append_batch(run(log.last_index + 1, log.last_index + 3))
        log.sync()


def header_of(files: Files, path: str) -> bytes:
    return read_all(files, path)[:SEGMENT_HEADER_BYTES]


def is_recycled(files: Files, path: str) -> bool:
    return decode_segment_header(header_of(files, path)).recycled


def recycled(files: SimFiles) -> SegmentedLog:
    """A log whose last segment was another one before, and has a few batches since."""
    log = filled(files, 30)
    log.truncate_front(30)
    assert spares(files)
    while not is_recycled(files, segments(files)[-1]):
        append(log, 3)
    append(log, 3)
    return log


def stale_bytes(files: Files) -> bytes:
    """What lies behind the last batch of the last segment."""
    path = segments(files)[-1]
    ends = [batch.end for batch in batches_in(files, path)]
    return read_all(files, path)[max(ends, default=SEGMENT_HEADER_BYTES) :]


def reopened(files: SimFiles, mark: int = 0) -> SegmentedLog:
    return open_log(files, durable_mark=mark)


def test_what_was_cut_in_front_becomes_the_next_segment() -> None:
    files = disk()
    log = filled(files, 30)
    log.truncate_front(30)
    before = len(spares(files))
    append(log, 9)
    assert is_recycled(files, segments(files)[-1])
    assert len(spares(files)) < before
    assert contents(log) == run(log.first_index, log.last_index)


def test_no_more_are_kept_than_was_asked_for() -> None:
    files = disk()
    log = filled(files, 90)
    assert len(segments(files)) > TINY.spare_segments + 2
    log.truncate_front(90)
    assert len(spares(files)) == TINY.spare_segments


def test_none_is_kept_when_that_is_turned_off() -> None:
    files = disk()
    filled(files, 30).close()
    log = SegmentedLog.open(files, SHARD, replace(TINY, spare_segments=0))
    log.truncate_front(30)
    append(log, 30)
    assert not spares(files)
    assert not any(is_recycled(files, path) for path in segments(files))


def test_sound_batches_of_an_earlier_life_are_no_part_of_the_log() -> None:
    """They lie where the next batch would begin, and pass every check but that of their salt."""
    files = disk()
    log = recycled(files)
    assert BATCH_MAGIC in stale_bytes(files)
    expected = contents(log)
    log.close()
    log = reopened(files, log.last_index)
    assert (log.recovery.kind, contents(log)) == (Opened.CLEAN, expected)
    assert not any(stale_bytes(files))
    assert log.durable_index == log.last_index


def test_nothing_of_it_is_left_in_a_sealed_segment() -> None:
    files = disk()
    log = recycled(files)
    path = segments(files)[-1]
    while path == segments(files)[-1]:
        append(log, 3)
    assert len(read_all(files, path)) == batches_in(files, path)[-1].end


def test_spares_are_removed_at_the_next_open() -> None:
    files = disk()
    log = filled(files, 30)
    log.truncate_front(30)
    log.close()
    assert spares(files)
    reopened(files)
    assert not spares(files)


def test_power_lost_between_two_lives_leaves_one_of_them_or_neither() -> None:
    """Failure 14: at every operation of a cut in front and of the appends that use what it left."""

    def live_on(files: SimFiles) -> None:
        log = open_log(files)
        log.truncate_front(30)
        append(log, 30)

    def check(files: SimFiles, completed: bool) -> None:
        log = reopened(files, 30)
        assert contents(log) == run(log.first_index, log.last_index)
        assert log.first_index <= 31
        assert 30 <= log.last_index <= 60
        assert not completed or log.last_index == 60
        assert not spares(files)
        last = log.last_index
        append(log, 12)
        files.crash()
        assert contents(reopened(files, last + 12)) == run(log.first_index, last + 12)

    crash_at_every_operation(lambda files: filled(files, 30).close(), live_on, check, seeds=20)


def test_what_was_not_synced_is_there_or_is_not() -> None:
    """Failure 1: whichever sectors a crash keeps of a batch, between them stand those of an earlier
    life, in which the same records may have stood at the same place."""
    lost = 0
    for seed in range(300):
        files = disk(seed)
        log = recycled(files)
        durable = log.last_index
        size = 1 + seed % 9
        log.append_batch(run(durable + 1, durable + size, size=40 + seed))
        files.crash()
        log = reopened(files, durable)
        whole = log.last_index == durable + size
        assert whole or log.last_index == durable
        head = run(log.first_index, durable)
        assert contents(log) == [
            *head,
            *(run(durable + 1, durable + size, size=40 + seed) if whole else []),
        ]
        assert not any(stale_bytes(files))
        lost += not whole
    assert 0 < lost < 300


def _restore(files: SimFiles, path: str, before: bytes, start: int, end: int) -> None:
    """A write to these bytes never reached the disk: what was there before is there again."""
    overwrite(files, path, start, before[start:end])


def test_hole_below_what_was_durable_is_damage() -> None:
    """Failure 3: the bytes of an earlier life stand where a batch is missing, whole and sound."""
    files = disk()
    log = recycled(files)
    path = segments(files)[-1]
    before = read_all(files, path)
    append(log, 6)
    log.close()
    missing, _ = batches_in(files, path)[-2:]
    _restore(files, path, before, missing.offset, missing.end)
    with pytest.raises(LogDamaged, match="proves that it was durable") as damaged:
        reopened(files)
    assert damaged.value.first_bad_index == missing.header.first


def test_hole_above_what_was_durable_is_cut() -> None:
    files = disk()
    log = recycled(files)
    durable = log.last_index
    path = segments(files)[-1]
    before = read_all(files, path)
    for first in (durable + 1, durable + 4):
        log.append_batch(run(first, first + 2))  # no sync between them, so neither was durable
    log.close()
    missing, _ = batches_in(files, path)[-2:]
    _restore(files, path, before, missing.offset, missing.end)
    log = reopened(files, durable)
    assert (log.recovery.kind, log.last_index) == (Opened.TORN, durable)
    append(log, 3)
    log.close()
    assert contents(reopened(files)) == run(log.first_index, durable + 3)


@pytest.mark.parametrize("place", [0, 3, 40, 100, 104, 150])
def test_flip_in_a_batch_that_others_follow_is_damage(place: int) -> None:
    files = disk()
    log = recycled(files)
    append(log, 6)
    log.close()
    path = segments(files)[-1]
    batch = batches_in(files, path)[-2]
    files.flip_bit(path, batch.offset + place)
    with pytest.raises(LogDamaged):
        reopened(files)


@pytest.mark.parametrize("place", [0, 3, 40, 100, 104, 150])
def test_flip_in_the_last_batch_is_damage_when_it_is_known_to_have_been_durable(
    place: int,
) -> None:
    files = disk()
    log = recycled(files)
    log.close()
    path = segments(files)[-1]
    batch = batches_in(files, path)[-1]
    files.flip_bit(path, batch.offset + place)
    with pytest.raises(LogDamaged, match="must reach index"):
        reopened(files, log.last_index)


def test_flip_in_what_means_nothing_is_nothing() -> None:
    files = disk()
    log = recycled(files)
    expected = contents(log)
    log.close()
    path = segments(files)[-1]
    end = batches_in(files, path)[-1].end
    for offset in range(end, end + 300, 7):
        files.flip_bit(path, offset)
    log = reopened(files, log.last_index)
    assert (log.recovery.kind, contents(log)) == (Opened.CLEAN, expected)


def test_who_only_looks_finds_nothing_wrong() -> None:
    files = disk()
    log = recycled(files)
    log.close()
    book = Book()
    found = audit_log(files, SHARD, log.last_index, book)
    assert not found.damaged
    assert not book.findings
    path = segments(files)[-1]
    rows = [row for row in segment_rows(files, path) if isinstance(row, dict)]
    assert len(rows) == 1 + len(batches_in(files, path))


def test_bytes_that_somebody_may_still_read_are_not_written_over() -> None:
    files = disk()
    filled(files, 30).close()
    log = SegmentedLog.open(files, SHARD, replace(TINY, index_every_bytes=1 << 20))
    stretch = log.stretch(30)
    begun = stretch.read(1, 0, 50)
    log.truncate_front(30)
    assert not spares(files)
    append(log, 30)
    rest = b""
    with suppress(Compacted):  # at the end of what was one file; until then it goes on
        while True:
            rest += stretch.read(1, 50 + len(rest), 50)
    assert len(rest) > 500
    proven = [each.record for each in prove(begun + rest, Anchor(0, 0, 0))]
    assert proven == run(1, len(proven))
    log.truncate_front(60)
    assert spares(files)  # of what came after


def test_a_full_disk_gets_its_space_back() -> None:
    files = disk()
    log = filled(files, 30)
    log.truncate_front(30)
    files.fail_after(0, "enospc")
    with pytest.raises(NoSpace):
        append(log, 3)
    assert not spares(files)
    append(log, 3)
    assert contents(log)[-3:] == run(31, 33)


@pytest.mark.parametrize("seed", range(20))
def test_many_lives_and_losses_of_power(seed: int) -> None:
    """The same few files again and again; what was synced is there after each loss."""
    files = disk(seed)
    promised = 0
    for operation in range(5, 120, 5):
        log = reopened(files, promised)
        assert log.last_index >= promised
        assert contents(log) == run(log.first_index, log.last_index)
        promised = log.durable_index
        files.fail_after(operation, "crash")
        with suppress(SimCrash):
            while True:
                append(log, 3)
                promised = log.durable_index
                log.truncate_front(promised - 6)
        files.crash()
