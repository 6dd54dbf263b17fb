"""Looking things up in the keys of a snapshot: by key, and by the number of a row.

    file = KeyFile(pread, size)
    file.rows                      how many keys there are
    file.row_of(b"user:")          the first row whose key is not below
    file.block(number)             the columns of one block, checked

The one rule: a block is read whole, or not at all, and checked when it is read. A few stay in
memory: whoever looks for one key of a block often wants another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from shardnode.storage.engine_values import are_sound
from shardnode.storage.errors import SnapshotCorrupt
from shardnode.storage.keyfile import Block, BlockRef, Pread, open_block, read_index

BLOCKS_KEPT = 64
"""About 64 MB."""


class KeyFile:
    """The keys of one snapshot."""

    def __init__(self, pread: Pread, size: int) -> None:
        """Raises `SnapshotCorrupt` when this is no such file."""
        self._pread = pread
        self.blocks: list[BlockRef] = read_index(pread, size)
        self.starts = list(accumulate((ref.keys for ref in self.blocks), initial=0))
        """The number of the first row of each block, and how many rows there are."""
        self._firsts = [ref.first for ref in self.blocks]
        self._kept: OrderedDict[int, Block] = OrderedDict()

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return self.starts[-1]

    def block(self, number: int) -> Block:
        """The columns of a block."""
        found = self._kept.get(number)
        if found is None:
            ref = self.blocks[number]
            found = self._kept[number] = open_block(memoryview(self._pread(ref.offset, ref.size)))
            if len(self._kept) > BLOCKS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(number)
        return found

    def block_of_row(self, row: int) -> int:
        """The number of the block that has a row."""
        return bisect_right(self.starts, row) - 1

    def row_of(self, key: bytes) -> int:
        """The first row whose key is not below this one; `rows` when there is none."""
        number = self._block_of(key)
        if number < 0:
            return 0
        return self.starts[number] + self.block(number).lower_bound(key)

    def key_at(self, row: int) -> bytes:
        """The key of a row."""
        number = self.block_of_row(row)
        first = self.starts[number]
        return self._firsts[number] if row == first else self.block(number).key(row - first)

    def get(self, key: bytes) -> bytes | None:
        """What is kept of a key."""
        number = self._block_of(key)
        if number < 0:
            return None
        block = self.block(number)
        place = block.lower_bound(key)
        if place == block.keys or block.key(place) != key:
            return None
        kept = block.kept(place)
        if not are_sound([key], [kept]):
            raise SnapshotCorrupt(f"the key {key!r} does not match its checksum")
        return kept

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept of each key."""
        return list(map(self.get, keys))

    def block_numbers(self, begin: int, end: int) -> Iterator[int]:
        """The blocks that have rows of begin ≤ row < end."""
        if begin < end:
            yield from range(self.block_of_row(begin), self.block_of_row(end - 1) + 1)

    def extent(self, begin: int, end: int) -> tuple[int, int]:
        """Where the blocks of these rows begin and end in the file."""
        if begin >= end:
            return 0, 0
        last = self.blocks[self.block_of_row(end - 1)]
        return self.blocks[self.block_of_row(begin)].offset, last.offset + last.size

    def _block_of(self, key: bytes) -> int:
        """The only block that can have it; -1 when it is below the first."""
        return bisect_right(self._firsts, key) - 1
