"""Which moments can be restored: exactly those for which everything is there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from shardnode.backup.format import Base, Chunk, ShardCut
from shardnode.backup.points import Point, point_at_index, point_at_time, point_of
from shardnode.shard.entries import encode_entry
from shardnode.storage.records import Record
from shardnode.storage.stretch import Proven
from shardnode.wire.errors import NotFound
from shardnode.wire.placement import KEY_VALUE_PARTITION, RAFT_PARTITION


def stamp(index: int) -> int:
    """Several records share a stamp; every fifth has none."""
    return 1_000 + index // 3 * 10


def has_stamp(index: int) -> bool:
    return index % 5 != 0


def chunk(first: int, last: int) -> Chunk:
    stamps = [stamp(index) for index in range(first, last + 1) if has_stamp(index)]
    return Chunk(
        first, last, 1, first - 1, last, 10, min(stamps, default=0), max(stamps, default=0)
    )


def base(index: int) -> Base:
    before = [stamp(each) for each in range(1, index + 1) if has_stamp(each)]
    return Base(index, 1, index, index * 7, 100, max(before, default=0))


def cut(index: int, start: Base | None, *log: Chunk) -> ShardCut:
    """Everything stamped before the next record is in it."""
    after = next(each for each in range(index + 1, index + 9) if has_stamp(each))
    return ShardCut(0, index, 1, index, stamp(after) - 1, start, log)


def read(wanted: Chunk) -> Iterator[Proven]:
    for index in range(wanted.first, wanted.last + 1):
        partition = KEY_VALUE_PARTITION if has_stamp(index) else RAFT_PARTITION
        payload = encode_entry(stamp(index), 1, b"") if has_stamp(index) else b""
        yield Proven(Record(index, 1, partition, index, payload), index, 0)


def indexes_of(point: Point) -> list[int]:
    """What a restore would apply behind the base."""
    at, found = point.start.index, []
    for each in point.path:
        for index in range(each.first, each.last + 1):
            if at < index <= point.index:
                assert index == at + 1, "a gap"
                found.append(index)
                at = index
    return found


def check(point: Point, index: int) -> None:
    assert point.index == index
    assert indexes_of(point) == [*range(point.start.index + 1, index + 1)]


CUTS = [
    cut(30, base(10), chunk(11, 20), chunk(21, 30)),
    cut(40, base(10), chunk(11, 20), chunk(21, 30), chunk(31, 40)),
    cut(70, base(60), chunk(58, 65), chunk(66, 70)),
    cut(80, base(75), chunk(71, 80)),
]
"""From 10 to 40, and from 60 to 80."""
POSSIBLE = {*range(10, 41), *range(60, 81)}


def test_a_backup_is_restored_from_what_it_names_itself() -> None:
    for each in CUTS:
        point = point_of(each)
        check(point, each.index)
        assert point.base == each.base
        assert {*point.path} <= {*each.log}
    with pytest.raises(NotFound, match="does not name the rest"):
        point_of(cut(50, base(10), chunk(11, 20), chunk(31, 50)))


def test_every_index_that_is_covered_can_be_restored_and_no_other() -> None:
    for index in range(1, 90):
        if index in POSSIBLE:
            check(point_at_index(0, CUTS, index), index)
        else:
            with pytest.raises(NotFound, match=rf"from 10 to 40 or from 60 to 80.* found {index};"):
                point_at_index(0, CUTS, index)


def test_a_time_is_everything_that_was_stamped_by_then() -> None:
    reached = 0
    for time in range(950, stamp(100)):
        by_then = [index for index in range(1, 101) if has_stamp(index) and stamp(index) <= time]
        last = by_then[-1] if by_then else 0
        try:
            point = point_at_time(0, CUTS, time, read)
        except NotFound:
            possible = last in POSSIBLE and last + 1 in POSSIBLE
            assert not possible, f"{time}: index {last} could have been restored"
            continue
        reached += 1
        check(point, point.index)
        included = [index for index in range(1, point.index + 1) if has_stamp(index)]
        assert included == by_then, time
    assert reached > 100


def test_a_time_behind_the_last_record_counts_as_far_as_a_cut_vouches_for_it() -> None:
    idle = [cut(32, base(32))]
    assert point_at_time(0, idle, stamp(32), read).index == 32
    assert point_at_time(0, idle, idle[0].through_ms, read).index == 32
    for time in (idle[0].through_ms + 1, base(32).stamp_ms - 1):
        with pytest.raises(NotFound, match=r"expected a time from .* to .*, found"):
            point_at_time(0, idle, time, read)


def test_random_collections_never_promise_what_is_not_there() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        cuts = []
        for _ in range(draw.randrange(1, 6)):
            start = draw.choice([None, base(draw.randrange(1, 50))])
            at = start.index if start is not None else 0
            log = []
            while draw.random() < 0.7:
                first = max(1, at + 1 - draw.randrange(3))
                log.append(chunk(first, at + draw.randrange(1, 9)))
                at = log[-1].last
            if at:
                cuts.append(cut(at, start, *log))
        if not cuts:
            continue
        for each in cuts:
            check(point_of(each), each.index)
        for index in range(1, 120):
            try:
                point = point_at_index(0, cuts, index)
            except NotFound:
                assert all(index != each.index for each in cuts)
                continue
            check(point, index)
