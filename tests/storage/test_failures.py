"""What disks do to a log, and what it makes of that; numbers are those of the failure list."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage.errors import LogDamaged, NoSpace, SyncFailed
from shardnode.storage.log import SegmentedLog
from shardnode.storage.options import LogOptions, Opened
from shardnode.storage.records import Anchor, encode_batch_header
from shardnode.storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from tests.storage.kit import (
    SHARD,
    batches_in,
    contents,
    disk,
    filled,
    open_log,
    overwrite,
    put,
    read_all,
    record,
    run,
    segments,
    tree,
)


def with_pending(files: SimFiles, *sizes: int) -> tuple[str, bytes]:
    """Three synced records, then one batch of each size that is not; the segment, and its bytes
    before those."""
    log = filled(files, 3)
    path = segments(files)[-1]
    before = read_all(files, path)
    for size in sizes:
        log.append_batch(run(log.last_index + 1, log.last_index + 2, size=size))
    assert segments(files) == [path]
    return path, before


def test_a_batch_torn_at_any_byte_is_cut_and_the_log_boots() -> None:
    """Failure 1: however much of the last write arrived, from either end."""
    files = disk()
    path, before = with_pending(files, 40)
    after = read_all(files, path)
    *_, last = batches_in(files, path)
    for cut in range(last.header.total + 1):
        place = last.offset + cut
        for torn in (after[:place] + before[place:], before[:place] + after[place:]):
            put(files, path, torn)
            log = open_log(files)
            whole = torn == after
            assert contents(log) == run(1, 5 if whole else 3)
            clean = whole or torn == before
            assert log.recovery.kind is (Opened.CLEAN if clean else Opened.TORN)
            if not clean:
                assert (log.recovery.path, log.recovery.offset) == (path, last.offset)
                assert read_all(files, path) == before, "nothing of it is left"


def test_a_torn_batch_does_not_come_back_after_the_next_one_was_written() -> None:
    """Failure 1: the new batch is shorter, so what was torn would stand right behind it."""
    files = disk()
    path, _ = with_pending(files, 200)
    *_, last = batches_in(files, path)
    overwrite(files, path, last.offset + 20, b"?")
    log = open_log(files)
    log.append_batch([record(4, term=2, size=0)])
    log.sync()
    files.crash()
    assert contents(open_log(files)) == [*run(1, 3), record(4, term=2, size=0)]


def test_only_the_last_batch_may_be_torn() -> None:
    """Failure 1: the batch after it says that this one was durable, so it is damage."""
    files = disk()
    filled(files, 9)
    path = segments(files)[0]
    bad, proof = batches_in(files, path)[1:3]
    overwrite(files, path, bad.offset + bad.header.total - 1, b"?")
    before = tree(files, SHARD)
    with pytest.raises(LogDamaged, match="proves that it was durable") as refused:
        open_log(files)
    error = refused.value
    assert (error.path, error.offset, error.first_bad_index) == (path, bad.offset, 4)
    assert (error.valid_through, error.durable_mark) == (3, proof.header.durable_before)
    assert tree(files, SHARD) == before


@pytest.mark.parametrize("tail", [0, 1, 103, 104, 5000])
def test_a_tail_of_zeros_is_the_end_of_the_log(tail: int) -> None:
    """Failure 2: as preallocation leaves it, or a lost write behind a size that was kept."""
    files = disk()
    filled(files, 3)
    path = segments(files)[0]
    end = batches_in(files, path)[-1].end
    put(files, path, read_all(files, path)[:end] + bytes(tail))
    log = open_log(files)
    assert log.recovery.kind is Opened.CLEAN
    log.append_batch(run(4, 5))
    log.sync()
    files.crash()
    assert contents(open_log(files)) == run(1, 5)


def test_a_hole_before_a_later_batch_is_where_the_log_is_cut() -> None:
    """Failure 3: neither was synced, so nobody was told of either, and both go."""
    files = disk()
    path, before = with_pending(files, 40, 40)
    hole, later = batches_in(files, path)[-2:]
    overwrite(files, path, hole.offset, bytes(hole.header.total))
    log = open_log(files)
    assert log.recovery.kind is Opened.TORN
    assert log.recovery.first_lost_index == 4
    assert log.recovery.bytes_cut == later.end - hole.offset
    assert contents(log) == run(1, 3)
    assert read_all(files, path) == before
    log.append_batch(run(4, 5, term=2))  # as long as the hole: the later one would fit behind it
    log.sync()
    files.crash()
    assert contents(open_log(files)) == [*run(1, 3), *run(4, 5, term=2)]


@pytest.mark.parametrize("mark", [4, 5, 7])
def test_a_hole_below_the_durable_mark_is_damage(mark: int) -> None:
    """Failure 3: whoever knows that the records were durable must not see them cut."""
    files = disk()
    path, _ = with_pending(files, 40, 40)
    hole = batches_in(files, path)[-2]
    overwrite(files, path, hole.offset, bytes(hole.header.total))
    before = tree(files, SHARD)
    with pytest.raises(LogDamaged, match=f"must reach index {mark}") as refused:
        open_log(files, durable_mark=mark)
    assert (refused.value.path, refused.value.offset) == (path, hole.offset)
    assert (refused.value.valid_through, refused.value.durable_mark) == (3, mark)
    assert tree(files, SHARD) == before


def test_a_log_that_just_ends_below_the_durable_mark_is_damage() -> None:
    """Failure 3: a lost tail leaves no trace in the file; the mark is all there is."""
    files = disk()
    filled(files, 3)
    assert open_log(files, durable_mark=3).last_index == 3
    with pytest.raises(LogDamaged, match="the log ends, but it must reach index 4"):
        open_log(files, durable_mark=4)


@pytest.mark.parametrize("total", [105, 1 << 20, 1 << 29, (1 << 30) + 104, (1 << 32) - 1])
def test_a_garbage_length_asks_for_no_memory(total: int) -> None:
    """Failure 4: even under a right checksum, more is never read than the file holds."""
    files = disk()
    path, before = with_pending(files, 40)
    *_, last = batches_in(files, path)
    salt = decode_segment_header(before[:SEGMENT_HEADER_BYTES]).salt
    forged = encode_batch_header(last.header._replace(total=total, records=1), salt, last.offset)
    overwrite(files, path, last.offset, forged)
    tracemalloc.start()
    try:
        log = open_log(files)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.recovery.kind is Opened.TORN
    assert contents(log) == run(1, 3)
    # One piece of zeros to compare with is a megabyte; a believed length would be far more.
    assert peak < 200_000


def test_a_garbage_length_inside_a_durable_record_is_damage() -> None:
    """Failure 4: the body's checksum covers it, so it is never acted upon."""
    files = disk()
    log = filled(files, 6)
    path = segments(files)[0]
    first, _ = batches_in(files, path)
    overwrite(files, path, first.offset + 104, struct.pack("<I", 0xFFFFFFFF))
    with pytest.raises(LogDamaged, match="checksum") as refused:
        log.read(1, 6)
    assert (refused.value.path, refused.value.first_bad_index) == (path, 1)
    with pytest.raises(LogDamaged):
        open_log(files)


