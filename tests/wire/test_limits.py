"""Limits fit together: what one allows, the others have room for."""

from __future__ import annotations

from shardnode.wire import limits, replies, requests
from shardnode.wire.cursors import PLACE_MAX, ScanCursor


def test_largest_put_fits_into_a_body() -> None:
    largest = requests.Put(b"k" * limits.key_bytes_max, bytes(limits.value_bytes_max))
    assert len(largest.encode()) <= limits.body_bytes_max


def test_batch_of_the_most_and_longest_keys_fits_into_a_body() -> None:
    keys = [b"%0*d" % (limits.key_bytes_max, n) for n in range(limits.batch_keys_max)]
    assert len(requests.DeleteMany(keys).encode()) <= limits.body_bytes_max


def test_fullest_page_fits_into_a_body() -> None:
    """A page is closed once it has reached its size, so the last entry may be a largest one."""
    keys = [b"k" * limits.key_bytes_max] * limits.scan_page_entries_max
    numbers = [2**64 - 1] * limits.scan_page_entries_max
    small = [b""] * (limits.scan_page_entries_max - 1)
    page = replies.Page(keys, [*small, bytes(limits.value_bytes_max)], numbers, numbers, keys[0])
    assert len(page.encode()) <= limits.body_bytes_max


def test_place_within_an_entry_has_room_for_a_batch() -> None:
    """The last place stands for "behind the whole entry" and is never a change's own."""
    assert limits.batch_keys_max <= PLACE_MAX


def test_fullest_scan_cursor_is_accepted_back() -> None:
    shards = range(limits.shards_max)
    full = ScanCursor(2**64 - 1, [*shards], [b"k" * limits.key_bytes_max for _ in shards])
    assert ScanCursor.from_text(full.to_text()) == full


def test_shard_numbers_fit_the_bytes_and_ports_they_are_kept_in() -> None:
    assert limits.shard_id_max <= 255  # a byte per slot in a table
    assert limits.shards_max <= 100  # direct ports begin 100 above the router's, peers' 200 above


def test_keys_fit_the_engine() -> None:
    assert limits.key_bytes_max < 511  # LMDB's own limit, with room for a prefix
    assert limits.routing_key_bytes_max == limits.key_bytes_max


def test_no_text_is_longer_than_an_error_message() -> None:
    """The unpacker refuses longer text unseen, so every limit of a text must be below it."""
    texts = (limits.name_bytes_max, limits.endpoint_bytes_max, limits.error_detail_bytes_max)
    assert max(texts) <= limits.error_message_bytes_max
