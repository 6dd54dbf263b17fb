"""The keys of a snapshot as one file: blocks of columns, in the order of keys, and an index.

    file    magic 8 | zero 8 | block … block | index | trailer
    block   head | checksums u64 ×n | versions u64 ×n | expiries u64 ×n | key offsets u32 ×n+1
            | value offsets u32 ×n+1 | slots u16 ×n | keys | values       each padded to 8 bytes
    head    magic 4 | n u32 | bytes of keys u32 | bytes of values u32 | checksum u64 | zero u64
    index   for each block: offset u64 | n u32 | bytes of its first key u16 | that key
    trailer offset of the index u64 | its bytes u64 | blocks u64 | keys u64 | checksum u64 | magic 8

All numbers are little endian. The checksum of a block is the xxh3_64 of all behind its head, seeded
with the one of the 16 bytes before it; that of the trailer covers the index and the four numbers.

One rule: a block can be used as it lies in memory. Its columns are those of Arrow: a reader maps
the file, and a million rows cost it no more than a look at each block. Where a block ends follows
from the keys and values alone, so replicas write the same bytes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import add, itemgetter
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from shardnode.storage.engine_store import Item
from shardnode.storage.engine_values import HEADER_BYTES
from shardnode.storage.errors import SnapshotCorrupt

BLOCK_KEYS = 8_192
BLOCK_BYTES = 1 << 20
"""A block is full when it has either; one value may be larger than that."""

FILE_MAGIC = b"snkeys\x00\x02"
_BLOCK_MAGIC = b"SNKB"
_BEGIN = FILE_MAGIC.ljust(16, b"\0")
_HEAD = Struct("<4sIIIQ8x")
_COUNTS = Struct("<4sIII")
_ROW = Struct("<QIH")
_PAIR = Struct("<II")
_NUMBERS = Struct("<QQQQ")
_TRAILER = Struct("<32sQ8s")
HEAD_BYTES = _HEAD.size
TRAILER_BYTES = _TRAILER.size
INDEX_BYTES_MAX = 1 << 30

SlotsOf = Callable[[Sequence[bytes]], "array[int]"]
"""The slots of keys, as an array of unsigned 16-bit numbers."""

Pread = Callable[[int, int], bytes | memoryview]
"""(offset, size) → the bytes there."""

_ADVICE = "the snapshot cannot be used; take or fetch another"
_CUT_HEADER = itemgetter(slice(HEADER_BYTES))
_CUT_VALUE = itemgetter(slice(HEADER_BYTES, None))


class BlockRef(NamedTuple):
    """Where a block is."""

    offset: int
    size: int
    keys: int
    first: bytes
    """Its first key."""


class Block(NamedTuple):
    """The columns of a block, where they lie."""

    keys: int
    checksums: memoryview
    versions: memoryview
    expiries: memoryview
    """Milliseconds since 1970 UTC; 0: never."""
    key_offsets: memoryview
    value_offsets: memoryview
    slots: memoryview
    key_bytes: memoryview
    value_bytes: memoryview

    def key_list(self) -> list[bytes]:
        """The keys as bytes."""
        return _cut(self.key_bytes, self.key_offsets)

    def key(self, place: int) -> bytes:
        """One key."""
        begin, end = _PAIR.unpack_from(self.key_offsets, 4 * place)
        return bytes(self.key_bytes[begin:end])

    def kept(self, place: int) -> bytes:
        """What is kept of one key."""
        stamps = (self.checksums, self.versions, self.expiries)
        head = b"".join(bytes(column[8 * place : 8 * place + 8])[::-1] for column in stamps)
        begin, end = _PAIR.unpack_from(self.value_offsets, 4 * place)
        return head + bytes(self.value_bytes[begin:end])

    def lower_bound(self, key: bytes) -> int:
        """The place of the first key that is not below this one."""
        return bisect_left(range(self.keys), key, key=self.key)

    def items(self) -> list[Item]:
        """Keys, and what is kept of each."""
        stamps: array[int] = array("Q", bytes(24 * self.keys))
        stamps[0::3] = _numbers(self.checksums)
        stamps[1::3] = _numbers(self.versions)
        stamps[2::3] = _numbers(self.expiries)
        stamps.byteswap()
        heads = stamps.tobytes()
        values = _cut(self.value_bytes, self.value_offsets)
        starts = range(0, len(heads), HEADER_BYTES)
        kept = [heads[at : at + HEADER_BYTES] + v for at, v in zip(starts, values, strict=True)]
        return list(zip(self.key_list(), kept, strict=True))


# -- writing --------------------------------------------------------------------------------------


def pack_keys(batches: Iterable[Sequence[Item]], slots_of: SlotsOf) -> Iterator[bytes]:
    """The file of these items, in pieces."""
    yield _BEGIN
    offset, total = len(_BEGIN), 0
    rows = []
    for keys, kept in _blocks(batches):
        block = _pack_block(keys, kept, slots_of(keys))
        yield block
        rows.append(_ROW.pack(offset, len(keys), len(keys[0])) + keys[0])
        offset += len(block)
        total += len(keys)
    index = b"".join(rows)
    yield index
    numbers = _NUMBERS.pack(offset, len(index), len(rows), total)
    yield _TRAILER.pack(numbers, xxh3_64_intdigest(index + numbers), FILE_MAGIC)


def _blocks(batches: Iterable[Sequence[Item]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and what is kept of them, cut where a block is full."""
    keys: list[bytes] = []
    kept: list[bytes] = []
    size = 0
    for batch in batches:
        if not batch:
            continue
        more_keys, more_kept = zip(*batch, strict=True)
        keys += more_keys
        kept += more_kept
        size += sum(map(len, more_keys)) + sum(map(len, more_kept))
        while len(keys) >= BLOCK_KEYS or size >= BLOCK_BYTES:
            ends = list(accumulate(map(add, map(len, keys), map(len, kept))))
            end = min(BLOCK_KEYS, bisect_left(ends, BLOCK_BYTES) + 1, len(keys))
            cut = ends[end - 1]
            yield keys[:end], kept[:end]
            del keys[:end], kept[:end]
            size -= cut
    if keys:
        yield keys, kept


