"""Owns the bytes of a partition log: of a batch, of a segment's header, and of its footer.

    segment = header (80 bytes), batches, and a footer once it is sealed
    batch   = magic, version, 0 (u16), length, count (u32), index, log index, offset, stamp,
              checksum of the payload, chain (u64), payload
    footer  = sparse index in four columns, then 56 bytes that say how long it is and where the
              batches end

The chain of a batch is xxh3_64(its header up to the chain), seeded with the chain before it; the
header holds the checksum of the payload, so the chain covers that too. A segment's header is a link
as well: it names the last chain of the segment before, and its own checksum seeds the first batch
inside. So a header can be believed without reading its payload, and a hole, a swapped segment or a
batch of another partition breaks the chain.

The one rule: the bytes follow from the batches alone. There is no clock, no random salt and no name
in them, so the same batches make the same files on every replica. A length is believed only after
a checksum covers it and it fits into the bytes that are there; decoders raise `Corrupt` and nothing
else.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple, Self

from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from shardnode.storage.errors import Corrupt
from shardnode.storage.files import Buffer

FORMAT_VERSION = 1

_BATCH_MAGIC = Struct("<4sHH").pack(b"\xf5spb", FORMAT_VERSION, 0)
_BATCH = Struct("<8sIIQQQQQ")
_BATCH_AND_CHAIN = Struct("<8sIIQQQQQQ")
_U64 = Struct("<Q")
BATCH_HEADER_BYTES = _BATCH_AND_CHAIN.size

_SEGMENT_MAGIC = b"\xf5spseg\x1a\n"
_SEGMENT = Struct("<8sII7Q")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _U64.size

_FOOTER_MAGIC = b"\xf5spend\x1a\n"
_FOOTER = Struct("<8sIIQQQQ")
FOOTER_TAIL_BYTES = _FOOTER.size + _U64.size

_MARK = Struct("<10Q")


class Batch(NamedTuple):
    """What was appended at once, and is read back as it came. An entry may bring several."""

    index: int  # type: ignore[assignment]  # partition index of the entry; hides tuple.index
    log_index: int  # of the entry in the segmented log
    offset: int  # of its first message; the next batch begins at offset + count
    count: int  # type: ignore[assignment]  # messages in it, at least one; hides tuple.count
    stamp_ms: int  # log time, which never goes back
    payload: bytes  # opaque

    @property
    def end_offset(self) -> int:
        return self.offset + self.count


class Mark(NamedTuple):
    """A state of a partition log, as its owner keeps it in the transaction with the applied index.

    Everything after the first four fields says where the last batch lies, so that a log can be
    opened, and cut, without reading it.
    """

    index: int  # type: ignore[assignment]  # of the last batch, as are the next two
    log_index: int
    stamp_ms: int
    end_offset: int  # the offset of the next message
    first_offset: int  # where the log starts: what is below was trimmed
    chain: int
    segment: int  # number of the segment with the last batch; 0 when there never was one
    position: int  # where the last batch ends in that segment
    last_bytes: int  # how long the last batch is there
    batches: int  # how many that segment has

    def encode(self) -> bytes:
        return _MARK.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` made; the transaction it was kept in vouches for it."""
        if len(data) != _MARK.size:
            raise Corrupt(f"a mark of a partition log has {_MARK.size} bytes, found {len(data)}")
        return cls(*_MARK.unpack(data))


