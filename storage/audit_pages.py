"""One pass over the trees of an LMDB file: each page is looked at, and belongs to one tree alone.

Branches are followed in the order of the keys; they are few. Their leaves are sorted by where they
lie and read in that order, a GiB of them at a time: a tree that has grown at random is strewn over
its file. Values with pages of their own are read behind the leaves that name them, in their order.

The one rule: what cannot be read is said once, with its place, and the rest is looked at all the
same; counts are compared only of a tree that was read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from shardnode.storage import engine_pages as pages
from shardnode.storage.audit import Book
from shardnode.storage.engine_pages import Leaf, Tree
from shardnode.storage.errors import Corrupt
from shardnode.storage.files import File

WINDOW_PAGES = 1 << 18
"""Leaves that are sorted together: for 40 MiB of memory."""

_GAP_PAGES = 16
"""Read for nothing rather than with one more call."""

_PIECE_BYTES = 4 << 20
_DEPTH_MAX = 32

LOST = (
    "what it held cannot be told: let the shard fetch everything from its peers (shardnode repair),"
    " or restore it from a backup"
)


class Bounds(NamedTuple):
    """A page, and which keys it may have: from the first, up to the second."""

    page: int
    low: bytes | None
    high: bytes | None


class Group(NamedTuple):
    """Entries that were read together, and where in the file each of them is."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    base: int
    places: Sequence[int]

    def offset(self, position: int) -> int:
        return self.base + self.places[position]


class _Large(NamedTuple):
    """A value with pages of its own, and who says so."""

    page: int
    size: int
    leaf: int
    place: int
    key: bytes


class PageFile:
    """The pages of a file, of which each may be used once."""

    def __init__(self, file: File, path: str, page_bytes: int, last_page: int, book: Book) -> None:
        self.path = path
        self.page_bytes = page_bytes
        self.last_page = last_page
        self.damaged = False
        self._file = file
        self._book = book
        self._used = bytearray(last_page + 1)
        self._used[:2] = b"\1\1"

    def read(self, number: int, count: int = 1) -> bytes:
        """So many pages."""
        data = self._file.pread(count * self.page_bytes, number * self.page_bytes)
        self._book.read(len(data))
        if len(data) != count * self.page_bytes:
            raise Corrupt(f"page {number} is cut off")
        return data

    def claim(self, number: int, count: int = 1) -> None:
        """These pages are in use from now on; each was not before."""
        end = number + count
        if not 2 <= number < end <= self.last_page + 1:
            raise Corrupt(f"pages {number} to {end - 1} of a file whose last is {self.last_page}")
        if any(self._used[number:end]):
            raise Corrupt(f"page {number} is used twice")
        self._used[number:end] = b"\1" * count

    def unclaimed(self) -> Iterator[int]:
        """Pages that nobody claimed."""
        at = self._used.find(0)
        while at >= 0:
            yield at
            at = self._used.find(0, at + 1)

    def say(self, offset: int, what: str) -> None:
        """Something is damaged at this place of the file."""
        self.damaged = True
        self._book.damaged(self.path, what, LOST, offset)

    def say_page(self, number: int, what: str, error: Corrupt) -> None:
        """… in this page."""
        self.say(number * self.page_bytes + (error.offset or 0), f"{what}: {error.detail}")


