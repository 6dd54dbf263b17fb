"""Owns one file of the log: its name, its header, its sparse index and the index's sidecar.

    log/00000000000000000007.seg    header (64 bytes), batches; behind the last segment's batches
                                    zeros up to the allocated size, or what `spares.py` tells of
    log/00000000000000000007.idx    written when the segment is sealed, for whoever wants to find
                                    an index without reading the segment

Segments are numbered in the order they were begun, not by the records inside: an override may
bring any index back. The header says where the log stood when the segment was begun (its
anchor); RESET says that everything in lower numbers is void, RECYCLED that bytes of an earlier life
of the file may follow the last batch.

The one rule: a segment's name exists only once its header is durable, so a segment without a
sound header is damage and never the trace of a crash. The sidecar is a convenience: an absent
or unsound one is written anew, and never an error.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from shardnode.storage.errors import Corrupt, DiskFailed, NoSpace, StorageError
from shardnode.storage.files import File, Files, join
from shardnode.storage.publish import TEMPORARY
from shardnode.storage.records import Anchor

FORMAT_VERSION = 1
_MAGIC = b"\xf5snlseg\x1a"
_HEADER = Struct("<8sIIQQQQQ")
_CHECKSUM = Struct("<Q")
SEGMENT_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_RESET = 1
_RECYCLED = 2

_NAME = re.compile(r"(\d{20})\.seg")
_SIDECAR_MAGIC = b"\xf5snlidx\x1a"
_SIDECAR = Struct("<8sQQQ")


class SegmentHeader(NamedTuple):
    sequence: int
    salt: int  # random; binds the batches inside to this file
    anchor: Anchor  # where the log stood when this segment was begun
    reset: bool  # everything in lower sequences is void
    recycled: bool = False  # the file was another segment before


def encode_segment_header(header: SegmentHeader) -> bytes:
    flags = (_RESET if header.reset else 0) | (_RECYCLED if header.recycled else 0)
    data = _HEADER.pack(_MAGIC, FORMAT_VERSION, flags, header.sequence, header.salt, *header.anchor)
    return data + _CHECKSUM.pack(xxh3_64_intdigest(data))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """The header in the first bytes of a segment; `Corrupt` when it is not one of ours."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Corrupt(f"a segment header has {SEGMENT_HEADER_BYTES} bytes, found {len(data)}")
    magic, version, flags, sequence, salt, index, term, chain = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Corrupt(f"a segment begins with {_MAGIC!r}, found {magic!r}")
    if xxh3_64_intdigest(data[: _HEADER.size]) != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
        raise Corrupt("the segment header does not match its checksum")
    if version != FORMAT_VERSION or flags & ~(_RESET | _RECYCLED):
        raise Corrupt(
            f"format {version} with flags {flags:#x}, this program reads format {FORMAT_VERSION}",
            advice="use the version of shardnode that wrote it",
        )
    anchor = Anchor(index, term, chain)
    return SegmentHeader(sequence, salt, anchor, bool(flags & _RESET), bool(flags & _RECYCLED))


class SparseIndex:
    """Where some of the batches begin, by the index of their first record; both sides grow.

    Between two entries all batches are in order, so a reader walks on from the entry at or
    below the index it wants. A batch that does not continue the one before it in the file has
    an entry of its own, which keeps that true.
    """

    __slots__ = ("indexes", "offsets")

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.offsets = array("Q")

    def __len__(self) -> int:
        return len(self.indexes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseIndex):
            return NotImplemented
        return self.indexes == other.indexes and self.offsets == other.offsets

    def add(self, index: int, offset: int) -> None:
        assert not self.indexes or (index > self.indexes[-1] and offset > self.offsets[-1])
        self.indexes.append(index)
        self.offsets.append(offset)

    def cut(self, index: int) -> None:
        """Forget the entries at and above `index`: an override made their batches void."""
        keep = bisect_left(self.indexes, index)
        del self.indexes[keep:]
        del self.offsets[keep:]

    def slot(self, index: int) -> int:
        """The position of the entry at or below `index`, or -1."""
        return bisect_right(self.indexes, index) - 1


