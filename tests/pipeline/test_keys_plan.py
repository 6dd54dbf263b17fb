"""Which rows go into which partition: each into one, and changes with the keys beside them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.pipeline.keys_plan import (
    PARTITION_BYTES,
    KeyRange,
    changes_of,
    cut_rows,
    end_of_prefix,
    part_counts,
    range_of,
)
from shardnode.pipeline.options import parse

keys = st.binary(max_size=4)


@given(keys, keys)
def test_keys_of_a_prefix_are_a_range(prefix: bytes, key: bytes) -> None:
    assert (key in KeyRange(prefix, end_of_prefix(prefix))) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, b"", None),
        ({"prefix": "user:"}, b"user:", b"user;"),
        ({"prefix": "user:", "start": "user:5"}, b"user:5", b"user;"),
        ({"prefix": "user:", "start": "a", "end": "z"}, b"user:", b"user;"),
        ({"start": "ff", "end": "ffff", "keyEncoding": "hex"}, b"\xff", b"\xff\xff"),
        ({"prefix": "ffff", "keyEncoding": "hex"}, b"\xff\xff", None),
    ],
)
def test_options_leave_a_range(given: dict[str, str], low: bytes, high: bytes | None) -> None:
    assert range_of(parse(given)) == KeyRange(low, high)


@given(
    begin=st.integers(0, 50),
    size=st.integers(1, 3_000),
    parts=st.integers(1, 60),
    blocks=st.lists(st.integers(1, 400), max_size=20),
    exact=st.booleans(),
)
def test_every_row_is_in_one_partition(
    begin: int, size: int, parts: int, blocks: list[int], exact: bool
) -> None:
    parts = min(parts, size)
    starts = [sum(blocks[:number]) for number in range(len(blocks) + 1)]
    cuts = cut_rows(begin, begin + size, parts, starts, exact)
    assert (cuts[0], cuts[-1], len(cuts)) == (begin, begin + size, parts + 1)
    assert all(a < b for a, b in pairwise(cuts))
    if exact:
        assert max(b - a for a, b in pairwise(cuts)) <= -(-size // parts)


@given(st.dictionaries(keys, st.sampled_from([b"", b"kept"])), st.lists(keys, max_size=5))
def test_every_change_goes_to_one_partition(
    changed: dict[bytes, bytes], inner: list[bytes]
) -> None:
    changes = changes_of(changed, KeyRange())
    bounds: list[bytes | None] = [b"", *sorted(set(inner) - {b""}), None]
    found = [
        item
        for low, high in pairwise(bounds)
        if low is not None
        for item in zip(*changes.within(KeyRange(low, high)), strict=True)
    ]
    assert found == sorted(changed.items())


def test_counts_follow_bytes_rows_and_what_was_asked_for() -> None:
    sizes = [10 * PARTITION_BYTES, 1, 0]
    assert part_counts([1_000, 10, 0], sizes, parse({})) == [10, 1, 1]
    asked = parse({"minPartitions": "30"})
    assert sum(part_counts([1_000, 10, 0], sizes, asked)) >= 30
    asked = parse({"maxRecordsPerPartition": "3"})
    assert part_counts([1_000, 10, 0], sizes, asked) == [334, 4, 1]
