"""Bytes of a partition that are not what was written: found and named, never read as batches."""

from __future__ import annotations

import random
from struct import pack, pack_into

import pytest
import xxhash

from shardnode.sim.disk import SimFile, SimFiles
from shardnode.storage.errors import PartitionDamaged
from shardnode.storage.partition_log import NOTHING, Batch, Mark, PartitionLog
from shardnode.storage.partition_records import (
    BATCH_HEADER_BYTES,
    FOOTER_TAIL_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_segment_header,
)
from tests.storage.kit import disk, disk_with, put, read_all
from tests.storage.partition_kit import (
    PLACE,
    TINY,
    batch,
    batches,
    contents,
    filled,
    image,
    open_log,
    paths,
)

GIVEN = batches(25)
SOUND = disk()
MARK = filled(SOUND, GIVEN).durable
IMAGE = image(SOUND)
PATHS = paths(SOUND)


def check(files: SimFiles, mark: Mark = MARK) -> PartitionLog:
    """Open, and read everything with every check there is."""
    log = open_log(files, mark)
    for _ in log.verify():
        pass
    return log


def test_the_sound_one_passes() -> None:
    assert contents(check(disk_with(IMAGE))) == GIVEN
    assert len(PATHS) == 4


def test_a_flipped_bit_below_the_mark_is_found_and_the_file_is_named() -> None:
    """Every byte of every file: headers, payloads, footers."""
    for path in PATHS:
        files = disk_with(IMAGE)
        for at in range(len(IMAGE[path])):
            put(files, path, IMAGE[path])
            files.flip_bit(path, at)
            before = image(files)
            with pytest.raises(PartitionDamaged, match=path) as refused:
                check(files)
            assert refused.value.offset is not None
            assert refused.value.offset <= at
            assert image(files) == before, "evidence is left alone"


def test_a_flip_met_by_a_reader_of_an_open_log_is_never_a_wrong_batch() -> None:
    """The disk may lose a bit long after open: every read checks what it reads."""
    rng = random.Random(1)
    for number in range(400):
        path = rng.choice(PATHS)
        at = rng.randrange(len(IMAGE[path]))
        files = disk_with(IMAGE, seed=number)
        log = open_log(files, MARK)
        if rng.random() < 0.5:
            contents(log)  # with what it remembers of that
        files.flip_bit(path, at)
        refused: list[PartitionDamaged] = []
        for each in GIVEN:
            try:
                assert log.read(each.offset, bytes_max=1) == [each]
            except PartitionDamaged as error:
                refused.append(error)
        assert {error.path for error in refused} <= {path}
        assert refused or not SEGMENT_HEADER_BYTES <= at < _batches_end(path)
        with pytest.raises(PartitionDamaged):
            list(log.verify())


def _batches_end(path: str) -> int:
    if path == PATHS[-1]:
        return MARK.position
    size = len(IMAGE[path])
    return size - int.from_bytes(IMAGE[path][size - 16 : size - 8], "little")


