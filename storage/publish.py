"""Owns how a complete file or directory gets its name, and how a damaged one is set aside.

The one rule: temporary name, content synced, rename, directory synced. After a crash a name
stands for the old content or for the new, and what is left under a temporary name is swept by
whoever owns the directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardnode.storage.files import Buffer, File, Files, join, parent_of

TEMPORARY = ".tmp"
"""Ends every name that is not published yet."""

_COPY_BYTES = 1 << 20

_SYNC_BYTES = 4 << 20
"""Of a large file at once: while much is written back, the log's own fsync has to wait."""


def publish_file(files: Files, path: str, data: bytes) -> None:
    """Make `path` hold exactly `data`, durably."""
    _publish_chunks(files, path, [data])


def publish_copy(files: Files, file: File, path: str) -> None:
    """Make `path` a durable copy of an open file."""
    _publish_chunks(files, path, read_chunks(file))


def publish_dir(files: Files, temporary: str, path: str) -> None:
    """Give a directory, whose files are all synced, its final name, durably."""
    files.sync_dir(temporary)
    files.rename(temporary, path)
    files.sync_dir(parent_of(path))


def write_file(files: Files, path: str, chunks: Iterable[Buffer]) -> None:
    """Write a whole new file and sync its content, not its name; a leftover is replaced."""
    if files.exists(path):
        files.remove(path)
    file = files.create(path)
    try:
        offset = synced = 0
        for chunk in chunks:
            file.pwritev([chunk], offset)
            offset += len(chunk)
            if offset - synced >= _SYNC_BYTES:
                file.datasync()
                synced = offset
        file.datasync()
    finally:
        file.close()


def read_chunks(file: File) -> Iterator[bytes]:
    """The content of a file in pieces."""
    offset = 0
    while chunk := file.pread(_COPY_BYTES, offset):
        yield chunk
        offset += len(chunk)


def make_dir(files: Files, path: str) -> None:
    """Make a directory and each missing parent, durably."""
    missing = []
    while path and not files.exists(path):
        missing.append(path)
        path = parent_of(path)
    for each in reversed(missing):
        files.mkdir(each)
        files.sync_dir(parent_of(each))


def set_aside(files: Files, path: str, quarantine: str) -> str:
    """Durably move a file or directory into the directory `quarantine`. Returns its new path."""
    make_dir(files, quarantine)
    target = quarantine_path(files, path, quarantine)
    files.rename(path, target)
    files.sync_dir(quarantine)
    files.sync_dir(parent_of(path))
    return target


def quarantine_path(files: Files, path: str, quarantine: str) -> str:
    """A name in `quarantine` that is not taken: nothing there is ever replaced."""
    target = join(quarantine, path.rpartition("/")[2])
    number = 1
    while files.exists(target if number == 1 else f"{target}.{number}"):
        number += 1
    return target if number == 1 else f"{target}.{number}"


def _publish_chunks(files: Files, path: str, chunks: Iterable[Buffer]) -> None:
    write_file(files, path + TEMPORARY, chunks)
    files.rename(path + TEMPORARY, path)
    files.sync_dir(parent_of(path))
