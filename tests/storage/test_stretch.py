"""A stretch of a log as bytes: the same whatever the batches were, and it proves itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.storage.errors import Compacted, Corrupt, LogDamaged
from shardnode.storage.log import SegmentedLog
from shardnode.storage.records import (
    ORIGIN,
    RECORD_HEADER_BYTES,
    Anchor,
    Record,
    encode_body,
)
from shardnode.storage.stretch import Stretch, prove, prove_pieces
from tests.storage.kit import (
    contents,
    disk,
    filled,
    open_log,
    overwrite,
    payload_size,
    position,
    record,
    run,
    segments,
)


def as_bytes(records: list[Record], previous: Anchor) -> bytes:
    """What the stretch must be, by way of the code that writes batches."""
    limit = 1 << 30
    body = encode_body(records, previous, max_record_bytes=limit, max_batch_bytes=limit)
    return b"".join(map(bytes, body.buffers))


def drained(stretch: Stretch, first: int, size: int) -> bytes:
    data = b""
    while piece := stretch.read(first, len(data), size):
        data += piece
        if len(piece) < size:
            break
    return data


def overridden_log(seed: int) -> SegmentedLog:
    """Batches of all sizes, some of which override the end of what was there before."""
    draw = random.Random(seed)
    log = open_log(disk(seed))
    term = 1
    for _ in range(draw.randrange(5, 40)):
        if draw.random() < 0.3 and log.last_index:
            term += 1
            log.truncate_back(log.last_index - draw.randrange(min(5, log.last_index)))
        first = log.last_index + 1
        if draw.random() < 0.2 and first > 3:  # one batch that overrides by itself
            first, term = first - draw.randrange(1, 3), term + 1
        last = first + draw.randrange(7)
        sizes = {index: payload_size(index + seed) % 900 for index in range(first, last + 1)}
        log.append_batch([record(index, term, sizes[index]) for index in range(first, last + 1)])
        log.sync()
    return log


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_stretch_is_what_the_records_are_whatever_their_batches(
    seed: int, data: st.DataObject
) -> None:
    log = overridden_log(seed)
    first = data.draw(st.integers(1, log.last_index))
    last = data.draw(st.integers(first, log.last_index))
    size = data.draw(st.sampled_from([1, 7, 100, 1_000, 1 << 20]))
    previous = position(log, first - 1) if first > 1 else ORIGIN
    expected = as_bytes(log.read(first, last), previous)
    found = drained(log.stretch(last), first, size)
    assert found == expected
    proven = list(prove(found, previous))
    assert [each.record for each in proven] == log.read(first, last)
    assert (proven[-1].position, proven[-1].end) == (position(log, last), len(found))


def test_it_is_read_from_any_place_again() -> None:
    log = filled(disk(), 200, batch=7)
    stretch = log.stretch(150)
    whole = drained(stretch, 20, 1 << 20)
    draw = random.Random(5)
    for _ in range(50):
        offset, size = draw.randrange(len(whole) + 10), draw.randrange(1, 500)
        assert stretch.read(20, offset, size) == whole[offset : offset + size]
    assert stretch.read(21, 0, 1 << 20) == whole[RECORD_HEADER_BYTES + 40 :]
    stretch.close()
    assert stretch.read(20, 0, 1 << 20) == whole, "closing gives a file back, no more"


def test_writing_on_changes_nothing_for_who_reads() -> None:
    log = filled(disk(), 60)
    stretch = log.stretch(60)
    expected = drained(log.stretch(60), 1, 1 << 20)
    found = stretch.read(1, 0, 500)
    log.append_batch(run(61, 90))
    log.sync()
    log.append_batch(run(75, 80, term=2))
    log.sync()
    found += stretch.read(1, 500, 1 << 20)
    assert found == expected


def test_what_was_cut_off_is_said_to_be() -> None:
    log = filled(disk(), 200)
    stretch = log.stretch(200)
    log.truncate_front(150)
    for _ in range(2):
        with pytest.raises(Compacted):
            stretch.read(1, 0, 100)
    first = log.first_index
    assert next(prove(stretch.read(first, 0, 1 << 20), log.anchor)).record == record(first)


def test_bytes_after_an_index_are_about_right() -> None:
    log = filled(disk(), 300)
    assert log.bytes_after(300) == 0
    assert log.bytes_after(299) > 0
    for index in range(0, 300, 17):
        exact = len(as_bytes(contents(log)[index:], position(log, index)))
        assert exact <= log.bytes_after(index) <= exact * 2.5 + 1500


def test_a_damaged_batch_is_never_given_away() -> None:
    files = disk()
    log = filled(files, 30)
    file = files.open(segments(files)[0])
    overwrite(files, segments(files)[0], 500, bytes([file.pread(1, 500)[0] ^ 1]))
    stretch = log.stretch(30)
    for _ in range(2):
        with pytest.raises(LogDamaged):
            drained(stretch, 1, 1 << 20)


def test_every_flipped_bit_of_a_stretch_is_noticed() -> None:
    data = as_bytes(run(8, 12, size=30), Anchor(7, 1, 99))
    assert [each.record.index for each in prove(data, Anchor(7, 1, 99))] == [8, 9, 10, 11, 12]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            ends = [each.end for each in prove(bytes(flipped), Anchor(7, 1, 99))]
        except Corrupt:
            continue
        assert (ends[-1] if ends else 0) < len(data), f"bit {bit} was not noticed"


def test_a_stretch_of_another_history_is_refused() -> None:
    data = as_bytes(run(8, 12), Anchor(7, 1, 99))
    for other in (Anchor(7, 1, 98), Anchor(6, 1, 99), Anchor(7, 2, 99)):
        with pytest.raises(Corrupt):
            list(prove(data, other))
    assert list(prove(data[:40], Anchor(7, 1, 99))) == [], "a beginning proves nothing"


@pytest.mark.parametrize("size", [1, 13, 60, 1 << 20])
def test_records_are_proven_from_pieces_and_an_unfinished_one_is_said(size: int) -> None:
    before = Anchor(7, 1, 99)
    data = as_bytes(run(8, 30, size=30), before)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    whole = [(each.record, each.chain) for each in prove(data, before)]
    assert [(each.record, each.chain) for each in prove_pieces(pieces, before)] == whole
    with pytest.raises(Corrupt, match="bytes of a record"):
        list(prove_pieces([*pieces, b"\1\2\3"], before))


def test_a_large_record_is_proven_too() -> None:
    log = open_log(disk())
    log.append_batch([record(1, size=100_000), record(2, size=20)])
    log.sync()
    data = drained(log.stretch(2), 1, 4_096)
    assert [len(each.record.payload) for each in prove(data, ORIGIN)] == [100_000, 20]