def test_a_flipped_bit_in_a_sealed_segment_is_damage_whoever_meets_it() -> None:
    """Failure 5, as far as it is storage's: found at open and at read, named, nothing changed."""
    files = disk()
    log = filled(files, 30)
    path = segments(files)[1]
    bad = batches_in(files, path)[1]
    files.flip_bit(path, bad.offset + 150)
    before = tree(files, SHARD)
    with pytest.raises(LogDamaged) as refused:
        log.read(bad.header.first, bad.header.last)
    assert refused.value.path == path
    others = [(1, bad.header.first - 1), (bad.header.last + 1, 30)]
    for first, last in others:  # the rest still serves
        assert log.read(first, last) == run(first, last)
    with pytest.raises(LogDamaged) as refused:
        open_log(files)
    assert refused.value.valid_through == bad.header.first - 1
    assert tree(files, SHARD) == before


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_damaged_segment_header_is_never_taken_for_a_leftover(which: int) -> None:
    """Failure 6: a segment gets its name when its header is durable, so this one was whole."""
    files = disk()
    filled(files, 30)
    path = segments(files)[which]
    files.flip_bit(path, 20)
    before = tree(files, SHARD)
    with pytest.raises(LogDamaged) as refused:
        open_log(files)
    assert (refused.value.path, refused.value.offset) == (path, 0)
    assert tree(files, SHARD) == before


