"""The bytes of LMDB's file, as LMDB 0.9 lays them down, for those who look at it without LMDB.

    page      header (16 bytes): number u64, pad, flags, lower, upper (u16); of a large value the
              last two are one u32, how many pages it has
    meta      pages 0 and 1: magic, version u32, address, map size u64, two trees, last page,
              transaction u64; the higher transaction counts
    tree      pad u32, flags, depth u16, branch, leaf and large pages, entries, root u64
    branch    u16 for each node, where it lies; from `upper` on nodes: page (48 bits), key
    leaf      … nodes: size of the data u32, flags, size of the key u16, key, data; of a large value
              the data is the number of its first page

Between `lower` and `upper` of a page lie bytes without a meaning, as they do behind a large value
and in pages that are free.

The one rule: nothing is believed. LMDB reads a damaged file without a look at where it points, and
may take the process with it; here a place outside the page is `Corrupt` like any other damage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from operator import lt
from struct import Struct, error
from typing import NamedTuple

from shardnode.storage.errors import Corrupt

HEADER_BYTES = 16
META_BYTES = 152
"""Of a meta page; the rest of it is zeros."""

BRANCH, LEAF, LARGE, META = 1, 2, 4, 8
NOWHERE = (1 << 64) - 1
"""The root of a tree without pages."""

INTEGER_KEYS = 8
"""The flag of a tree whose keys are numbers of this machine: that of the free pages."""

_BIG, _SUBTREE = 1, 2
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_PAGE = Struct("<QHHHH")
_LARGE_PAGE = Struct("<QHHI")
_META = Struct("<QHHIIIQQ")
_TREE = Struct("<IHHQQQQQ")
_META_END = Struct("<QQ")
_NODE = Struct("<HHHH")
_NODE_BYTES = _NODE.size
_U64 = Struct("<Q")
_BIG_ENDIAN = sys.byteorder == "big"


class Tree(NamedTuple):
    """What a tree says of itself."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    large_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """One of the two beginnings of the file."""

    page_bytes: int
    map_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


class Branch(NamedTuple):
    """A page of a tree that leads to others."""

    keys: Sequence[bytes]  # of all but the first child: nothing reads the first one's
    children: Sequence[int]


class Leaf(NamedTuple):
    """A page of a tree with entries."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    """Of a large one, the number of its first page in eight bytes."""
    sizes: Sequence[int]
    large: Sequence[bool] | None
    """Which values have pages of their own; None when there are none."""
    places: Sequence[int]
    """Where in the page each entry begins."""


def decode_meta(data: bytes, number: int) -> Meta:
    """A meta page from its first bytes."""
    if len(data) < META_BYTES:
        raise Corrupt(f"a beginning has {META_BYTES} bytes, found {len(data)}", offset=0)
    if _BIG_ENDIAN:
        raise Corrupt("these bytes are read on little-endian machines alone", offset=0)
    page, pad, flags, bounds, magic, version, address, map_bytes = _META.unpack_from(data)
    found = (page, pad, flags, bounds, magic, version, address)
    expected = (number, 0, META, 0, _MAGIC, _VERSION, 0)
    if found != expected:
        names = "page, pad, flags, bounds, magic, version and address"
        raise Corrupt(f"a beginning should have {names} {expected}, has {found}", offset=0)
    free = Tree._make(_TREE.unpack_from(data, 40))
    main = Tree._make(_TREE.unpack_from(data, 88))
    last_page, transaction = _META_END.unpack_from(data, 136)
    page_bytes = free.pad
    if page_bytes not in {1 << bits for bits in range(9, 17)}:
        raise Corrupt(f"pages of {page_bytes} bytes", offset=40)
    return Meta(page_bytes, map_bytes, free, main, last_page, transaction)


def decode_tree(data: bytes) -> Tree:
    """What the main tree keeps of a named one."""
    if len(data) != _TREE.size:
        raise Corrupt(f"a tree has {_TREE.size} bytes, found {len(data)}")
    return Tree._make(_TREE.unpack(data))


def decode_large(data: bytes, number: int) -> int:
    """How many pages the large value has whose first page begins with `data`."""
    page, _, flags, pages = _LARGE_PAGE.unpack_from(data)
    if (page, flags) != (number, LARGE):
        found = f"page {page} with flags {flags:#x}"
        raise Corrupt(f"expected page {number} of a large value, found {found}", offset=0)
    return int(pages)


def decode_branch(page: bytes, number: int) -> Branch:
    places = _places(page, number, BRANCH)
    if len(places) < 2:
        raise Corrupt(f"a branch with {len(places)} children", offset=12)
    keys, children = [], []
    try:
        for place in places:
            low, middle, high, key_bytes = _NODE.unpack_from(page, place)
            end = place + _NODE_BYTES + key_bytes
            if end > len(page):
                raise Corrupt(f"a key of {key_bytes} bytes leaves the page", offset=place)
            children.append(low | middle << 16 | high << 32)
            keys.append(page[place + _NODE_BYTES : end])
    except error:
        raise _outside(page, places) from None
    used = sum((_NODE_BYTES + len(key) + 1) & ~1 for key in keys)
    if used != len(page) - min(places):
        raise Corrupt(f"children of {used} bytes in {len(page) - min(places)}", offset=14)
    return Branch(keys[1:], children)


def decode_leaf(page: bytes, number: int, *, subtrees: bool = False) -> Leaf:
    """A leaf whose keys are in order; loops in C and comprehensions, for there are many.
    `subtrees`: its values are trees, as in the main one."""
    places = _places(page, number, LEAF)
    try:
        nodes = list(map(_NODE.unpack_from, repeat(page), places))
    except error:
        raise _outside(page, places) from None
    lows, highs, flags, key_sizes = zip(*nodes, strict=True) if nodes else ((), (), (), ())
    sizes: Sequence[int] = lows
    if any(highs):
        sizes = [low | high << 16 for low, high in zip(lows, highs, strict=True)]
    large = None
    held = sizes
    expected = _SUBTREE if subtrees else 0
    if set(flags) - {expected}:
        large = _large(places, flags)
        held = [8 if is_large else size for size, is_large in zip(sizes, large, strict=True)]
    keys = [page[place + 8 : place + 8 + key] for place, key in zip(places, key_sizes, strict=True)]
    values = [
        page[place + 8 + key : place + 8 + key + size]
        for place, key, size in zip(places, key_sizes, held, strict=True)
    ]
    if list(map(len, keys)) != list(key_sizes) or list(map(len, values)) != list(held):
        raise _outside(page, places)
    return Leaf(keys, values, sizes, large, places)


def _large(places: Sequence[int], flags: Sequence[int]) -> list[bool]:
    for place, flag in zip(places, flags, strict=True):
        if flag not in (0, _BIG):
            raise Corrupt(f"an entry with flags {flag:#x}", offset=place + 4)
    return [flag == _BIG for flag in flags]


def _places(page: bytes, number: int, kind: int) -> tuple[int, ...]:
    """Where the nodes of a page lie."""
    found, _, flags, lower, upper = _PAGE.unpack_from(page)
    if found != number or flags != kind:
        raise Corrupt(
            f"expected page {number} with flags {kind:#x}, found page {found} with {flags:#x}",
            offset=0,
        )
    count, odd = divmod(lower - HEADER_BYTES, 2)
    if odd or count < 0 or not lower <= upper <= len(page):
        raise Corrupt(f"the free part of a page from {lower} to {upper}", offset=12)
    places: tuple[int, ...] = _numbers(count).unpack_from(page, HEADER_BYTES)
    lowest = min(places, default=len(page))
    if lowest != upper:
        raise Corrupt(f"the free part ends at {upper}, but entries begin at {lowest}", offset=14)
    return places


@cache
def _numbers(count: int) -> Struct:
    return Struct(f"<{count}H")


def _outside(page: bytes, places: Sequence[int]) -> Corrupt:
    """An entry that does not lie in its page."""
    last = max(places)
    return Corrupt(f"an entry leaves its page of {len(page)} bytes", offset=min(last, len(page)))


def are_in_order(keys: Sequence[bytes], low: bytes | None, high: bytes | None) -> bool:
    """Whether low ≤ keys < high, each higher than the one before."""
    return (
        all(map(lt, keys, keys[1:]))
        and (low is None or keys[0] >= low)
        and (high is None or keys[-1] < high)
    )


def large_pages(size: int, page_bytes: int) -> int:
    """How many pages a value of this size needs of its own."""
    return (HEADER_BYTES - 1 + size) // page_bytes + 1


def page_number(data: bytes) -> int:
    """The first page of a large value, as its leaf has it."""
    return int(_U64.unpack(data)[0])


def decode_free(data: bytes) -> Iterable[int]:
    """The pages in one entry of the tree of free pages: their number, then they, falling."""
    count, odd = divmod(len(data), 8)
    numbers = Struct(f"<{count}Q").unpack(data[: 8 * count])
    if odd or not numbers or numbers[0] != count - 1:
        raise Corrupt(f"a list of {numbers[0] if numbers else 0} pages in {len(data)} bytes")
    pages = numbers[1:]
    if not all(map(lt, pages[1:], pages)):
        raise Corrupt("a list of free pages that is out of order")
    return pages
