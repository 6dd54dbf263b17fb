"""The key-value files of one shard, looked at byte by byte: every page of LMDB's trees, every value
against its checksum, every page of the file either in use or free.

The one rule: LMDB is not asked. It would follow a damaged number wherever that points, and tells of
a value what it finds; this reads the file itself and names the place.

What lies behind the last page, in a free page or in the free part of one means nothing and is not
looked at. Of the older of the two beginnings LMDB reads what says that it is one, and its
transaction; the rest counts only when a power failure has undone the newer one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from shardnode.storage import engine_pages as pages
from shardnode.storage.audit import Book
from shardnode.storage.audit_pages import LOST, Group, PageFile, TreeReader
from shardnode.storage.engine_blobs import INDEX, unseal
from shardnode.storage.engine_pages import Meta, Tree
from shardnode.storage.engine_store import are_sound_times
from shardnode.storage.engine_values import are_sound
from shardnode.storage.errors import Corrupt, StorageError
from shardnode.storage.files import File, Files, join

KEYS_DIRECTORY = "kv"
DATA_FILE = "data.mdb"
_GENERATION = re.compile(r"\d{20}")
_INDEX = Struct(">Q")
_FREE_AT, _MAIN_AT = 40, 88  # in a beginning
_KEY_SHOWN = 60


@dataclass(slots=True)
class Keys:
    """What the files hold, as far as it could be read."""

    path: str = ""
    index: int = 0
    """Of the log, which the last commit reflects."""
    transaction: int = 0
    count: int = 0
    blobs: dict[str, bytes] = field(default_factory=dict)
    damaged: bool = False


def newest_file(files: Files, shard: str) -> str:
    """The file that is in force in the directory of a shard; empty when there is none."""
    directory = join(shard, KEYS_DIRECTORY)
    if not files.exists(directory):
        return ""
    names = [name for name in files.listdir(directory) if _GENERATION.fullmatch(name)]
    path = join(join(directory, max(names)), DATA_FILE) if names else ""
    return path if path and files.exists(path) else ""


def choose_meta(file: File) -> tuple[Meta, Meta, int]:
    """The beginning that counts, the other one, and the page of the first."""
    first = pages.decode_meta(file.pread(pages.META_BYTES, 0), 0)
    data = file.pread(pages.META_BYTES, first.page_bytes)
    try:
        second = pages.decode_meta(data, 1)
    except Corrupt as error:
        raise Corrupt(error.detail, offset=first.page_bytes) from None
    if first.transaction >= second.transaction:
        return first, second, 0
    return second, first, 1


def audit_keys(files: Files, shard: str, book: Book) -> Keys:
    """Look at everything; what is wrong goes into the book."""
    path = newest_file(files, shard)
    found = Keys(path)
    if not path:
        return found
    file = files.open(path)
    before = book.bytes_read
    try:
        if file.size():  # else LMDB was killed before it wrote anything
            _Audit(file, found, book).run()
        book.skip(max(0, file.size() - (book.bytes_read - before)))
    except StorageError as error:
        found.damaged = True
        book.damaged(path, str(error), LOST)
    finally:
        file.close()
    return found


class _Audit:
    """One pass over one file."""

    def __init__(self, file: File, found: Keys, book: Book) -> None:
        self._file = file
        self._found = found
        self._book = book
        self._trees: list[tuple[str, Tree, int]] = []
        self._freed_last = 0

    def run(self) -> None:
        found = self._found
        begun = self._begin()
        if begun is None:
            found.damaged = True
            return
        meta, number = begun
        found.transaction = meta.transaction
        self._pages = PageFile(self._file, found.path, meta.page_bytes, meta.last_page, self._book)
        begins = number * meta.page_bytes
        self._read("main", meta.main, begins + _MAIN_AT, self._take_trees)
        takers = {"keys": self._take_keys, "times": self._take_times, "blobs": self._take_blobs}
        for name, tree, where in self._trees:
            if name in takers:
                self._read(name, tree, where, takers[name])
            else:
                self._pages.say(where, f"an unknown tree called {name!r}")
        if self._trees and {name for name, _, _ in self._trees} != set(takers):
            self._pages.say(begins + _MAIN_AT, "one of the trees keys, times and blobs is missing")
        self._read("free", meta.free, begins + _FREE_AT, self._take_free)
        if self._freed_last not in (0, meta.transaction):
            what = f"the newest pages are freed by transaction {self._freed_last}"
            self._pages.say(begins + _FREE_AT, f"{what}, the newest is {meta.transaction}")
        if not self._pages.damaged:  # else it is not known which are in use
            for page in self._pages.unclaimed():
                self._pages.say(page * meta.page_bytes, f"page {page} is neither used nor free")
        found.damaged = self._pages.damaged

    def _begin(self) -> tuple[Meta, int] | None:
        try:
            meta, older, number = choose_meta(self._file)
            at = (1 - number) * meta.page_bytes
            if older.page_bytes != meta.page_bytes:
                detail = f"pages of {older.page_bytes} bytes beside {meta.page_bytes}"
                raise Corrupt(detail, offset=at + _FREE_AT)
            if meta.transaction - older.transaction > 1:
                detail = f"transaction {older.transaction} beside {meta.transaction}"
                raise Corrupt(f"{detail}; they should follow each other", offset=at + 144)
            if self._file.size() < (meta.last_page + 1) * meta.page_bytes:
                detail = f"{meta.last_page + 1} pages of {meta.page_bytes} bytes"
                found = f"the file has {self._file.size()} bytes"
                raise Corrupt(f"expected {detail}, {found}", offset=self._file.size())
        except Corrupt as error:
            self._book.damaged(self._found.path, error.detail, LOST, error.offset)
            return None
        return meta, number

    def _read(self, name: str, tree: Tree, where: int, take: Callable[[Group], None]) -> None:
        reader = TreeReader(self._pages, name, tree, where)
        for group in reader.groups():
            take(group)
        if name == "keys":
            self._found.count = reader.entries

    def _take_trees(self, group: Group) -> None:
        for position, (key, value) in enumerate(zip(group.keys, group.values, strict=True)):
            where = group.offset(position)
            try:
                tree = pages.decode_tree(value)
            except Corrupt as error:
                self._pages.say(where, error.detail)
            else:
                self._trees.append((key.decode("ascii", "backslashreplace"), tree, where))

    def _take_keys(self, group: Group) -> None:
        if are_sound(group.keys, group.values):
            return
        for position, (key, kept) in enumerate(zip(group.keys, group.values, strict=True)):
            if not are_sound([key], [kept]):
                shown = f"{key[:_KEY_SHOWN]!r}{'…' * (len(key) > _KEY_SHOWN)}"
                what = f"the key {shown} and its value do not match their checksum"
                self._pages.say(group.offset(position), what)

    def _take_times(self, group: Group) -> None:
        if are_sound_times(group.keys, group.values):
            return
        for position, (row, value) in enumerate(zip(group.keys, group.values, strict=True)):
            if not are_sound_times([row], [value]):
                what = "a time to live does not match its checksum"
                self._pages.say(group.offset(position), what)

    def _take_blobs(self, group: Group) -> None:
        for position, (key, sealed) in enumerate(zip(group.keys, group.values, strict=True)):
            name = key.decode("ascii", "backslashreplace")
            try:
                self._found.blobs[name] = unseal(name, sealed, self._found.path)
            except Corrupt as error:
                self._pages.say(group.offset(position), error.detail)
        if packed := self._found.blobs.get(INDEX):
            self._found.index = _INDEX.unpack(packed)[0]

    def _take_free(self, group: Group) -> None:
        for position, (key, value) in enumerate(zip(group.keys, group.values, strict=True)):
            try:
                transaction = pages.page_number(key)
                if not 1 <= transaction <= self._found.transaction:
                    raise Corrupt(f"pages that transaction {transaction} has freed")
                self._freed_last = max(self._freed_last, transaction)
                for page in pages.decode_free(value):
                    self._pages.claim(page)
            except Corrupt as error:
                self._pages.say(group.offset(position), f"the list of free pages: {error.detail}")