class TreeReader:
    """One tree; `where` in the file it is described."""

    def __init__(self, file: PageFile, name: str, tree: Tree, where: int) -> None:
        self._file = file
        self._name = name
        self._tree = tree
        self._where = where
        self._is_free = name == "free"
        self._is_whole = True
        self._branches = self._leaves = self._large_pages = 0
        self.entries = 0

    def groups(self) -> Iterator[Group]:
        """All entries, in the order in which they lie in the file."""
        if not self._is_plausible():
            return
        tree = self._tree
        if tree.root != pages.NOWHERE:
            bounds = self._descend(Bounds(tree.root, None, None), tree.depth)
            while window := list(islice(bounds, WINDOW_PAGES)):
                large: list[_Large] = []
                for number, leaf in self._read_leaves(window):
                    yield self._group(number, leaf, large)
                yield from self._read_large(large)
        self._compare()

    def _is_plausible(self) -> bool:
        tree, file = self._tree, self._file
        pad, flags = (file.page_bytes, pages.INTEGER_KEYS) if self._is_free else (0, 0)
        is_empty = tree.root == pages.NOWHERE
        depth_max = 0 if is_empty else _DEPTH_MAX
        good = (tree.pad, tree.flags) == (pad, flags) and (not is_empty) <= tree.depth <= depth_max
        if not good:
            self._say(f"a tree that cannot be: {tree}")
        return good

    def _say(self, what: str) -> None:
        self._is_whole = False
        self._file.say(self._where, f"the tree of {self._name}: {what}")

    def _say_page(self, number: int, error: Corrupt) -> None:
        self._is_whole = False
        self._file.say_page(number, f"the tree of {self._name}", error)

    # -- branches -----------------------------------------------------------------------------

    def _descend(self, bounds: Bounds, level: int) -> Iterator[Bounds]:
        """The leaves below a page, in the order of their keys."""
        if level == 1:
            yield bounds
            return
        number, low, high = bounds
        try:
            self._file.claim(number)
            branch = pages.decode_branch(self._file.read(number), number)
            keys = self._turned(branch.keys)
            if not pages.are_in_order(keys, low, high) or keys[0] == low:
                raise Corrupt("its keys are out of order", offset=pages.HEADER_BYTES)
        except Corrupt as error:
            self._say_page(number, error)
            return
        self._branches += 1
        for child, (first, last) in zip(branch.children, pairwise([low, *keys, high]), strict=True):
            yield from self._descend(Bounds(child, first, last), level - 1)

    def _turned(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        """Keys in an order that bytes have; numbers are stored with the lowest byte in front."""
        return [key[::-1] for key in keys] if self._is_free else keys

    # -- leaves -------------------------------------------------------------------------------

    def _read_leaves(self, window: list[Bounds]) -> Iterator[tuple[int, Leaf]]:
        page_bytes = self._file.page_bytes
        for run in _runs(sorted(self._claimed(window)), _PIECE_BYTES // page_bytes):
            first = run[0].page
            data = self._file.read(first, run[-1].page - first + 1)
            for number, low, high in run:
                at = (number - first) * page_bytes
                try:
                    leaf = pages.decode_leaf(
                        data[at : at + page_bytes], number, subtrees=self._name == "main"
                    )
                    if not leaf.keys:
                        raise Corrupt("a leaf without entries", offset=12)
                    if not pages.are_in_order(self._turned(leaf.keys), low, high):
                        raise Corrupt("its keys are out of order", offset=pages.HEADER_BYTES)
                except Corrupt as error:
                    self._say_page(number, error)
                    continue
                self._leaves += 1
                self.entries += len(leaf.keys)
                yield number, leaf

    def _claimed(self, window: list[Bounds]) -> Iterator[Bounds]:
        for bounds in window:
            try:
                self._file.claim(bounds.page)
            except Corrupt as error:
                self._say(error.detail)
            else:
                yield bounds

    def _group(self, number: int, leaf: Leaf, large: list[_Large]) -> Group:
        """The entries of a leaf that lie in it; the others are put down."""
        base = number * self._file.page_bytes
        if leaf.large is None:
            return Group(leaf.keys, leaf.values, base, leaf.places)
        keys: list[bytes] = []
        values: list[bytes] = []
        places: list[int] = []
        for is_large, size, key, value, place in zip(
            leaf.large, leaf.sizes, leaf.keys, leaf.values, leaf.places, strict=True
        ):
            if is_large:
                large.append(_Large(pages.page_number(value), size, number, place, key))
            else:
                keys.append(key)
                values.append(value)
                places.append(place)
        return Group(keys, values, base, places)

    # -- large values -------------------------------------------------------------------------

    def _read_large(self, large: list[_Large]) -> Iterator[Group]:
        page_bytes = self._file.page_bytes
        for number, size, leaf, place, key in sorted(large):
            needed = pages.large_pages(size, page_bytes)
            try:
                if number + needed > self._file.last_page + 1:
                    raise Corrupt(f"a value of {size} bytes in page {number}")
                data = self._file.read(number, needed)
                count = pages.decode_large(data, number)
                if count < needed:
                    raise Corrupt(f"{count} pages for a value of {size} bytes")
                self._file.claim(number, count)
            except Corrupt as error:
                error.offset = place
                self._say_page(leaf, error)
                continue
            self._large_pages += count
            value = data[pages.HEADER_BYTES : pages.HEADER_BYTES + size]
            yield Group([key], [value], number * page_bytes, [0])

    def _compare(self) -> None:
        if not self._is_whole:
            return
        tree = self._tree
        found = (self._branches, self._leaves, self._large_pages, self.entries)
        expected = (tree.branch_pages, tree.leaf_pages, tree.large_pages, tree.entries)
        if found != expected:
            names = "branches, leaves, large pages and entries"
            self._say(f"expected {names} {expected}, found {found}")


def _runs(window: list[Bounds], pages_max: int) -> Iterator[list[Bounds]]:
    """Sorted pages as pieces to be read at once."""
    run: list[Bounds] = []
    for bounds in window:
        if run and (
            bounds.page - run[-1].page > _GAP_PAGES or bounds.page - run[0].page >= pages_max
        ):
            yield run
            run = []
        run.append(bounds)
    if run:
        yield run
