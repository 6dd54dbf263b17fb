"""Both copies of a superblock, looked at without writing them again.

The one rule: a crash may leave one copy missing, at the first boot, or one step behind, or torn on
the way there. Everything else that two copies do not agree about is damage, also when the other
copy is whole: the next start mends it, but a disk has lost a sector.
"""

from __future__ import annotations

from typing import NamedTuple

from shardnode.storage.audit import Book
from shardnode.storage.errors import Corrupt, StorageError
from shardnode.storage.files import Files, join
from shardnode.storage.superblock import (
    COPIES,
    SUPERBLOCK_BYTES,
    SuperblockState,
    decode_superblock,
    is_torn,
)

_MENDED = "the other copy is whole, and the next start writes this one again; look at the disk"
_UNKNOWN = (
    "term and vote are unknown, so the shard does not boot: remove this member from its group,"
    " empty the shard's directory and add it again; alone, restore a backup"
)


class Superblocks(NamedTuple):
    """What the copies say together."""

    state: SuperblockState | None = None
    sequence: int = 0
    is_there: bool = False
    """Whether there is a copy, in whatever state."""


def audit_superblock(files: Files, shard: str, book: Book) -> Superblocks:
    """Look at both copies; what is wrong goes into the book."""
    there = [join(shard, name) for name in COPIES if files.exists(join(shard, name))]
    sound: dict[str, tuple[int, SuperblockState]] = {}
    bad: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for path in there:
        try:
            contents[path] = b""
            contents[path] = _content(files, path, book)
            sound[path] = decode_superblock(contents[path])
        except Corrupt as error:
            bad[path] = error.detail
        except StorageError as error:
            bad[path] = str(error)
    for path, detail in bad.items():
        if sound and is_torn(contents[path], contents[next(iter(sound))]):
            book.note(path, "its last write is torn; the next start writes it again")
        else:
            book.damaged(path, detail, _MENDED if sound else _UNKNOWN, 0)
    if not sound:
        return Superblocks(is_there=bool(there))
    newest = max(sound, key=lambda path: sound[path][0])
    sequence, state = sound[newest]
    if len(sound) == 2:
        if not _agree(book, sound, newest):
            return Superblocks(is_there=True)
    elif not bad and sequence > 1:
        missing = next(join(shard, name) for name in COPIES if join(shard, name) not in there)
        book.damaged(missing, "this copy is missing", _MENDED)
    return Superblocks(state, sequence, is_there=True)


def _content(files: Files, path: str, book: Book) -> bytes:
    file = files.open(path)
    try:
        data = file.pread(SUPERBLOCK_BYTES + 1, 0)
    finally:
        file.close()
    book.read(len(data))
    return data


def _agree(book: Book, sound: dict[str, tuple[int, SuperblockState]], newest: str) -> bool:
    """Whether there is a state that can be believed."""
    (other,) = set(sound) - {newest}
    lead = sound[newest][0] - sound[other][0]
    if lead == 0 and sound[newest] != sound[other]:
        found = f"{sound[newest][1]} and {sound[other][1]}"
        book.damaged(newest, f"both copies were stored at once, but differ: {found}", _UNKNOWN, 0)
        return False
    if lead > 1:
        detail = f"stored {lead} times less often than the other copy"
        book.damaged(other, detail, _MENDED, 0)
    return True
