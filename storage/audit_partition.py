"""The log of one stream partition, looked at without opening it.

The one rule: the mark says what must be there, and every byte of that is checked. What lies above
it is what a crash leaves, and is cut at the next start; what lies below the start of the log waits
to be removed. Neither is looked at.
"""

from __future__ import annotations

from shardnode.storage.audit import Book
from shardnode.storage.errors import PartitionDamaged, StorageError
from shardnode.storage.files import Files
from shardnode.storage.partition_open import look
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.partition_records import Mark
from shardnode.storage.partition_verify import Look, verify_segment

_MEANS = (
    "this partition is fenced, the others are not touched; a member of several fetches its shard"
    " again, a single one has lost these messages"
)


def audit_partition(
    files: Files, directory: str, mark: Mark, book: Book, seen: Look | None = None
) -> bool:
    """Whether all that the mark promises is there; what is wrong goes into the book."""
    every = PartitionOptions().index_every_bytes
    try:
        segments = look(files, directory, mark).segments
    except StorageError as error:
        _tell(book, directory, error)
        return False
    is_sound = True
    for segment in segments:
        file = files.open(segment.path)
        try:
            for _ in verify_segment(segment, file, every, seen):
                pass
        except StorageError as error:
            _tell(book, segment.path, error)
            is_sound = False
        finally:
            book.read(file.size())
            file.close()
    return is_sound


def _tell(book: Book, path: str, error: StorageError) -> None:
    if isinstance(error, PartitionDamaged):
        book.damaged(error.path or path, error.detail, _MEANS, error.offset)
    else:
        book.damaged(path, str(error), _MEANS)
