"""Cursors: text that resumes where it was made, and positions that order changes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits
from shardnode.wire.cursors import (
    INDEX_MAX,
    PLACE_MAX,
    ScanCursor,
    WatchCursor,
    position_of,
    split_position,
)

SHARDS = st.integers(0, limits.shard_id_max)
EPOCHS = st.integers(0, 2**64 - 1)


@given(EPOCHS, st.dictionaries(SHARDS, st.binary(max_size=limits.key_bytes_max), max_size=8))
def test_scan_cursor_survives_as_text(epoch: int, positions: dict[int, bytes]) -> None:
    cursor = ScanCursor(epoch, list(positions), list(positions.values()))
    text = cursor.to_text()
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert ScanCursor.from_text(text) == cursor
    assert ScanCursor.from_text(text).positions() == positions


@given(EPOCHS, st.dictionaries(SHARDS, st.integers(0, 2**64 - 1)))
def test_watch_cursor_survives_as_text(epoch: int, positions: dict[int, int]) -> None:
    cursor = WatchCursor(epoch, list(positions), list(positions.values()))
    assert WatchCursor.from_text(cursor.to_text()).positions() == positions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with 's', found ''"),
        (WatchCursor(1, [0], [5]).to_text(), "begins with 's', found 'w'"),
        ("s", "end of a body"),
        ("s!!!", "in base64"),
        ("sä", "in base64"),
        ("s" + "A" * 13, "in base64"),
        (ScanCursor(1, [0], [b"k"]).to_text()[:-2], "end of the body|end of a body|base64"),
        ("s" * (limits.cursor_bytes_max + 1), "cursor_bytes_max"),
    ],
)
def test_text_that_is_no_such_cursor_is_refused(text: str, said: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=said):
        ScanCursor.from_text(text)


@pytest.mark.parametrize(
    "cursor",
    [
        ScanCursor(1, [0, 0], [b"a", b"b"]),
        ScanCursor(1, [0], []),
        WatchCursor(1, [1, 1], [2, 3]),
        WatchCursor(1, [0, 1], [2]),
    ],
)
def test_cursor_without_one_position_per_shard_is_refused(
    cursor: ScanCursor | WatchCursor,
) -> None:
    with pytest.raises(errors.MalformedFrame, match="one position for each shard"):
        cursor.to_text()


def test_shard_beyond_the_last_is_refused() -> None:
    with pytest.raises(errors.LimitExceeded, match="shard_id_max"):
        WatchCursor(1, [limits.shards_max], [0]).to_text()


CHANGE = st.tuples(st.integers(1, INDEX_MAX), st.integers(0, PLACE_MAX))


@given(CHANGE, CHANGE)
def test_positions_order_changes_as_the_log_does(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (position_of(*one) < position_of(*other)) == (one < other)
    assert split_position(position_of(*one)) == one
    assert 0 < position_of(*one) < 2**64


def test_position_behind_an_entry_is_before_the_next() -> None:
    last_place = limits.batch_keys_max - 1
    assert position_of(7, last_place) < position_of(7) < position_of(8, 0)