def _pack_block(keys: Sequence[bytes], kept: Sequence[bytes], slots: array[int]) -> bytes:
    stamps = array("Q", b"".join(map(_CUT_HEADER, kept)))
    stamps.byteswap()
    values = list(map(_CUT_VALUE, kept))
    key_bytes, value_bytes = b"".join(keys), b"".join(values)
    parts = [
        _little(stamps[0::3]),
        _little(stamps[1::3]),
        _little(stamps[2::3]),
        _little(array("I", accumulate(map(len, keys), initial=0))),
        _little(array("I", accumulate(map(len, values), initial=0))),
        _little(slots),
        key_bytes,
        value_bytes,
    ]
    body = b"".join(piece for part in parts for piece in (part, bytes(-len(part) % 8)))
    counts = _COUNTS.pack(_BLOCK_MAGIC, len(keys), len(key_bytes), len(value_bytes))
    head = _HEAD.pack(
        _BLOCK_MAGIC, len(keys), len(key_bytes), len(value_bytes), _checksum(counts, body)
    )
    return head + body


def _checksum(counts: bytes, body: bytes | memoryview) -> int:
    return xxh3_64_intdigest(body, xxh3_64_intdigest(counts))


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


# -- reading --------------------------------------------------------------------------------------


def block_bytes(head: bytes | bytearray | memoryview) -> int:
    """The size of the block that begins with these `HEAD_BYTES`; raises `SnapshotCorrupt`."""
    magic, count, key_bytes, value_bytes, _ = _HEAD.unpack_from(head)
    if magic != _BLOCK_MAGIC:
        raise SnapshotCorrupt("expected a block of keys", advice=_ADVICE)
    numbers = 24 * count + 2 * _padded(4 * (count + 1)) + _padded(2 * count)
    return int(HEAD_BYTES + numbers + _padded(key_bytes) + _padded(value_bytes))


