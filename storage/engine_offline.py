"""The key-value files of a stopped shard, read in the order of the keys and without LMDB.

The one rule: what is read is checked on the way, and damage is `Corrupt` with its place; LMDB
itself would make files beside it, and might follow a damaged number anywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import TypeVar

from shardnode.storage import engine_pages as pages
from shardnode.storage.audit_keys import choose_meta
from shardnode.storage.engine_blobs import INDEX, unseal
from shardnode.storage.engine_pages import Leaf, Meta, Tree
from shardnode.storage.engine_store import Item
from shardnode.storage.engine_values import are_sound
from shardnode.storage.errors import Corrupt
from shardnode.storage.files import Files

_INDEX = Struct(">Q")
_DEPTH_MAX = 32

T = TypeVar("T")


class OfflineKeys:
    """One file; `close` it."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._file = files.open(path)
        try:
            self.meta: Meta = choose_meta(self._file)[0]
            self.trees: dict[str, Tree] = {}
            for key, value in self._items(self.meta.main, b"", subtrees=True):
                self.trees[key.decode("ascii", "backslashreplace")] = pages.decode_tree(value)
        except Corrupt as error:
            self._file.close()
            raise Corrupt(error.detail, path=path, offset=error.offset) from None

    @property
    def index(self) -> int:
        """Of the log, which the last commit reflects."""
        packed = self.blob(INDEX)
        return int(_INDEX.unpack(packed)[0]) if packed else 0

    @property
    def count(self) -> int:
        """How many keys there are, as the tree says."""
        return self.trees["keys"].entries if "keys" in self.trees else 0

    def blob(self, name: str) -> bytes:
        """A named blob; empty when there is none."""
        for key, value in self._tree("blobs", name.encode()):
            return unseal(name, value, self.path) if key == name.encode() else b""
        return b""

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """All of them, by name."""
        for key, value in self._tree("blobs", b""):
            name = key.decode("ascii", "backslashreplace")
            yield name, unseal(name, value, self.path)

    def items(self, low: bytes = b"") -> Iterator[Item]:
        """Keys and what is kept of them, in order, from `low` on."""
        for key, kept in self._tree("keys", low):
            if not are_sound([key], [kept]):
                raise Corrupt(f"the key {key!r} does not match its checksum", path=self.path)
            yield key, kept

    def get(self, key: bytes) -> bytes | None:
        """What is kept of one key."""
        found = next(self.items(key), None)
        return found[1] if found is not None and found[0] == key else None

    def bounds(self, count: int) -> list[bytes]:
        """Keys that cut the tree into about equal parts: at least so many, if it has as many pages,
        and in order."""
        tree = self.trees.get("keys")
        if tree is None or tree.root == pages.NOWHERE:
            return []
        numbers, keys = [tree.root], [b""]
        for _ in range(tree.depth - 1):
            if len(keys) > count:
                break
            branches = [self._decode(number, pages.decode_branch) for number in numbers]
            below = [[first, *branch.keys] for first, branch in zip(keys, branches, strict=True)]
            numbers = [child for branch in branches for child in branch.children]
            keys = [key for each in below for key in each]
        return keys[1:]

    def close(self) -> None:
        self._file.close()

    def _tree(self, name: str, low: bytes) -> Iterator[Item]:
        if name in self.trees:
            yield from self._items(self.trees[name], low)

    def _items(self, tree: Tree, low: bytes, *, subtrees: bool = False) -> Iterator[Item]:
        if tree.root == pages.NOWHERE:
            return
        if not 1 <= tree.depth <= _DEPTH_MAX:
            raise Corrupt(f"a tree of {tree.depth} levels", path=self.path, offset=0)
        for number in self._leaves(tree.root, tree.depth, low):
            leaf = self._decode(number, partial(pages.decode_leaf, subtrees=subtrees))
            for position in range(bisect_left(leaf.keys, low), len(leaf.keys)):
                yield leaf.keys[position], self._value(leaf, position)

    def _leaves(self, number: int, level: int, low: bytes) -> Iterator[int]:
        if level == 1:
            yield number
            return
        branch = self._decode(number, pages.decode_branch)
        for child in branch.children[bisect_right(branch.keys, low) :]:
            yield from self._leaves(child, level - 1, low)

    def _decode(self, number: int, decode: Callable[[bytes, int], T]) -> T:
        try:
            return decode(self._read(number, 1), number)
        except Corrupt as error:
            at = number * self.meta.page_bytes + (error.offset or 0)
            raise Corrupt(error.detail, path=self.path, offset=at) from None

    def _value(self, leaf: Leaf, position: int) -> bytes:
        value = leaf.values[position]
        if leaf.large is None or not leaf.large[position]:
            return value
        size = leaf.sizes[position]
        count = pages.large_pages(size, self.meta.page_bytes)
        data = self._read(pages.page_number(value), count)
        return data[pages.HEADER_BYTES : pages.HEADER_BYTES + size]

    def _read(self, number: int, count: int) -> bytes:
        size = self.meta.page_bytes
        if not 2 <= number < number + count <= self.meta.last_page + 1:
            raise Corrupt(f"page {number} is not in the file", path=self.path)
        data = self._file.pread(count * size, number * size)
        if len(data) != count * size:
            raise Corrupt(f"page {number} is cut off", path=self.path)
        return data
