"""Files of snapshots in a destination, by name, size and checksum.

    …/<size>-<checksum>              a small file
    …/<size>-<checksum>/000000 …     a large one in parts, each written whole
    …/<size>-<checksum>/whole        … when all of them are there and were right together

The one rule: a file has its name when its checksum was verified. Parts that an interrupted backup
left are read again before they are gone on from, so what is called whole has been seen whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xxhash import xxh3_64

from shardnode.backup.format import damaged, file_key
from shardnode.backup.store import Store
from shardnode.storage.manifest import SnapshotFile
from shardnode.wire.errors import NotFound

PART_BYTES = 16 << 20
"""One write and one fsync, which others on the same disk hardly notice; what is lost when a backup
is interrupted. Part of the format."""

Pieces = Callable[[int], Iterator[bytes]]
"""The content of a file from an offset on."""


class WrongContent(Exception):
    """What came is not what its checksum says."""


def has_file(store: Store, shard: int, file: SnapshotFile) -> bool:
    """Whether a file is there."""
    key = file_key(shard, file)
    if file.size <= PART_BYTES:
        return store.exists(key) == file.size
    return store.exists(_whole(key)) is not None


def keep_file(
    store: Store, shard: int, file: SnapshotFile, pieces: Pieces, *, afresh: bool = False
) -> None:
    """Write a file that is not there; `afresh`: without what was left of an earlier attempt."""
    key = file_key(shard, file)
    if file.size <= PART_BYTES:
        data = b"".join(_exactly(pieces(0), file.size))
        _compare(key, file, xxh3_64(data).intdigest(), len(data))
        store.put(key, data)
        return
    state = xxh3_64()
    offset = 0 if afresh else _resume(store, key, file, state)
    for part in _parts(pieces(offset) if offset < file.size else iter(()), file.size - offset):
        store.put(_part(key, offset // PART_BYTES), part)
        state.update(part)
        offset += len(part)
    _compare(key, file, state.intdigest(), offset)
    store.put(_whole(key), b"whole\n")


def read_file(store: Store, shard: int, file: SnapshotFile) -> Iterator[bytes]:
    """The content of a file in pieces; `Corrupt` after the last one when it is not as it was."""
    key = file_key(shard, file)
    state, size = xxh3_64(), 0
    keys = [key]
    if file.size > PART_BYTES:
        keys = [_part(key, number) for number in range(-(-file.size // PART_BYTES))]
    for each in keys:
        try:
            data = store.get(each)
        except NotFound as error:
            raise damaged(each, "it is missing") from error
        state.update(data)
        size += len(data)
        yield data
    if (size, state.intdigest()) != (file.size, file.checksum):
        raise damaged(
            key,
            f"expected {file.size} bytes with checksum {file.checksum:016x}, found {size} with"
            f" {state.hexdigest()}",
        )


def _resume(store: Store, key: str, file: SnapshotFile, state: xxh3_64) -> int:
    """How much is there already, taken into the checksum."""
    offset = 0
    while offset < file.size:
        part = _part(key, offset // PART_BYTES)
        size = min(PART_BYTES, file.size - offset)
        if store.exists(part) != size:
            break
        state.update(store.get(part))
        offset += size
    return offset


def _exactly(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The pieces up to a size: whoever sends more is stopped."""
    for piece in pieces:
        yield piece
        size -= len(piece)
        if size <= 0:
            return


def _parts(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    waiting = bytearray()
    for piece in _exactly(pieces, size):
        waiting += piece
        while len(waiting) >= PART_BYTES:
            yield bytes(waiting[:PART_BYTES])
            del waiting[:PART_BYTES]
    if waiting:
        yield bytes(waiting)


def _compare(key: str, file: SnapshotFile, checksum: int, size: int) -> None:
    if (size, checksum) != (file.size, file.checksum):
        raise WrongContent(
            f"{key}: {size} bytes with checksum {checksum:016x} came, which is not what the"
            " snapshot's manifest says"
        )


def _part(key: str, number: int) -> str:
    return f"{key}/{number:06}"


def _whole(key: str) -> str:
    return f"{key}/whole"