def encode_sidecar(header: SegmentHeader, index: SparseIndex) -> bytes:
    data = _SIDECAR.pack(_SIDECAR_MAGIC, header.sequence, header.salt, len(index))
    data += Struct(f"<{2 * len(index)}Q").pack(*index.indexes, *index.offsets)
    return data + _CHECKSUM.pack(xxh3_64_intdigest(data))


def decode_sidecar(data: bytes, header: SegmentHeader) -> SparseIndex:
    """The sparse index of the segment with this header; `Corrupt` when it is not that."""
    count, odd = divmod(len(data) - _SIDECAR.size - _CHECKSUM.size, 16)
    if count < 0 or odd:
        raise Corrupt(f"a sidecar of {len(data)} bytes")
    if xxh3_64_intdigest(data[:-8]) != _CHECKSUM.unpack_from(data, len(data) - 8)[0]:
        raise Corrupt("a sidecar does not match its checksum")
    expected = (_SIDECAR_MAGIC, header.sequence, header.salt, count)
    if _SIDECAR.unpack_from(data) != expected:
        raise Corrupt("a sidecar of another segment")
    numbers = Struct(f"<{2 * count}Q").unpack_from(data, _SIDECAR.size)
    index = SparseIndex()
    for pair in zip(numbers[:count], numbers[count:], strict=True):
        if index.indexes and (pair[0] <= index.indexes[-1] or pair[1] <= index.offsets[-1]):
            raise Corrupt("a sidecar out of order")
        index.add(*pair)
    return index


@dataclass(slots=True)
class Segment:
    """What is known in memory of one segment."""

    header: SegmentHeader
    path: str
    end: int = SEGMENT_HEADER_BYTES  # of its last batch
    low: Anchor = field(init=False)  # the lowest position that it, or a batch in it, continues
    index: SparseIndex = field(default_factory=SparseIndex)

    def __post_init__(self) -> None:
        self.low = self.header.anchor


def segment_path(directory: str, sequence: int) -> str:
    return join(directory, f"{sequence:020}.seg")


def sequence_of(name: str) -> int | None:
    """The number in a segment's name, or None when it is no segment's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def sidecar_path(path: str) -> str:
    return path.removesuffix(".seg") + ".idx"


def create_segment(files: Files, directory: str, header: SegmentHeader, size: int) -> File:
    """A new segment of `size` bytes under its final name, durable, and open for writing."""
    temporary = segment_path(directory, header.sequence) + TEMPORARY
    if files.exists(temporary):
        files.remove(temporary)
    return _publish(files, directory, header, size, files.create(temporary), temporary)


def reuse_segment(
    files: Files, directory: str, header: SegmentHeader, size: int, file: File, spare: str
) -> File:
    """The same in a file that is there already, under the name `spare`."""
    return _publish(files, directory, header, size, file, spare)


def _publish(
    files: Files, directory: str, header: SegmentHeader, size: int, file: File, temporary: str
) -> File:
    path = segment_path(directory, header.sequence)
    try:
        file.allocate(size)
        file.pwritev([encode_segment_header(header)], 0)
        file.datasync()
        files.rename(temporary, path)
        files.sync_dir(directory)
    except NoSpace:
        file.close()
        with suppress(StorageError):
            files.remove(temporary)
        raise
    return file


def write_sidecar(files: Files, path: str, content: bytes) -> None:
    """Write a sidecar. It is not synced and may fail: it can always be made again."""
    with suppress(NoSpace, DiskFailed):
        if files.exists(path):
            files.remove(path)
        file = files.create(path)
        try:
            file.pwritev([content], 0)
        finally:
            file.close()


def load_index(files: Files, segment: Segment) -> SparseIndex | None:
    """The index of a sealed segment from its sidecar; None when there is no sound one."""
    path = sidecar_path(segment.path)
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return decode_sidecar(file.pread(file.size(), 0), segment.header)
    except Corrupt:
        return None
    finally:
        file.close()
