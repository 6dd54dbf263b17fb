"""Owns the walk over the bytes of one segment: batch by batch, or in search of what is left.

The one rule: it reads in large pieces, and never more than the file holds, whatever a length
found in the file claims. What is unsound is raised as `Corrupt` with its place; what it means
is for the caller to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardnode.storage.errors import Corrupt
from shardnode.storage.files import File
from shardnode.storage.records import (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC,
    BatchHeader,
    decode_batch_header,
    find_batches,
)

CHUNK_BYTES = 4 << 20
"""Large enough that a batch seldom has to be read twice, small enough to be reused by malloc."""

_ZEROS = bytes(1 << 20)


class Batch(NamedTuple):
    """A batch found in a segment; the header is sound, the body is not checked yet."""

    offset: int
    header: BatchHeader
    body: memoryview

    @property
    def end(self) -> int:
        return self.offset + self.header.total


def scan(
    file: File, path: str, salt: int, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Batch]:
    """The batches from `start` on, until `end` or until zeros stand where the next would be."""
    view = memoryview(b"")
    base = offset = start
    while offset < end:
        at = offset - base
        if len(view) - at < BATCH_HEADER_BYTES:
            view, base, at = _read(file, path, offset, min(chunk_bytes, end - offset)), offset, 0
        try:
            header = decode_batch_header(view, at, salt, offset)
        except Corrupt as error:
            if not any(view[at : at + BATCH_HEADER_BYTES]):
                return
            raise Corrupt(error.detail, path=path, offset=offset) from None
        if header.total > end - offset:
            detail = f"the batch of index {header.first} ends past the end of the file"
            raise Corrupt(detail, path=path, offset=offset)
        if len(view) - at < header.total:
            size = min(max(chunk_bytes, header.total), end - offset)
            view, base, at = _read(file, path, offset, size), offset, 0
        yield Batch(offset, header, view[at + BATCH_HEADER_BYTES : at + header.total])
        offset += header.total


def _read(file: File, path: str, offset: int, size: int) -> memoryview:
    data = file.pread(size, offset)
    if len(data) != size:
        raise Corrupt(f"expected {size} bytes, found {len(data)}", path=path, offset=offset)
    return memoryview(data)


def used_bytes(file: File, start: int, end: int) -> int:
    """How many bytes from `start` on are in use: up to the last one that is not zero."""
    used = 0
    for offset in range(start, end, len(_ZEROS)):
        chunk = file.pread(min(len(_ZEROS), end - offset), offset)
        if chunk != _ZEROS[: len(chunk)]:
            used = offset - start + len(chunk.rstrip(b"\0"))
    return used


def search(file: File, salt: int, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every intact batch header between `start` and `end`, with its place, sound body or not."""
    overlap = BATCH_HEADER_BYTES - 1  # so that a header across two pieces is whole in one of them
    for offset in range(start, end, CHUNK_BYTES):
        data = file.pread(min(CHUNK_BYTES + overlap, end - offset), offset)
        if BATCH_MAGIC in data:
            yield from find_batches(data, salt, offset)
