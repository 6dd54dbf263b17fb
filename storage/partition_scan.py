"""Owns the walk over the batches of one segment of a partition log.

The one rule: it reads in pieces, never more than the segment holds whatever a length claims, and
believes a header only when it continues the chain. What is unsound is raised as `PartitionDamaged`
with its place.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardnode.storage.errors import Corrupt, PartitionDamaged
from shardnode.storage.files import Buffer, File
from shardnode.storage.partition_records import (
    BATCH_HEADER_BYTES,
    Batch,
    BatchHeader,
    Cursor,
    check_payload,
    decode_batch_header,
)

_MANY_BYTES = 256 << 10  # where batches are small, many headers come with one read
_FEW_BYTES = 4 << 10  # where they are large, most of what was read would be payload
_SCAN_BYTES = 4 << 20


def walk(file: File, path: str, start: Cursor, end: int) -> Iterator[tuple[Cursor, BatchHeader]]:
    """The headers of the batches from `start` to the position `end`; payloads are not checked."""
    data, base = b"", start.position
    cursor = start
    piece_bytes = _FEW_BYTES
    while cursor.position < end:
        at = cursor.position - base
        if len(data) - at < BATCH_HEADER_BYTES:
            data, base, at = _read(file, cursor, piece_bytes, end), cursor.position, 0
        header = header_at(data, at, path, cursor, end)
        yield cursor, header
        piece_bytes = _FEW_BYTES if header.length > _FEW_BYTES else _MANY_BYTES
        cursor = cursor.after(header)


def scan(file: File, path: str, start: Cursor, end: int) -> Iterator[tuple[Cursor, BatchHeader]]:
    """The same with every payload checked."""
    data, base = b"", start.position
    cursor = start
    while cursor.position < end:
        at = cursor.position - base
        if len(data) - at < BATCH_HEADER_BYTES:
            data, base, at = _read(file, cursor, _SCAN_BYTES, end), cursor.position, 0
        header = header_at(data, at, path, cursor, end)
        total = BATCH_HEADER_BYTES + header.length
        if len(data) - at < total:
            size = max(total, _SCAN_BYTES)
            data, base, at = _read(file, cursor, size, end), cursor.position, 0
        _check(header, memoryview(data)[at + BATCH_HEADER_BYTES : at + total], path, cursor)
        yield cursor, header
        cursor = cursor.after(header)


def read_batches(
    file: File,
    path: str,
    start: Cursor,
    end: int,
    *,
    offset: int,
    piece_bytes: int,
    bytes_max: int,
    batches_max: int,
    messages_max: int,
) -> tuple[list[Batch], Cursor]:
    """The batches from the one that contains `offset` on, which lies between `start` and `end`, and
    where the next one begins.

    As many as one read of `piece_bytes` brings and the limits allow, but always one: for that it
    reads again, and first walks on to it when it lies further on than one piece.
    """
    data = _read(file, start, piece_bytes, end)
    base = start.position
    cursor = start
    found: list[Batch] = []
    while cursor.position < end:
        at = cursor.position - base
        if len(data) - at < BATCH_HEADER_BYTES:
            if found:
                break
            data, base, at = _read(file, cursor, piece_bytes, end), cursor.position, 0
        header = header_at(data, at, path, cursor, end)
        length, count, index, log_index, first, stamp_ms, _, chain = header
        total = BATCH_HEADER_BYTES + length
        if first + count > offset:
            if len(data) - at < total:
                if found:
                    break
                data, base, at = _read(file, cursor, total, end), cursor.position, 0
            bytes_max -= length
            if found and (bytes_max < 0 or len(found) >= batches_max):
                break
            payload = data[at + BATCH_HEADER_BYTES : at + total]
            _check(header, payload, path, cursor)
            found.append(Batch(index, log_index, first, count, stamp_ms, payload))
        cursor = Cursor(cursor.position + total, first + count, chain)
        if cursor.offset - offset >= messages_max:
            break
    return found, cursor


def header_at(data: bytes, at: int, path: str, cursor: Cursor, end: int) -> BatchHeader:
    """The header at `data[at:]`, which was read at `cursor`, of a batch that ends by `end`."""
    try:
        header = decode_batch_header(data, at, cursor.offset, cursor.chain)
    except Corrupt as error:
        raise damaged(error, path, cursor.position) from None
    room = end - cursor.position - BATCH_HEADER_BYTES
    if header.length > room:
        detail = f"a payload of {header.length} bytes where the batches end after {room}"
        raise PartitionDamaged(detail, path=path, offset=cursor.position)
    return header


def damaged(error: Corrupt, path: str, position: int) -> PartitionDamaged:
    """What a decoder found wrong, with its place."""
    return PartitionDamaged(error.detail, path=path, offset=position)


def _check(header: BatchHeader, payload: Buffer, path: str, cursor: Cursor) -> None:
    try:
        check_payload(header, payload)
    except Corrupt as error:
        raise damaged(error, path, cursor.position) from None


def _read(file: File, cursor: Cursor, size: int, end: int) -> bytes:
    return file.pread(min(size, end - cursor.position), cursor.position)
