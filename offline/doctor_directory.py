"""A quick look at the data directory: what a start would trip over, without reading all of it.

The one rule: only beginnings are read — identity, superblocks, headers, manifests — so it takes no
longer on a large directory. `verify` reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardnode.node.config import Config
from shardnode.node.identity import IDENTITY, DirectoryInUse, claim_of, compare_identity
from shardnode.offline.advice import Advice, note, ok, problem
from shardnode.offline.places import Place, find_place, held
from shardnode.offline.verify_node import verify_node
from shardnode.offline.verify_shard import look_at_words
from shardnode.storage.audit import Book
from shardnode.storage.audit_keys import choose_meta, newest_file
from shardnode.storage.audit_log import log_names
from shardnode.storage.audit_superblock import audit_superblock
from shardnode.storage.errors import StorageError
from shardnode.storage.files import Files, ReadOnlyFiles, join
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from shardnode.wire.errors import NotFound, ShardnodeError

_VERIFY = "run `shardnode verify` on the stopped node's directory; it says what is lost"


def look_at_directory(config: Config) -> Iterator[Advice]:
    data = config.node.data
    if not data.exists() or not any(data.iterdir()):
        yield ok("directory", f"{data} is new: the first start makes it")
        return
    try:
        place = find_place(data)
    except NotFound as error:
        yield problem("directory", error.message, "use another --data, or empty this one")
        return
    try:
        with held(place.root):
            yield from _look(place, config)
    except DirectoryInUse:
        yield note("directory", f"a node runs on {data}: its files are not looked at")


def _look(place: Place, config: Config) -> Iterator[Advice]:
    book = Book()
    identity = verify_node(place, book)
    if identity is not None:
        try:
            compare_identity(place.root, identity, claim_of(config))
        except ShardnodeError as error:
            found, _, do = error.message.partition("; ")
            yield problem("directory", found, do)
    files = ReadOnlyFiles(place.root)
    for name in place.shards:
        _look_at_shard(files, name, book)
    for finding in book.damage:
        yield problem("directory", f"{finding.path}: {finding.what}", finding.means or _VERIFY)
    for finding in book.notes:
        yield note("directory", f"{finding.path}: {finding.what}", finding.means)
    if not book.damage:
        shards = f"{IDENTITY} and the beginnings of {len(place.shards)} shards"
        yield ok("directory", f"{place.root}: {shards} are sound")


def _look_at_shard(files: Files, name: str, book: Book) -> None:
    look_at_words(files, name, book)
    audit_superblock(files, name, book)
    for segment in log_names(files, name):
        path = join(join(name, LOG_DIRECTORY), segment)
        with _told(book, path):
            _segment(files, path)
    if path := newest_file(files, name):
        with _told(book, path):
            _keys(files, path)


@contextmanager
def _told(book: Book, path: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        book.damaged(path, str(error), _VERIFY)


def _segment(files: Files, path: str) -> None:
    file = files.open(path)
    try:
        data = file.pread(SEGMENT_HEADER_BYTES, 0)
        if any(data):  # else its creation never reached the disk
            decode_segment_header(data)
    finally:
        file.close()


def _keys(files: Files, path: str) -> None:
    file = files.open(path)
    try:
        if file.size():
            choose_meta(file)
    finally:
        file.close()