def test_a_cut_or_longer_file_below_the_mark_is_found_at_open() -> None:
    for path in PATHS:
        data = IMAGE[path]
        for size in (0, 1, SEGMENT_HEADER_BYTES, len(data) // 2, len(data) - 1):
            files = disk_with(IMAGE | {path: data[:size]})
            before = image(files)
            with pytest.raises(PartitionDamaged, match=path):
                open_log(files, MARK)
            assert image(files) == before
        files = disk_with(IMAGE | {path: data + b"more"})
        if path == PATHS[-1]:
            assert contents(check(files)) == GIVEN, "that is above the mark, and was cut"
            assert image(files) == IMAGE
        else:
            with pytest.raises(PartitionDamaged, match="should have"):
                open_log(files, MARK)


def test_a_missing_segment_is_found_at_open_and_nothing_is_changed() -> None:
    for path in PATHS:
        left = {name: data for name, data in IMAGE.items() if name != path}
        files = disk_with(left)
        with pytest.raises(PartitionDamaged, match=r"missing|should be there"):
            open_log(files, MARK)
        assert image(files) == left
    with pytest.raises(PartitionDamaged, match="there is none: fetch this partition"):
        open_log(disk(), MARK)


def test_a_segment_in_the_place_of_another_is_found_at_open() -> None:
    one, other = PATHS[:2]
    with pytest.raises(PartitionDamaged, match="this is what"):
        open_log(disk_with(IMAGE | {one: IMAGE[other], other: IMAGE[one]}), MARK)
    twice = f"{PLACE}/{2:010}-{5:020}.seg"
    with pytest.raises(PartitionDamaged, match="each once"):
        open_log(disk_with(IMAGE | {twice: IMAGE[other]}), MARK)


def test_a_sound_segment_of_another_partition_is_found_when_it_is_read() -> None:
    """It has the same name, the same length and right checksums, but not the chain."""
    foreign = [each._replace(payload=each.payload[::-1]) for each in GIVEN]
    other = disk()
    filled(other, foreign)
    for path in PATHS[:-1]:
        files = disk_with(IMAGE | {path: image(other)[path]})
        with pytest.raises(PartitionDamaged):
            contents(open_log(files, MARK))
        with pytest.raises(PartitionDamaged):
            check(files)
    with pytest.raises(PartitionDamaged, match="last durable batch should have"):
        open_log(disk_with(IMAGE | {PATHS[-1]: image(other)[PATHS[-1]]}), MARK)


def test_a_last_segment_that_was_exchanged_under_an_open_log_is_found() -> None:
    foreign = [*GIVEN[:21], *(each._replace(payload=each.payload[::-1]) for each in GIVEN[21:])]
    other = disk()
    filled(other, foreign)
    files = disk_with(IMAGE)
    log = open_log(files, MARK)
    put(files, PATHS[-1], image(other)[PATHS[-1]])
    with pytest.raises(PartitionDamaged, match="should lead to"):
        log.read(GIVEN[21].offset, bytes_max=1)
    with pytest.raises(PartitionDamaged, match="expected the end"):
        list(log.verify())


def test_a_footer_that_is_not_that_of_its_batches_is_found() -> None:
    """Its checksum is right, but it would lead readers astray."""
    path = PATHS[0]
    footer = bytearray(IMAGE[path][_batches_end(path) :])
    footer[-FOOTER_TAIL_BYTES - 8] ^= 1  # the last stamp of the index
    footer[-8:] = pack("<Q", xxhash.xxh3_64_intdigest(bytes(footer[:-8])))
    files = disk_with(IMAGE | {path: IMAGE[path][: _batches_end(path)] + bytes(footer)})
    with pytest.raises(PartitionDamaged, match="expected the footer of these batches"):
        check(files)


def test_a_hole_or_a_swap_among_batches_of_one_length_breaks_the_chain() -> None:
    given = [batch(n + 10, n, size=60) for n in range(6)]
    files = disk()
    mark = filled(files, given).durable
    (path,) = paths(files)
    data = read_all(files, path)
    total = BATCH_HEADER_BYTES + 60
    pieces = [data[at : at + total] for at in range(SEGMENT_HEADER_BYTES, len(data), total)]
    for order in ([0, 2, 1, 3, 4, 5], [0, 1, 2, 2, 4, 5], [1, 1, 2, 3, 4, 5]):
        put(files, path, data[:SEGMENT_HEADER_BYTES] + b"".join(pieces[n] for n in order))
        with pytest.raises(PartitionDamaged, match="chain"):
            contents(open_log(files, mark))


def test_damage_below_the_start_of_the_log_is_nobodys_business() -> None:
    files = disk()
    log = filled(files, GIVEN)
    log.trim(GIVEN[-1].offset)
    mark = log.sync()
    for path in paths(files)[:-1]:
        put(files, path, b"garbage")
    assert contents(check(files, mark)) == GIVEN[-1:]


class Watched(SimFiles):
    """Remembers the largest read that anybody asked for."""

    largest = 0

    def open(self, path: str) -> SimFile:
        return WatchedFile(self, self._file(path), path)


class WatchedFile(SimFile):
    def pread(self, size: int, offset: int) -> bytes:
        assert isinstance(self._disk, Watched)
        self._disk.largest = max(self._disk.largest, size)
        return super().pread(size, offset)


def watched(content: dict[str, bytes]) -> Watched:
    files = Watched(random.Random(0))
    for path, data in content.items():
        files.mkdir(PLACE)
        files.create(path).pwritev([data], 0)
    return files


def forge(data: bytes, length: int) -> bytes:
    """A segment whose first batch claims this length, and the checksum of its header is right."""
    spoiled = bytearray(data)
    at = SEGMENT_HEADER_BYTES
    pack_into("<I", spoiled, at + 8, length)
    head = bytes(spoiled[at : at + BATCH_HEADER_BYTES - 8])
    chain = xxhash.xxh3_64_intdigest(head, seed=decode_segment_header(data).seed)
    spoiled[at + BATCH_HEADER_BYTES - 8 : at + BATCH_HEADER_BYTES] = pack("<Q", chain)
    return bytes(spoiled)


@pytest.mark.parametrize("length", [(1 << 32) - 1, 1 << 30, 2000])
def test_a_length_that_claims_more_than_there_is_costs_no_memory(length: int) -> None:
    """Failure 4."""
    source = disk()
    mark = filled(source, [batch(1, 0), batch(2, 1)]).durable
    (path,) = paths(source)
    files = watched({path: forge(read_all(source, path), length)})
    log = open_log(files, mark)
    for act in (lambda: contents(log), lambda: list(log.verify())):
        with pytest.raises(PartitionDamaged, match=f"a payload of {length} bytes"):
            act()
    assert files.largest <= TINY.read_bytes_max


@pytest.mark.parametrize("entries", [0, 1, 1 << 20, (1 << 32) - 1])
def test_a_footer_that_claims_more_than_there_is_costs_no_memory(entries: int) -> None:
    """Failure 4."""
    path = PATHS[0]
    data = bytearray(IMAGE[path])
    at = len(data) - FOOTER_TAIL_BYTES
    pack_into("<I", data, at + 8, entries)
    pack_into("<Q", data, at + 40, entries * 32 + FOOTER_TAIL_BYTES)
    files = watched(IMAGE | {path: bytes(data)})
    log = open_log(files, MARK)
    with pytest.raises(PartitionDamaged, match="footer"):
        log.sealed()
    with pytest.raises(PartitionDamaged, match="footer"):
        log.find(GIVEN[2].stamp_ms)
    assert files.largest <= TINY.read_bytes_max + len(data)


def test_arbitrary_bytes_are_refused_or_cut_and_nothing_else_happens() -> None:
    rng = random.Random(5)
    for _ in range(300):
        path = rng.choice(PATHS)
        data = bytearray(IMAGE[path])
        at = rng.randrange(len(data))
        size = rng.choice([1, 8, 64, 500])
        piece = rng.choice([rng.randbytes(size), bytes(size), b"\xff" * size])
        data[at : at + size] = piece[: len(data) - at]
        files = disk_with(IMAGE | {path: bytes(data)})
        if bytes(data) == IMAGE[path]:
            continue
        with pytest.raises(PartitionDamaged):
            check(files)
        log = open_log(files, NOTHING)
        assert image(files) == {}, "and without a mark it is all redone"
        log.append(GIVEN)
        log.sync()
        assert image(files) == IMAGE


@pytest.mark.parametrize("value", [1, 5, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("field", [name for name in Mark._fields if name != "batches"])
def test_a_mark_that_contradicts_the_files_is_refused(field: str, value: int) -> None:
    """It comes out of a database that may be damaged too."""
    mark = Mark(*(value if name == field else getattr(MARK, name) for name in Mark._fields))
    files = disk_with(IMAGE)
    if field == "first_offset" and value <= MARK.end_offset:
        assert open_log(files, mark).first_offset == value
    else:
        with pytest.raises(PartitionDamaged):
            open_log(files, mark)
    assert image(files) == IMAGE


def test_every_batch_is_read_or_refused_whichever_is_damaged() -> None:
    """What is sound beside the damage stays readable."""
    files = disk_with(IMAGE)
    files.flip_bit(PATHS[1], SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES + 3)
    log = open_log(files, MARK)
    unread: list[Batch] = []
    for each in GIVEN:
        try:
            assert log.read(each.offset, bytes_max=1) == [each]
        except PartitionDamaged:
            unread.append(each)
    assert unread == [GIVEN[7]]