@pytest.mark.parametrize("field", ["previous_chain", "previous_term"])
def test_a_sound_batch_that_continues_another_history_is_damage(field: str) -> None:
    """Failure 6: every checksum is right, but no torn write links to a record that is not here."""
    files = disk()
    path, before = with_pending(files, 40)
    *_, last = batches_in(files, path)
    salt = decode_segment_header(before[:SEGMENT_HEADER_BYTES]).salt
    forged = last.header._replace(**{field: 0})
    overwrite(files, path, last.offset, encode_batch_header(forged, salt, last.offset))
    with pytest.raises(LogDamaged, match="index 4 continues index 3 term") as refused:
        open_log(files)
    assert (refused.value.path, refused.value.offset) == (path, last.offset)


@pytest.mark.parametrize(("which", "mark"), [(1, 0), (2, 30)])
def test_a_lost_segment_is_damage(which: int, mark: int) -> None:
    """Failure 6: a gap in the numbers tells; for the last one the durable mark has to."""
    files = disk()
    filled(files, 30)
    path = segments(files)[which]
    files.remove(path)
    with pytest.raises(LogDamaged) as refused:
        open_log(files, durable_mark=mark)
    assert refused.value.valid_through == 12 * which


def test_a_damaged_sidecar_is_made_again() -> None:
    """Failure 6: it is the one thing that can be, since all of it follows from the segment."""
    files = disk()
    filled(files, 30)
    log = open_log(files)
    sound = tree(files, SHARD)
    sidecars = [path for path in sound if path.endswith(".idx")]
    assert len(sidecars) == len(segments(files)) - 1
    for path in sidecars:
        files.flip_bit(path)
    files.remove(sidecars[0])
    log = open_log(files)
    assert (log.recovery.kind, contents(log)) == (Opened.CLEAN, run(1, 30))
    assert tree(files, SHARD) == sound


def test_after_a_failed_fsync_everything_is_refused_and_nothing_was_acknowledged() -> None:
    """Failure 8: no second try, no further use; opening again finds what was durable."""
    files = disk()
    log = filled(files, 3)
    log.append_batch(run(4, 6))
    files.fail_after(0, "fsync")
    with pytest.raises(SyncFailed):
        log.sync()
    assert log.durable_index == 3
    operations = files.operations
    refused: list[Callable[[], object]] = [
        log.sync,
        lambda: log.append_batch(run(7, 7)),
        lambda: log.read(1, 1),
        lambda: log.truncate_back(3),
        lambda: log.truncate_front(1),
        lambda: log.reset(Anchor(9, 9, 9)),
        lambda: log.term(1),
        lambda: log.chain(1),
    ]
    for act in refused:
        with pytest.raises(SyncFailed, match="exit"):
            act()
    assert files.operations == operations
    assert contents(open_log(files)) == run(1, 3)


BIG = record(4, size=2000)


