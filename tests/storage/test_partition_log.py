"""The log of a partition: what it keeps, finds, trims and refuses."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from shardnode.sim.disk import SimCrash, SimFile, SimFiles
from shardnode.storage.errors import (
    Corrupt,
    DiskFailed,
    OffsetPastEnd,
    OffsetTrimmed,
    PartitionDamaged,
    TooLarge,
)
from shardnode.storage.files import Files, RealFiles
from shardnode.storage.partition_log import (
    NOTHING,
    Batch,
    Mark,
    PartitionLog,
    PartitionOptions,
    check_sealed,
)
from shardnode.storage.publish import make_dir, publish_file
from tests.storage.kit import disk, disk_with, overwrite, read_all
from tests.storage.partition_kit import (
    EVERYTHING,
    PLACE,
    TINY,
    batch,
    batches,
    contents,
    filled,
    image,
    open_log,
    paths,
    reference,
)


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles(tmp_path / "root") if request.param == "real" else disk()


def test_what_is_appended_is_read_back_as_it_came(files: Files) -> None:
    given = batches(40)
    log = filled(files, given)
    assert (log.first_offset, log.end_offset) == (0, given[-1].end_offset)
    assert contents(log) == given
    assert contents(log, bytes_max=1) == given, "one at a time"
    assert list(log.verify())[-1] == log.end_offset
    assert len(log.segments) == len(paths(files)) > 4
    assert log.size_bytes == sum(len(data) for data in image(files).values())
    log.close()
    again = open_log(files, log.durable)
    assert (contents(again), again.size_bytes) == (given, log.size_bytes)
    assert (again.segments, again.sealed()) == (log.segments, log.sealed())


def test_a_partition_that_was_never_written_costs_no_file(files: Files) -> None:
    log = open_log(files)
    assert (log.first_offset, log.end_offset, log.size_bytes, log.segments) == (0, 0, 0, [])
    assert (log.read(0, bytes_max=100), log.find(5), log.sealed(), list(log.verify())) == (
        [],
        0,
        [],
        [],
    )
    assert log.sync() == log.durable == NOTHING
    log.trim(0)
    log.release(NOTHING)
    log.rest()
    log.close()
    assert files.listdir("") == []


def test_every_offset_is_found_in_the_batch_that_contains_it(files: Files) -> None:
    given = batches(40)
    log = filled(files, given)
    holder = {offset: each for each in given for offset in range(each.offset, each.end_offset)}
    for opened in (log, open_log(files, log.durable)):
        for offset in sorted(holder, key=lambda each: (each * 7) % len(holder)):
            assert opened.read(offset, bytes_max=1) == [holder[offset]]


def test_a_read_keeps_its_limits_but_brings_one_batch_at_least(files: Files) -> None:
    given = batches(7)
    log = filled(files, given)
    for limit, number in ((0, 1), (60, 1), (119, 1), (120, 2), (185, 3), (EVERYTHING, 7)):
        assert log.read(0, bytes_max=limit) == given[:number]
    assert log.read(0, bytes_max=EVERYTHING, batches_max=2) == given[:2]
    assert log.read(given[3].offset, bytes_max=130) == given[3:5]
    assert log.read(log.end_offset, bytes_max=100) == []


def test_a_read_never_takes_more_into_memory_than_its_options_allow() -> None:
    files = disk()
    options = PartitionOptions(read_bytes_max=1000)
    log = PartitionLog.open(files, PLACE, options)
    given = [batch(n + 1, n, size=300) for n in range(20)]
    log.append([*given, batch(21, 20, size=50_000)])
    for _ in ("from memory", "from the files"):
        assert log.read(0, bytes_max=EVERYTHING) == given[:3]
        assert len(log.read(20, bytes_max=1)[0].payload) == 50_000
        log.sync()


def test_offsets_outside_the_log_are_refused_by_name(files: Files) -> None:
    log = filled(files, batches(20))
    log.trim(9)
    with pytest.raises(OffsetTrimmed, match="first one kept is 9") as trimmed:
        log.read(8, bytes_max=1)
    assert (trimmed.value.offset, trimmed.value.first_available) == (8, 9)
    with pytest.raises(OffsetPastEnd, match="log ends at 39") as past:
        log.read(40, bytes_max=1)
    assert (past.value.offset, past.value.end_offset) == (40, 39)


def test_the_first_batch_at_or_after_a_stamp_is_found(files: Files) -> None:
    given = batches(40)
    log = filled(files, given)
    for opened in (log, open_log(files, log.durable)):
        for stamp in range(-1, given[-1].stamp_ms + 3):
            later = [each.offset for each in given if each.stamp_ms >= stamp]
            assert opened.find(stamp) == (later[0] if later else opened.end_offset)
    log.trim(20)
    assert (log.find(0), log.find(given[-1].stamp_ms + 1)) == (20, log.end_offset)
    assert log.find(given[-1].stamp_ms) > 20


def test_segments_roll_by_the_batches_alone(files: Files) -> None:
    given = [batch(n + 1, n, size=size) for n, size in enumerate([10] * 9 + [900, 900, 2500, 0, 5])]
    log = filled(files, given, at_once=len(given))
    assert [view.base_offset for view in log.segments] == [0, 7, 10, 11, 12]
    assert [view.is_sealed for view in log.segments] == [True] * 4 + [False]
    assert [view.last_stamp_ms for view in log.segments] == [
        given[n].stamp_ms for n in (6, 9, 10, 11, 13)
    ]
    one_by_one = filled(other := disk(), given, at_once=1)
    assert image(files) == image(other)
    assert log.sealed() == one_by_one.sealed()
    assert log.durable == one_by_one.durable


def test_sealed_segments_are_listed_with_checksums_that_tell_contents_apart() -> None:
    given = batches(40)
    log = filled(disk(), given)
    sealed = log.sealed()
    assert [each.base_offset for each in sealed[1:]] == [each.end_offset for each in sealed[:-1]]
    changed = given[0]._replace(payload=b"!" + given[0].payload[1:])
    different = filled(disk(), [changed, *given[1:]]).sealed()
    assert len(sealed) == len(different)
    assert not {each.checksum for each in sealed} & {each.checksum for each in different}


def test_a_follower_opens_the_segments_it_was_sent(files: Files) -> None:
    leader_files = disk()
    given = batches(40)
    leader = filled(leader_files, given)
    leader.trim(20)
    mark = leader.sync()
    for each in leader.sealed():
        make_dir(files, PLACE)
        publish_file(files, f"{PLACE}/{each.name}", read_all(leader_files, f"{PLACE}/{each.name}"))
        check_sealed(files, PLACE, each, TINY)
    last = paths(leader_files)[-1]
    publish_file(files, last, read_all(leader_files, last))
    assert len(paths(files)) < len(paths(leader_files)), "trimmed segments are not sent"
    follower = open_log(files, mark)
    assert contents(follower) == [each for each in given if each.end_offset > 20]
    assert list(follower.verify())[-1] == leader.end_offset
    more = batch(1000, leader.end_offset)
    for log in (leader, follower):
        log.append([more])
    assert follower.mark == leader.mark


def test_a_received_segment_that_is_not_what_was_listed_is_refused() -> None:
    files = disk()
    first, second, *_ = filled(files, batches(40)).sealed()
    whole = read_all(files, f"{PLACE}/{first.name}")
    for at in range(0, len(whole), 11):
        spoiled = disk_with({f"{PLACE}/{first.name}": whole})
        spoiled.flip_bit(f"{PLACE}/{first.name}", at)
        with pytest.raises(PartitionDamaged, match=first.name):
            check_sealed(spoiled, PLACE, first, TINY)
    for data in (whole[:-1], whole + b"\0", b"", read_all(files, f"{PLACE}/{second.name}")):
        with pytest.raises(PartitionDamaged, match="expected"):
            check_sealed(disk_with({f"{PLACE}/{first.name}": data}), PLACE, first, TINY)


def test_trimming_is_exact_and_its_files_go_only_when_released(files: Files) -> None:
    given = batches(40)
    log = filled(files, given)
    whole = image(files)
    size = log.size_bytes
    log.trim(41)
    assert (log.first_offset, contents(log)) == (41, given[20:])
    assert log.size_bytes < size
    before = log.durable
    log.release(before)
    assert image(files) == whole, "that mark still has them"
    mark = log.sync()
    assert mark.first_offset == 41
    log.release(mark)
    left = image(files)
    assert 0 < len(left) < len(whole)
    assert left.items() < whole.items()
    assert contents(log) == contents(open_log(files, mark)) == given[20:]
    log.trim(7)
    assert log.first_offset == 41, "the start never goes back"
    with pytest.raises(PartitionDamaged, match="missing"):
        open_log(files, before)


def test_the_last_segment_is_never_removed(files: Files) -> None:
    given = batches(40)
    log = filled(files, given)
    log.trim(log.end_offset)
    log.release(log.sync())
    assert (len(paths(files)), contents(log)) == (1, [])
    log.append([batch(999, log.end_offset)])
    assert contents(log) == contents(open_log(files, log.sync())) == [batch(999, 79)]


def test_the_segment_in_which_a_mark_ends_outlives_its_release(files: Files) -> None:
    """The mark says that all is trimmed, and names a segment that was sealed since."""
    given = batches(7)
    log = filled(files, given)
    log.trim(log.end_offset)
    mark = log.sync()
    log.append([batch(999, log.end_offset)])
    log.sync()
    log.release(mark)
    assert len(paths(files)) == 2
    log.close()
    again = open_log(files, mark)
    again.append([batch(999, again.end_offset)])
    assert contents(again) == [batch(999, 13)]


def test_files_below_the_start_wait_for_a_mark_that_lasts(files: Files) -> None:
    """A killed process had recorded a start that a loss of power could still undo."""
    given = batches(40)
    log = filled(files, given)
    older = log.durable
    log.trim(60)
    newer = log.sync()
    log.close()
    log = open_log(files, newer)
    log.release(older)
    assert contents(open_log(files, older)) == given
    log.release(newer)
    assert len(paths(files)) == len(log.segments) < len(reference(given))


def test_open_cuts_all_that_is_above_the_mark(files: Files) -> None:
    given = batches(40)
    log = open_log(files)
    marks = [NOTHING]
    for each in given:
        log.append([each])
        marks.append(log.sync())
    whole = image(files)
    for number in range(39, -1, -1):
        log = open_log(files, marks[number])
        assert contents(log) == given[:number]
        assert image(files) == reference(given[:number])
        log.append(given[number:])
        assert log.sync() == marks[-1]
        assert image(files) == whole


@pytest.mark.parametrize("at_once", [1, 3, 40])
def test_torn_or_foreign_bytes_above_the_mark_do_not_matter(at_once: int) -> None:
    given = batches(40)
    for seed in range(20):
        files = disk(seed)
        log = filled(files, given[:18])
        mark = log.durable
        files.fail_after(seed, "crash")
        with suppress(SimCrash):
            for first in range(18, 40, at_once):
                log.append(given[first : first + at_once])
                log.sync()
        files.crash()
        overwrite(files, paths(files)[-1], read_size(files, paths(files)[-1]), b"garbage")
        publish_file(files, f"{PLACE}/{99:010}-{7:020}.seg", b"no segment")
        again = open_log(files, mark)
        assert contents(again) == given[:18]
        again.append(given[18:])
        again.sync()
        assert image(files) == reference(given)


def read_size(files: Files, path: str) -> int:
    return files.open(path).size()


def test_names_that_are_none_of_ours_are_left_alone() -> None:
    files = disk()
    mark = filled(files, batches(20)).durable
    publish_file(files, f"{PLACE}/README", b"mine")
    assert contents(open_log(files, mark)) == batches(20)
    open_log(files)
    assert paths(files) == [f"{PLACE}/README"]


def test_a_batch_above_the_limit_is_refused_before_anything_is_written() -> None:
    files = disk()
    log = open_log(files)
    with pytest.raises(TooLarge, match="limit is 3000"):
        log.append([batch(1, 0), batch(2, 1, size=3001)])
    assert (log.mark, paths(files)) == (NOTHING, [])


GOOD = Batch(2, 2, 2, 1, 100, b"two")
GOOD_AFTER_TWO = Batch(2, 2, 3, 1, 100, b"three")
WRONG = [
    GOOD._replace(offset=1),
    GOOD._replace(offset=3),
    GOOD._replace(count=0),
    GOOD._replace(index=1),
    GOOD._replace(log_index=1),
    GOOD._replace(index=0, log_index=0),
    GOOD._replace(stamp_ms=99),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_batch_that_does_not_continue_the_log_is_a_mistake_of_ours(wrong: Batch) -> None:
    log = open_log(disk())
    log.append([Batch(1, 1, 0, 2, 100, b"one")])
    with pytest.raises(AssertionError):
        log.append([wrong])
    log.append([GOOD])


def test_batches_of_one_entry_have_its_numbers() -> None:
    log = open_log(disk())
    log.append([Batch(1, 1, 0, 2, 100, b"one"), Batch(1, 1, 2, 1, 100, b"two"), GOOD_AFTER_TWO])
    assert [batch.payload for batch in log.read(0, bytes_max=EVERYTHING)] == [
        b"one",
        b"two",
        b"three",
    ]


def test_opening_reads_no_content() -> None:
    """A thousand partitions open together in a moment: the cost does not follow the bytes."""
    files = CountingFiles(random.Random(0))
    given = [batch(n + 1, n, size=50_000 if n < 99 else 10) for n in range(100)]
    options = PartitionOptions(segment_bytes=1 << 20)
    log = PartitionLog.open(files, PLACE, options)
    log.append(given)
    mark = log.sync()
    log.close()
    files.bytes_read = 0
    again = PartitionLog.open(files, PLACE, options, durable=mark)
    assert (len(again.segments), files.bytes_read) == (5, 5 * 80 + 64)
    files.bytes_read = 0
    again.append([batch(101, 100, size=10)])
    assert again.read(100, bytes_max=1) == [batch(101, 100, size=10)]
    assert files.bytes_read < 100, "who reads the end needs no index"
    assert again.read(98, bytes_max=1) == given[98:99]
    assert files.bytes_read < 300_000, "headers, and one batch or two of a hundred"


class CountingFiles(SimFiles):
    """Counts what is read."""

    bytes_read = 0

    def open(self, path: str) -> CountingFile:
        return CountingFile(self, self._file(path), path)


class CountingFile(SimFile):
    def pread(self, size: int, offset: int) -> bytes:
        data = super().pread(size, offset)
        assert isinstance(self._disk, CountingFiles)
        self._disk.bytes_read += len(data)
        return data


def test_a_mark_survives_its_encoding() -> None:
    mark = filled(disk(), batches(20)).durable
    assert Mark.decode(mark.encode()) == mark
    with pytest.raises(Corrupt, match="80 bytes"):
        Mark.decode(mark.encode()[1:])


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    publish_file(files, "orders", b"a file")
    with pytest.raises(DiskFailed):
        PartitionLog.open(files, "orders", TINY)
