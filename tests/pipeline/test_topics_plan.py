"""Offsets as users say them, ranges cut into pieces, micro-batches shared out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.client.offsets import Start
from shardnode.pipeline.topics_plan import Span, from_json, split, spread, starts_of, to_json
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import OffsetPoint

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=6)


def test_json_says_each_partition_and_leaves_the_default_for_the_rest() -> None:
    starts = starts_of({0: 23, 1: -2, 2: -1}, "latest", 4, "startingOffsets")
    assert starts == [
        Start(None, 23),
        Start(OffsetPoint.EARLIEST, 0),
        Start(OffsetPoint.LATEST, 0),
        Start(OffsetPoint.LATEST, 0),
    ]


def test_a_time_is_one_moment_for_all_partitions() -> None:
    starts = starts_of("-10m", "earliest", 3, "startingOffsets")
    assert len({*starts}) == 1
    assert starts[0].point is OffsetPoint.TIMESTAMP
    [start] = starts_of("1970-01-01T00:00:01Z", "earliest", 1, "startingOffsets")
    assert start == Start(OffsetPoint.TIMESTAMP, 1000)


def test_a_partition_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"startingOffsets: .* 0 to 1, .* found 2, 7"):
        starts_of({0: 1, 7: 0, 2: 0}, "earliest", 2, "startingOffsets")


@given(SIZES, st.integers(0, 40), st.integers(0, 20))
def test_pieces_cover_the_ranges_once_in_order_and_as_finely_as_was_asked(
    sizes: list[int], at_least: int, records_max: int
) -> None:
    spans = [Span(number, 100, 100 + size) for number, size in enumerate(sizes)]
    pieces = split(spans, at_least, records_max)
    for span in spans:
        own = [piece for piece in pieces if piece.partition == span.partition]
        assert [offset for p in own for offset in range(p.start, p.end)] == [
            *range(span.start, span.end)
        ]
        assert max(p.size for p in own) - min(p.size for p in own) <= 1
    assert len(pieces) >= max(len(sizes), min(at_least, sum(sizes)))
    assert not records_max or max(piece.size for piece in pieces) <= records_max


@given(SIZES, st.integers(1, 100), st.integers(0, 1000))
def test_a_micro_batch_is_full_and_takes_something_of_each_partition(
    sizes: list[int], rows_max: int, turn: int
) -> None:
    backlogs = dict(enumerate(sizes))
    taken = spread(backlogs, rows_max, turn)
    assert taken.keys() == backlogs.keys()
    assert sum(taken.values()) == min(rows_max, sum(sizes))
    assert all(0 <= taken[each] <= backlogs[each] for each in backlogs)
    waiting = [each for each in backlogs if backlogs[each]]
    if rows_max >= len(waiting):
        assert all(taken[each] for each in waiting)


def test_what_comes_next_is_in_proportion_to_what_waits() -> None:
    assert spread({0: 100, 1: 300, 2: 0, 3: 600}, 100) == {0: 10, 1: 30, 2: 0, 3: 60}


def test_with_fewer_rows_than_partitions_all_of_them_get_a_turn() -> None:
    backlogs = {0: 10**6, 1: 1, 2: 1}
    served = {each for turn in range(3) for each, n in spread(backlogs, 1, turn).items() if n}
    assert served == {0, 1, 2}


def test_offsets_are_told_in_one_order_whatever_order_they_came_in() -> None:
    offsets = {10: 1, 2: 5, 0: 7}
    assert json.dumps(to_json(offsets)) == '{"0": 7, "10": 1, "2": 5}'
    assert from_json(to_json(offsets)) == offsets
    assert from_json(None) == {}
