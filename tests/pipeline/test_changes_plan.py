"""Where changes begin, and how far a micro-batch of them goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.pipeline.changes_plan import reach, starts_of
from shardnode.wire.errors import InvalidRequest


def test_a_new_query_begins_now_unless_it_says_otherwise() -> None:
    assert starts_of(None, 2) == starts_of("latest", 2) == [-1, -1]
    assert starts_of("earliest", 2) == [-2, -2]
    assert starts_of({1: 17}, 3) == [-1, 17, -1]


def test_a_time_and_a_shard_that_is_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="by log index and not by time"):
        starts_of("-10m", 2)
    with pytest.raises(InvalidRequest, match="expected shards from 0 to 1, found 2"):
        starts_of({2: 1}, 2)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 40))
def test_a_micro_batch_has_whole_entries_as_many_as_fit_and_one_at_least(
    sizes: list[int], rows_max: int
) -> None:
    indexes = [10 + 2 * entry for entry, size in enumerate(sizes) for _ in range(size)]
    end = indexes[-1] + 5
    reached = reach(indexes[: rows_max + 1], rows_max, end)
    taken = [index for index in indexes if index <= reached]
    assert taken
    assert len(taken) <= max(rows_max, sizes[0])
    if len(indexes) <= rows_max:
        assert reached == end
    else:
        following = sizes[len({*taken})] if len(taken) < len(indexes) else 0
        assert len(taken) + following > rows_max
