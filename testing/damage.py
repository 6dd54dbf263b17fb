"""Damage to the files of a stopped node, as a disk does it: a bit, in every kind of file.

    path = DAMAGES["sealed segment"].spoil(node.data, shard=1)

    what follows   of it
    -------------  -----------------------------------------------------------------------------
    mended         the file is made again; nobody is disturbed
    kept           nothing: it is not needed now, and stays as it is
    fenced         the shard answers `Corrupt` and names the file; the other shards serve. One of
                   three is brought back by moving the shard's directory away
    refetched      one of three fetches what it lost from the others, and does not vote before
    refused        `start` ends with code 7 and names the file

The one rule: a node is stopped while it is spoilt. What was acknowledged before is there after it,
or is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shardnode.storage.segment import SEGMENT_HEADER_BYTES
from shardnode.storage.superblock import COPIES

MARK = b"marked-value:"
KEY = b"marked-key:"
"""Begin the values and the keys in which a page of LMDB may be spoilt."""

_PAGE_BYTES = 4_096
_HEADER_BYTES = 16
_ENTRY_HEADER_BYTES = 8
_OFFSET = struct.Struct("<H")
_LEAF = 2
_META_TXNID = struct.Struct("<Q")
_META_TXNID_AT = 144


class Damage(NamedTuple):
    """One kind."""

    do: Callable[[Path], Path]
    """Spoils a file of a shard's directory, and tells which."""
    alone: str
    among_three: str

    def spoil(self, data: Path, shard: int) -> Path:
        return self.do(data / f"shard-{shard}")


def flip(path: Path, offset: int) -> Path:
    """One bit becomes another."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        assert byte, f"{path} has no byte {offset}"
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))
    return path


def _segments(shard: Path) -> list[Path]:
    found = sorted((shard / "log").glob("*.seg"))
    assert len(found) > 1, f"expected several segments in {shard}, found {len(found)}"
    return found


def _sealed_segment(shard: Path) -> Path:
    segment = _segments(shard)[-2]
    return flip(segment, segment.stat().st_size // 3)


def _last_segment(shard: Path) -> Path:
    """In its first batch, which the next ones call durable."""
    return flip(_segments(shard)[-1], SEGMENT_HEADER_BYTES + 200)


def _sidecar(shard: Path) -> Path:
    path = max((shard / "log").glob("*.idx"))
    return flip(path, path.stat().st_size // 2)


def _superblock_copy(shard: Path) -> Path:
    return flip(shard / COPIES[0], 40)


def _superblock(shard: Path) -> Path:
    flip(shard / COPIES[1], 41)
    return _superblock_copy(shard)


def _snapshot(shard: Path) -> Path:
    return max(path for path in (shard / "snapshots").iterdir() if path.name.isdigit())


def _snapshot_file(shard: Path) -> Path:
    path = _snapshot(shard) / "keys"
    return flip(path, path.stat().st_size // 2)


def _manifest(shard: Path) -> Path:
    path = _snapshot(shard) / "manifest"
    return flip(path, path.stat().st_size // 2)


def _lmdb(shard: Path) -> Path:
    return max((shard / "kv").glob("*/data.mdb"))


def _lmdb_value(shard: Path) -> Path:
    """All copies of one value, because some are in pages that are not in use any more."""
    path = _lmdb(shard)
    data = path.read_bytes()
    value = data[data.index(MARK) :][: len(MARK) + 8]
    start = 0
    while (at := data.find(value, start)) >= 0:
        flip(path, at + len(MARK) + 7)
        start = at + 1
    return path


def _lmdb_structure(shard: Path) -> Path:
    """The headers of all pages behind the two that begin the file."""
    path = _lmdb(shard)
    for page in range(2, path.stat().st_size // _PAGE_BYTES):
        flip(path, page * _PAGE_BYTES + 10)  # what kind of page it is
        flip(path, page * _PAGE_BYTES + 12)  # where its free part begins
    return path


def _has_keys(data: bytes, page: int) -> bool:
    """Whether the first entry of a leaf has a key of ours; elsewhere in a page old bytes linger."""
    start = page * _PAGE_BYTES
    (entry,) = _OFFSET.unpack_from(data, start + _HEADER_BYTES)
    key = start + entry + _ENTRY_HEADER_BYTES
    return data[start + 10] == _LEAF and data[key : key + len(KEY)] == KEY


def _lmdb_leaf(shard: Path) -> Path:
    """One page with keys: noticed when one of them is looked for."""
    path = _lmdb(shard)
    data = path.read_bytes()
    pages = [page for page in range(2, len(data) // _PAGE_BYTES) if _has_keys(data, page)]
    assert pages, f"no page of {path} has keys of ours"
    for page in pages:
        flip(path, page * _PAGE_BYTES + 10)
    return path


def _lmdb_beginning(shard: Path) -> Path:
    path = _lmdb(shard)
    flip(path, 16)
    return flip(path, _PAGE_BYTES + 16)


def _identity(shard: Path) -> Path:
    path = shard.parent / "node.json"
    return flip(path, path.stat().st_size // 2)


DAMAGES = {
    "sealed segment": Damage(_sealed_segment, "fenced", "refetched"),
    "last segment": Damage(_last_segment, "fenced", "refetched"),
    "sidecar": Damage(_sidecar, "mended", "mended"),
    "superblock, one copy": Damage(_superblock_copy, "mended", "mended"),
    "superblock, both copies": Damage(_superblock, "fenced", "fenced"),
    "snapshot file": Damage(_snapshot_file, "kept", "kept"),
    "snapshot manifest": Damage(_manifest, "kept", "kept"),
    "LMDB, inside a value": Damage(_lmdb_value, "fenced", "refetched"),
    "LMDB, its pages": Damage(_lmdb_structure, "fenced", "refetched"),
    "LMDB, a page of keys": Damage(_lmdb_leaf, "fenced", "refetched"),
    "LMDB, its beginning": Damage(_lmdb_beginning, "fenced", "refetched"),
    "node.json": Damage(_identity, "refused", "refused"),
}


def undo_last_commit(shard: Path) -> Path:
    """What a power failure may do: LMDB's newest beginning is as if it had never been written, and
    the one before it counts."""
    path = _lmdb(shard)
    with path.open("r+b") as file:
        numbers = []
        for page in (0, 1):
            file.seek(page * _PAGE_BYTES + _META_TXNID_AT)
            numbers.append(_META_TXNID.unpack(file.read(_META_TXNID.size))[0])
        newest = numbers.index(max(numbers))
        assert abs(numbers[0] - numbers[1]) == 1, f"not two beginnings of LMDB: {numbers}"
        file.seek(newest * _PAGE_BYTES + _META_TXNID_AT)
        file.write(_META_TXNID.pack(0))
    return path
