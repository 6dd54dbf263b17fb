"""Owns the comparison of a snapshot's file with what its manifest says.

The one rule: size first, then content, in pieces: a wrong file costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from xxhash import xxh3_64

from shardnode.storage.errors import SnapshotCorrupt
from shardnode.storage.files import Files
from shardnode.storage.manifest import SnapshotFile
from shardnode.storage.publish import read_chunks

_ADVICE = "the snapshot cannot be used; take or fetch another"


def checked_chunks(files: Files, path: str, expected: SnapshotFile) -> Iterator[bytes]:
    """The content in pieces; `SnapshotCorrupt` after the last one when it was not as written."""
    check_size(files, path, expected)
    state = xxh3_64()
    file = files.open(path)
    try:
        for chunk in read_chunks(file):
            state.update(chunk)
            yield chunk
    finally:
        file.close()
    if state.intdigest() != expected.checksum:
        raise SnapshotCorrupt(
            f"expected checksum {expected.checksum:016x}, found {state.hexdigest()}",
            path=path,
            advice=_ADVICE,
        )


def check_file(files: Files, path: str, expected: SnapshotFile) -> None:
    """Read a whole file, and raise unless it is as expected."""
    for _ in checked_chunks(files, path, expected):
        pass


def check_size(files: Files, path: str, expected: SnapshotFile) -> None:
    """The check that costs nothing: the file is there and has the right length."""
    if not files.exists(path):
        raise SnapshotCorrupt("the file is missing", path=path, advice=_ADVICE)
    file = files.open(path)
    try:
        size = file.size()
    finally:
        file.close()
    if size != expected.size:
        raise SnapshotCorrupt(
            f"expected {expected.size} bytes, found {size}", path=path, advice=_ADVICE
        )