def open_block(data: memoryview) -> Block:
    """The block in these bytes, which are all of it; raises `SnapshotCorrupt`."""
    if len(data) < HEAD_BYTES or block_bytes(data) != len(data):
        raise SnapshotCorrupt("a block of keys has another size than it says", advice=_ADVICE)
    _, count, key_bytes, value_bytes, checksum = _HEAD.unpack_from(data)
    if _checksum(bytes(data[: _COUNTS.size]), data[HEAD_BYTES:]) != checksum:
        raise SnapshotCorrupt("a block of keys does not match its checksum", advice=_ADVICE)
    at = HEAD_BYTES
    columns = []
    for size in (
        *(8 * count,) * 3,
        *(4 * (count + 1),) * 2,
        2 * count,
        key_bytes,
        value_bytes,
    ):
        columns.append(data[at : at + size])
        at += _padded(size)
    return Block(count, *columns)


def read_index(pread: Pread, size: int) -> list[BlockRef]:
    """All blocks of a file of this size; raises `SnapshotCorrupt`."""
    least = len(_BEGIN) + TRAILER_BYTES
    if size < least:
        raise SnapshotCorrupt(f"expected keys of at least {least} bytes", advice=_ADVICE)
    numbers, checksum, magic = _TRAILER.unpack(pread(size - TRAILER_BYTES, TRAILER_BYTES))
    if magic != FILE_MAGIC:
        raise SnapshotCorrupt(
            f"expected keys that end with {FILE_MAGIC!r}, found {magic!r}",
            advice="it is damaged, or another version wrote it: read it with that one",
        )
    offset, index_bytes, count, total = _NUMBERS.unpack(numbers)
    if offset + index_bytes + TRAILER_BYTES != size or index_bytes > INDEX_BYTES_MAX:
        raise SnapshotCorrupt("the index of the keys is not where it should be", advice=_ADVICE)
    index = bytes(pread(offset, index_bytes))
    if xxh3_64_intdigest(index + numbers) != checksum:
        raise SnapshotCorrupt("the index of the keys does not match its checksum", advice=_ADVICE)
    rows, at = [], 0
    while at < len(index):
        begin, keys, length = _ROW.unpack_from(index, at)
        at += _ROW.size + length
        rows.append((begin, keys, index[at - length : at]))
    ends = [*(row[0] for row in rows), offset][1:]
    assert (len(rows), sum(row[1] for row in rows)) == (count, total), "its checksum is right"
    return [
        BlockRef(begin, end - begin, keys, first)
        for (begin, keys, first), end in zip(rows, ends, strict=True)
    ]


def unpack_keys(chunks: Iterable[bytes]) -> Iterator[list[Item]]:
    """The items of a file that comes in pieces of any length, block by block."""
    waiting = bytearray()
    begun = False
    for chunk in chunks:
        waiting += chunk
        if not begun and len(waiting) >= len(_BEGIN):
            if waiting[: len(_BEGIN)] != _BEGIN:
                raise SnapshotCorrupt(
                    f"expected keys that begin with {FILE_MAGIC!r}, found {bytes(waiting[:8])!r}",
                    advice="it is damaged, or another version wrote it: read it with that one",
                )
            del waiting[: len(_BEGIN)]
            begun = True
        while begun and len(waiting) >= HEAD_BYTES and waiting.startswith(_BLOCK_MAGIC):
            size = block_bytes(waiting)
            if len(waiting) < size:
                break
            yield open_block(memoryview(bytes(waiting[:size]))).items()
            del waiting[:size]
    if not begun or len(waiting) < TRAILER_BYTES or not waiting.endswith(FILE_MAGIC):
        raise SnapshotCorrupt("the keys of the snapshot end before their trailer", advice=_ADVICE)


def _cut(data: memoryview, offsets: memoryview) -> list[bytes]:
    whole, ends = bytes(data), _numbers(offsets, "I").tolist()
    return [whole[begin:end] for begin, end in pairwise(ends)]


def _numbers(data: memoryview, kind: str = "Q") -> array[int]:
    numbers: array[int] = array(kind, bytes(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _padded(size: int) -> int:
    return size + -size % 8