NOTHING = Mark(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""The state of a log that was never written to."""


class SegmentHeader(NamedTuple):
    """What a segment says of itself and of the log when it was begun."""

    number: int  # 1, 2, 3 … without a gap
    base_offset: int  # the first offset in it
    chain: int  # of the last batch before it, as are the next three
    index: int  # type: ignore[assignment]
    log_index: int
    stamp_ms: int
    previous_bytes: int  # size of the segment before, its footer included

    def encode(self) -> bytes:
        data = _SEGMENT.pack(_SEGMENT_MAGIC, FORMAT_VERSION, 0, *self)
        return data + _U64.pack(xxh3_64_intdigest(data))

    @property
    def seed(self) -> int:
        """Seeds the chain of the first batch inside: the header's checksum."""
        return xxh3_64_intdigest(_SEGMENT.pack(_SEGMENT_MAGIC, FORMAT_VERSION, 0, *self))


def decode_segment_header(data: bytes) -> SegmentHeader:
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Corrupt(f"a segment header has {SEGMENT_HEADER_BYTES} bytes, found {len(data)}")
    magic, version, zero, *fields = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC:
        raise Corrupt(f"a segment begins with {_SEGMENT_MAGIC!r}, found {magic!r}")
    expected = xxh3_64_intdigest(data[: _SEGMENT.size])
    (found,) = _U64.unpack_from(data, _SEGMENT.size)
    if expected != found:
        raise Corrupt(f"the segment header should have checksum {expected:016x}, has {found:016x}")
    if version != FORMAT_VERSION or zero:
        raise Corrupt(f"format {version}, this program reads format {FORMAT_VERSION}")
    return SegmentHeader(*fields)


class BatchHeader(NamedTuple):
    """A header that continues the chain, without its payload."""

    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    index: int  # type: ignore[assignment]
    log_index: int
    offset: int
    stamp_ms: int
    payload_checksum: int
    chain: int


def encode_batch_header(batch: Batch, chain: int) -> tuple[bytes, int]:
    """The header of a batch that continues `chain`, and its own chain."""
    index, log_index, offset, count, stamp_ms, payload = batch
    length, checksum = len(payload), xxh3_64_intdigest(payload)
    data = _BATCH.pack(_BATCH_MAGIC, length, count, index, log_index, offset, stamp_ms, checksum)
    chain = xxh3_64_intdigest(data, chain)
    return data + _U64.pack(chain), chain


def decode_batch_header(data: Buffer, at: int, offset: int, chain: int) -> BatchHeader:
    """The header at `data[at:]`, of the batch that begins with `offset` and continues `chain`."""
    if len(data) - at < BATCH_HEADER_BYTES:
        raise Corrupt(f"a batch header has {BATCH_HEADER_BYTES} bytes, found {len(data) - at}")
    magic, *fields = _BATCH_AND_CHAIN.unpack_from(data, at)
    if magic != _BATCH_MAGIC:
        raise Corrupt(
            f"a batch of format {FORMAT_VERSION} begins {_BATCH_MAGIC!r}, found {magic!r}"
        )
    header = BatchHeader._make(fields)
    expected = xxh3_64_intdigest(data[at : at + _BATCH.size], chain)
    if header.chain != expected:
        raise Corrupt(f"the header should have chain {expected:016x}, has {header.chain:016x}")
    if header.offset != offset or not header.count:
        raise Corrupt(f"expected offset {offset}, found {header.count} from {header.offset}")
    return header


def claimed(data: bytes) -> tuple[int, ...]:
    """What a batch header claims, for one whose chain so far is not known: length, index, log
    index, end offset, stamp and chain. Nothing is checked."""
    if len(data) < BATCH_HEADER_BYTES:
        return ()
    fields = _BATCH_AND_CHAIN.unpack_from(data)
    _, length, count, index, log_index, offset, stamp_ms, _, chain = fields
    return length, index, log_index, offset + count, stamp_ms, chain


def check_payload(header: BatchHeader, payload: Buffer) -> None:
    if len(payload) != header.length:
        raise Corrupt(f"a payload has {header.length} bytes, found {len(payload)}")
    found = xxh3_64_intdigest(payload)
    if found != header.payload_checksum:
        raise Corrupt(
            f"the payload of offset {header.offset} should have checksum "
            f"{header.payload_checksum:016x}, has {found:016x}"
        )


class Cursor(NamedTuple):
    """Where a batch begins, or the next one will."""

    position: int
    offset: int
    chain: int  # of what comes before it

    def after(self, header: BatchHeader) -> Cursor:
        """Where the batch that begins here, with this header, ends."""
        position = self.position + BATCH_HEADER_BYTES + header.length
        return Cursor(position, header.offset + header.count, header.chain)


class SparseIndex:
    """Where some of the batches of a segment begin; every column grows (save the chains).

    A batch has an entry when it is the first that begins in its window of `index_every_bytes`, so
    the entries follow from positions alone, whenever the process was started.
    """

    __slots__ = ("chains", "offsets", "positions", "stamps")

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.chains = array("Q")
        self.stamps = array("Q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, cursor: Cursor, stamp_ms: int) -> None:
        self.positions.append(cursor.position)
        self.offsets.append(cursor.offset)
        self.chains.append(cursor.chain)
        self.stamps.append(stamp_ms)

    def extend(self, other: SparseIndex) -> None:
        for mine, more in zip(self._columns(), other._columns(), strict=True):
            mine.extend(more)

    def cursor(self, slot: int) -> Cursor:
        return Cursor(self.positions[slot], self.offsets[slot], self.chains[slot])

    def slot_of(self, offset: int) -> int:
        """The entry at or below `offset`, or -1."""
        return bisect_right(self.offsets, offset) - 1

    def slot_before(self, stamp_ms: int) -> int:
        """The last entry with a lower stamp, or -1."""
        return bisect_left(self.stamps, stamp_ms) - 1

    def numbers(self) -> list[int]:
        return [number for column in self._columns() for number in column]

    def _columns(self) -> tuple[array[int], ...]:
        return self.offsets, self.positions, self.chains, self.stamps


class Footer(NamedTuple):
    """What a sealed segment ends with."""

    index: SparseIndex  # type: ignore[assignment]
    batches: int
    end: Cursor  # where the next batch would begin: the batches end there

    def encode(self) -> bytes:
        numbers = self.index.numbers()
        data = Struct(f"<{len(numbers)}Q").pack(*numbers)
        size = len(data) + FOOTER_TAIL_BYTES
        data += _FOOTER.pack(_FOOTER_MAGIC, len(self.index), self.batches, *self.end, size)
        return data + _U64.pack(xxh3_64_intdigest(data))


def footer_bytes(tail: bytes, room: int) -> int:
    """How long the footer is whose last bytes are `tail`; it has to fit into `room` bytes."""
    if len(tail) < FOOTER_TAIL_BYTES:
        raise Corrupt(f"a footer ends with {FOOTER_TAIL_BYTES} bytes, found {len(tail)}")
    magic, entries, _, _, _, _, size = _FOOTER.unpack_from(tail)
    if magic != _FOOTER_MAGIC:
        raise Corrupt(f"the end of a footer begins with {_FOOTER_MAGIC!r}, found {magic!r}")
    if not entries or size != entries * 32 + FOOTER_TAIL_BYTES or size > room:
        raise Corrupt(f"a footer of {size} bytes with {entries} entries in {room} bytes")
    return int(size)


def decode_footer(data: bytes) -> Footer:
    """A footer from its first byte to its last."""
    at = len(data) - FOOTER_TAIL_BYTES
    (found,) = _U64.unpack_from(data, len(data) - _U64.size)
    expected = xxh3_64_intdigest(data[: -_U64.size])
    if found != expected:
        raise Corrupt(f"the footer should have checksum {expected:016x}, has {found:016x}")
    _, entries, batches, position, offset, chain, _ = _FOOTER.unpack_from(data, at)
    numbers = array("Q", Struct(f"<{4 * entries}Q").unpack_from(data))
    index = SparseIndex()
    index.offsets, index.positions, index.chains, index.stamps = (
        numbers[first : first + entries] for first in range(0, 4 * entries, entries)
    )
    return Footer(index, batches, Cursor(position, offset, chain))


def segment_checksum(header: bytes, footer: bytes) -> int:
    """128 bits that stand for all bytes of a sealed segment: its footer ends with the chain, which
    covers every batch, so they need not be read again."""
    return xxh3_128_intdigest(header + footer)
