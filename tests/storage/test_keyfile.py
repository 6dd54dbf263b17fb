"""The keys of a snapshot as a file of columns: the same bytes everywhere, and none believed."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.storage.engine_store import Item
from shardnode.storage.engine_values import keep
from shardnode.storage.errors import SnapshotCorrupt
from shardnode.storage.keyfile import (
    BLOCK_BYTES,
    BLOCK_KEYS,
    HEAD_BYTES,
    TRAILER_BYTES,
    open_block,
    pack_keys,
    read_index,
    unpack_keys,
)
from shardnode.storage.keyfile_reader import KeyFile


def slots_of(keys: Sequence[bytes]) -> array[int]:
    return array("H", [sum(key) for key in keys])


def items_of(count: int, value_bytes: int, seed: int = 1) -> list[Item]:
    draw = random.Random(seed)
    keys = sorted({draw.randbytes(draw.randint(1, 30)) for _ in range(count)})
    return [
        (key, keep(at + 1, draw.choice((0, 0, 99_000 + at)), key, draw.randbytes(value_bytes)))
        for at, key in enumerate(keys)
    ]


def cut_up(items: Sequence[Item], seed: int) -> Iterator[Sequence[Item]]:
    draw = random.Random(seed)
    at = 0
    while at < len(items):
        size = draw.randint(0, 3_000)
        yield items[at : at + size]
        at += size


def packed(items: Sequence[Item]) -> bytes:
    return b"".join(pack_keys([items], slots_of))


def blocks_of(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    for ref in read_index(lambda offset, size: data[offset : offset + size], len(data)):
        yield view[ref.offset : ref.offset + ref.size]


def read(data: bytes) -> list[Item]:
    return [item for view in blocks_of(data) for item in open_block(view).items()]


@pytest.mark.parametrize(("count", "value_bytes"), [(0, 0), (1, 0), (20_000, 100), (40, 300_000)])
def test_file_gives_back_what_went_in_and_its_columns_lie_as_arrow_wants_them(
    count: int, value_bytes: int
) -> None:
    items = items_of(count, value_bytes)
    data = packed(items)
    for view in blocks_of(data):
        block = open_block(view)
        assert block.keys <= BLOCK_KEYS
        slots = array("H", bytes(block.slots))
        assert slots == slots_of(block.key_list())
        assert all(len(column) % 8 == 0 for column in (block.versions, block.expiries))
    assert read(data) == items
    assert [item for batch in unpack_keys([data]) for item in batch] == items


def test_where_blocks_end_follows_from_the_keys_alone() -> None:
    items = items_of(30_000, 120)
    whole = packed(items)
    for seed in range(5):
        assert b"".join(pack_keys(cut_up(items, seed), slots_of)) == whole
    sizes = [len(view) for view in blocks_of(whole)]
    assert len(sizes) > 3
    assert max(sizes) < BLOCK_BYTES + BLOCK_KEYS * 40


def test_index_names_the_first_key_of_every_block() -> None:
    items = items_of(30_000, 120)
    data = packed(items)
    refs = read_index(lambda offset, size: data[offset : offset + size], len(data))
    firsts = [open_block(view).key_list()[0] for view in blocks_of(data)]
    assert [ref.first for ref in refs] == firsts == sorted(firsts)
    assert sum(ref.keys for ref in refs) == len(items)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=40))
def test_file_may_come_in_pieces_of_any_size(sizes: list[int]) -> None:
    items = items_of(300, 40)
    data = packed(items)
    pieces = []
    at = number = 0
    while at < len(data):
        pieces.append(data[at : at + sizes[number % len(sizes)]])
        at += len(pieces[-1])
        number += 1
    assert [item for batch in unpack_keys(pieces) for item in batch] == items


def test_a_flipped_bit_anywhere_is_found() -> None:
    data = packed(items_of(60, 20))
    zeros_before_the_index = HEAD_BYTES - 8  # the last bytes of a head mean nothing
    for at in range(16, len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0x10
        place = at - 16
        if zeros_before_the_index <= place < HEAD_BYTES:
            continue
        with pytest.raises(SnapshotCorrupt):
            read(bytes(spoiled))


@pytest.mark.parametrize("end", [0, 8, 15, 16, 40, -1, -TRAILER_BYTES, -TRAILER_BYTES - 1])
def test_a_file_that_ends_early_is_no_file(end: int) -> None:
    data = packed(items_of(60, 20))[:end]
    with pytest.raises(SnapshotCorrupt):
        list(unpack_keys([data]))
    with pytest.raises(SnapshotCorrupt):
        read(data)


def test_a_file_of_another_version_is_named_as_one() -> None:
    with pytest.raises(SnapshotCorrupt, match="begin with"):
        list(unpack_keys([b"\0\0\0\x10" + bytes(100)]))


def test_keys_and_rows_are_found_as_in_a_sorted_list() -> None:
    items = items_of(25_000, 100, seed=3)
    data = packed(items)
    file = KeyFile(lambda offset, size: data[offset : offset + size], len(data))
    keys = [key for key, _ in items]
    assert file.rows == len(items)
    draw = random.Random(5)
    wanted = [b"", b"\xff" * 40, keys[0], keys[-1], *(ref.first for ref in file.blocks)]
    wanted += draw.choices(keys, k=300) + [key + b"\0" for key in draw.choices(keys, k=300)]
    known = dict(items)
    for key in wanted:
        row = bisect_left(keys, key)
        assert file.row_of(key) == row
        assert file.get(key) == known.get(key)
        if row < len(keys):
            assert file.key_at(row) == keys[row]
    assert file.get_many(wanted) == [known.get(key) for key in wanted]
    for begin, end in ((0, 0), (0, 1), (5, len(items)), (9_000, 9_001)):
        numbers = list(file.block_numbers(begin, end))
        rows = [row for n in numbers for row in range(file.starts[n], file.starts[n + 1])]
        assert set(range(begin, end)) <= set(rows)
        assert len(numbers) <= 1 or file.starts[numbers[1]] > begin


def test_an_empty_file_has_no_rows() -> None:
    data = packed([])
    file = KeyFile(lambda offset, size: data[offset : offset + size], len(data))
    assert (file.rows, file.row_of(b"k"), file.get(b"k")) == (0, 0, None)
    assert list(file.block_numbers(0, 0)) == []