@pytest.mark.parametrize(
    "act",
    [lambda log: log.append_batch([BIG]), lambda log: log.reset(Anchor(9, 9, 9))],
    ids=["roll", "reset"],
)
def test_a_failed_fsync_at_any_point_is_final(act: Callable[[SegmentedLog], None]) -> None:
    """Failure 8: of the directory as well as of a file."""
    for operation in range(20):
        files = disk(operation)
        log = filled(files, 3)
        log.append_batch([record(4)])
        files.fail_after(operation, "fsync")
        try:
            act(log)
        except SyncFailed:
            with pytest.raises(SyncFailed, match="exit"):
                log.sync()
        else:
            assert operation > 2, "several operations sync"
            return
        again = open_log(files)
        assert (again.last_index, contents(again)) in [(3, run(1, 3)), (4, run(1, 4)), (9, [])]
    raise AssertionError("it never came to its end")


def test_a_full_disk_drops_the_partial_batch_and_reads_go_on() -> None:
    """Failure 9: the batch is not there, not now and not after a crash; then there is space."""
    for seed in range(60):
        files = disk(seed)
        log = filled(files, 3)
        log.append_batch(run(4, 5))
        files.fail_after(0, "enospc")
        with pytest.raises(NoSpace):
            log.append_batch(run(6, 9, size=150))
        assert contents(log) == run(1, 5)
        if seed % 2:
            log.append_batch([record(6, term=2, size=0)])
            log.sync()
        files.crash()
        added = [record(6, term=2, size=0)] if seed % 2 else []
        assert contents(open_log(files)) == [*run(1, 5), *added]


def test_a_batch_that_was_refused_for_space_never_comes_back() -> None:
    """Failure 9: all of it was written, and only the zeros ahead of it found no room."""
    roomy = LogOptions(segment_bytes=9000, zero_ahead_bytes=7000)
    whole = 0
    for seed in range(80):
        files = disk(seed)
        log = SegmentedLog.open(files, SHARD, roomy)
        files.fail_after(0, "enospc")
        with pytest.raises(NoSpace):
            log.append_batch([record(1)])
        files.crash()
        log = SegmentedLog.open(files, SHARD, roomy)
        assert contents(log) == []
        whole += log.recovery.kind is Opened.CLEAN
    assert whole == 80, "what was left of it had been removed durably"


def fill_the_disk(log: SegmentedLog) -> None:
    for index in range(log.last_index + 1, 1000):
        log.append_batch([record(index, size=500)])
        log.sync()


@pytest.mark.parametrize("free", [0, 100, 1499, 1500, 1700, 3000])
def test_a_disk_without_room_for_another_segment_leaves_the_log_as_it_was(free: int) -> None:
    """Failure 9: with a real limit instead of one failing call, at a roll."""
    files = disk()
    log = filled(files, 3)
    files.capacity_bytes = files.used_bytes() + free
    with pytest.raises(NoSpace):
        fill_the_disk(log)
    last = log.last_index
    assert contents(log) == [*run(1, 3), *run(4, last, size=500)]
    assert log.durable_index == last
    files.crash()
    log = open_log(files)  # a full disk does not keep it from being read
    assert contents(log) == [*run(1, 3), *run(4, last, size=500)]
    files.capacity_bytes = None
    log.append_batch([record(last + 1, size=500)])
    log.sync()
    files.crash()
    assert open_log(files).last_index == last + 1


def test_what_was_read_at_open_is_durable_before_anyone_relies_on_it() -> None:
    """Failure 8: a process died before its fsync; the records came from the page cache alone."""
    for seed in range(30):
        files = disk(seed)
        log = filled(files, 3)
        log.append_batch(run(4, 6))
        log.close()  # killed here, with the power still on
        log = open_log(files)
        assert log.durable_index == 6
        files.crash()
        assert contents(open_log(files)) == run(1, 6)


def test_larger_limits_of_yesterday_do_not_keep_a_log_from_opening() -> None:
    files = disk()
    filled(files, 30)
    small = LogOptions(segment_bytes=300, max_record_bytes=10, max_batch_bytes=20)
    assert contents(SegmentedLog.open(files, SHARD, small)) == run(1, 30)
