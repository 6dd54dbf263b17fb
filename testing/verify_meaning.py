"""Which bytes of a sound directory mean something, so that a flip in any of them is damage.

    kind of file              what of it means nothing, and why
    ------------------------  -----------------------------------------------------------------
    log, the last segment     what lies behind the last batch: it was reserved, and what is there
                              cannot be told from the beginning of a write that was torn
    partition, the last one   what lies above the mark: it is cut at the next start
    LMDB, the beginnings      the size of the map: LMDB is always told one. Of the older one all but
                              what says that it is one, and its transaction
    LMDB, pages               pages that are free, and what is behind the last one; the free part of
                              a page, the byte that makes a length even, the pad of a header; the
                              first key of a branch; the rest of the last page of a large value

Of every other file each byte counts. A flip may still leave a file that says the very same, or one
as a crash may leave it: in LMDB a key of a branch that parts its children as before, and the number
of a transaction, in the list of free pages, that stays below the newest and in its order; a copy of
the superblock that looks like the next one, half written. `is_the_same` tells; whoever flips draws
again.

The one rule: the places are worked out from the files, never guessed from what `verify` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from shardnode.offline.verify_streams import marked_partitions
from shardnode.storage import engine_pages as pages
from shardnode.storage.audit import Book
from shardnode.storage.audit_keys import audit_keys, choose_meta, newest_file
from shardnode.storage.audit_log import audit_log
from shardnode.storage.engine_pages import Tree
from shardnode.storage.files import ReadOnlyFiles
from shardnode.storage.partition_open import look
from shardnode.storage.superblock import COPIES, SUPERBLOCK_BYTES, is_torn

_NODE = Struct("<HHHH")
_U64 = Struct("<Q")
_TREE_BYTES = 48
_BIG = 1


class Range(NamedTuple):
    """Bytes of a file, from the first up to the last."""

    path: Path
    start: int
    end: int
    is_the_same: Callable[[bytes], bool] | None = None
    """Told the whole range after a flip: whether that changes nothing."""


def whole(path: Path) -> Range:
    return Range(path, 0, path.stat().st_size)


def beside(data: Path, name: str) -> list[Range]:
    return [whole(data / name)]


def superblocks(shard: Path) -> list[Range]:
    copies = [shard / name for name in COPIES]
    return [
        Range(path, 0, SUPERBLOCK_BYTES, partial(is_torn, whole=other.read_bytes()))
        for path, other in zip(copies, reversed(copies), strict=True)
    ]


def sealed_segments(shard: Path) -> list[Range]:
    return [whole(path) for path in sorted((shard / "log").glob("*.seg"))[:-1]]


def last_segment(shard: Path) -> list[Range]:
    found = audit_log(ReadOnlyFiles(shard.parent), shard.name, 0, Book())
    segment = found.timeline.segments[-1]
    return [Range(shard.parent / segment.path, 0, segment.end)]


def sidecars(shard: Path) -> list[Range]:
    return [whole(path) for path in (shard / "log").glob("*.idx")]


def manifests(shard: Path) -> list[Range]:
    return [whole(path) for path in (shard / "snapshots").glob("*/manifest")]


def snapshot_files(shard: Path) -> list[Range]:
    every = (shard / "snapshots").glob("*[0-9]/*")
    return [whole(path) for path in every if path.name != "manifest" and path.stat().st_size]


def partitions(shard: Path, *, sealed: bool) -> list[Range]:
    """Of every partition that the marks in the keys know, its sealed segments or its last one."""
    files = ReadOnlyFiles(shard.parent)
    blobs = audit_keys(files, shard.name, Book()).blobs
    found = []
    for _, directory, mark in marked_partitions(blobs["streams"], shard.name):
        segments = look(files, directory, mark).segments
        for segment in segments:
            if sealed is segment.is_sealed:
                end = segment.size if sealed else mark.position
                found.append(Range(shard.parent / segment.path, 0, end))
    return found


def lmdb(shard: Path) -> list[Range]:
    """Of the key-value files."""
    files = ReadOnlyFiles(shard.parent)
    path = newest_file(files, shard.name)
    file = files.open(path)
    try:
        meta, _, number = choose_meta(file)
    finally:
        file.close()
    return list(_Lmdb(shard.parent / path, meta, number).ranges())


class _Lmdb:
    """Walks the trees once more, noting where things lie and not whether they are right."""

    def __init__(self, path: Path, meta: pages.Meta, number: int) -> None:
        self._path = path
        self._data = path.read_bytes()
        self._meta = meta
        self._number = number
        self._page_bytes = meta.page_bytes

    def ranges(self) -> Iterator[Range]:
        for number in (0, 1):
            start = number * self._page_bytes
            yield self._range(start, start + 32)
            if number == self._number:
                yield self._range(start + 40, start + pages.META_BYTES)
            else:
                yield self._range(start + 40, start + 44)
                yield self._range(start + 144, start + pages.META_BYTES)
        yield from self._tree(self._meta.free, is_free=True)
        yield from self._tree(self._meta.main)
        for node in self._nodes_below(self._meta.main):
            yield from self._tree(pages.decode_tree(self._data[node.value : node.end]))

    def _range(self, start: int, end: int) -> Range:
        return Range(self._path, start, end)

    def _tree(self, tree: Tree, *, is_free: bool = False) -> Iterator[Range]:
        if tree.root == pages.NOWHERE:
            return
        yield from self._page(tree.root, tree.depth, is_free)
        if is_free:
            yield from self._transactions(tree)
        else:
            yield from self._leaf_entries(tree, keys=True)
        yield from self._leaf_entries(tree, keys=False)

    def _page(self, page: int, level: int, is_free: bool) -> Iterator[Range]:
        """Headers, places, heads of nodes, and the keys of branches."""
        start = page * self._page_bytes
        nodes = self._nodes(page)
        yield self._range(start, start + 8)
        yield self._range(start + 10, start + pages.HEADER_BYTES + 2 * len(nodes))
        for node in nodes:
            yield self._range(node.start, node.key)
        if level > 1:
            children = [self._child(node) for node in nodes]
            for position, node in enumerate(nodes[1:]):
                left, right = children[position], children[position + 1]
                bounds = self._last(left, level - 1), self._first(right, level - 1)
                same = _parts(*bounds, turned=is_free)
                yield Range(self._path, node.key, node.key + node.key_bytes, same)
            for child in children:
                yield from self._page(child, level - 1, is_free)

    def _leaf_entries(self, tree: Tree, *, keys: bool) -> Iterator[Range]:
        for node in self._nodes_below(tree):
            if keys:
                yield self._range(node.key, node.value)
            elif node.is_large:
                (first,) = _U64.unpack_from(self._data, node.value)
                start = first * self._page_bytes
                yield self._range(node.value, node.value + 8)
                yield self._range(start, start + 8)
                yield self._range(start + 10, start + pages.HEADER_BYTES + node.size)
            elif node.size:
                yield self._range(node.value, node.end)

    def _transactions(self, tree: Tree) -> Iterator[Range]:
        """The keys of the list of free pages: numbers, each higher than the one before."""
        nodes = sorted(self._nodes_below(tree), key=lambda node: self._number_at(node.key))
        bounds = [0, *(self._number_at(node.key) for node in nodes), self._meta.transaction + 1]
        for position, node in enumerate(nodes):
            low, high = bounds[position], bounds[position + 2]
            is_newest = bounds[position + 1] == self._meta.transaction
            same = _never if is_newest else _between(low, high)
            yield Range(self._path, node.key, node.key + 8, same)

    # -- where things lie -----------------------------------------------------------------------

    def _number_at(self, at: int) -> int:
        return int(_U64.unpack_from(self._data, at)[0])

    def _nodes(self, page: int) -> list[_Node]:
        start = page * self._page_bytes
        lower = int.from_bytes(self._data[start + 12 : start + 14], "little")
        count = (lower - pages.HEADER_BYTES) // 2
        places = Struct(f"<{count}H").unpack_from(self._data, start + pages.HEADER_BYTES)
        return [_Node.at(self._data, start + place) for place in places]

    def _child(self, node: _Node) -> int:
        low, middle, high, _ = _NODE.unpack_from(self._data, node.start)
        return int(low | middle << 16 | high << 32)

    def _leaves(self, page: int, level: int) -> Iterator[int]:
        if level == 1:
            yield page
            return
        for node in self._nodes(page):
            yield from self._leaves(self._child(node), level - 1)

    def _nodes_below(self, tree: Tree) -> Iterator[_Node]:
        if tree.root != pages.NOWHERE:
            for leaf in self._leaves(tree.root, tree.depth):
                yield from self._nodes(leaf)

    def _first(self, page: int, level: int) -> bytes:
        return self._key(self._nodes(next(self._leaves(page, level)))[0])

    def _last(self, page: int, level: int) -> bytes:
        return self._key(self._nodes(list(self._leaves(page, level))[-1])[-1])

    def _key(self, node: _Node) -> bytes:
        return self._data[node.key : node.value]


class _Node(NamedTuple):
    """Where an entry of a page lies in the file."""

    start: int
    key: int
    key_bytes: int
    value: int
    size: int
    is_large: bool

    @property
    def end(self) -> int:
        return self.value + self.size

    @classmethod
    def at(cls, data: bytes, start: int) -> _Node:
        low, high, flags, key_bytes = _NODE.unpack_from(data, start)
        key = start + _NODE.size
        is_large = bool(flags & _BIG)
        return cls(start, key, key_bytes, key + key_bytes, low | high << 16, is_large)


def _parts(left: bytes, right: bytes, *, turned: bool) -> Callable[[bytes], bool]:
    """Whether a key still parts two children; numbers have their lowest byte in front."""
    if turned:
        return lambda key: left[::-1] < key[::-1] <= right[::-1]
    return lambda key: left < key <= right


def _never(_: bytes) -> bool:
    return False


def _between(low: int, high: int) -> Callable[[bytes], bool]:
    return lambda key: low < int(_U64.unpack(key)[0]) < high
