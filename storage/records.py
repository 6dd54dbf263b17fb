"""Owns the bytes of records and batches: how they are laid out, checked and searched for.

    batch   = header (104 bytes), then its records one after another
    record  = length u32, index, term, partition, partition index, chain (all u64), payload

The chain of a record is xxh3_64(its header up to the chain, then its payload), seeded with the
chain of the record before it; before index 1 it is 0. One checksum over the whole body lets a
log be verified without looking at single records, and the terms in the batch header let it be
indexed that way too.

The batch header's own checksum is seeded with the segment's random salt and the batch's offset,
so neither stale bytes nor a client's payload that imitates a batch can pass for one.

The one rule: a length is believed only after a checksum covers it and it fits into the bytes
that are really there. Decoders raise `Corrupt` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from shardnode.storage.errors import Corrupt, TooLarge
from shardnode.storage.files import Buffer

BATCH_MAGIC = b"\xf5sn\xb1tch\x1a"  # not text, not UTF-8, and unlikely to be searched for in vain
_BATCH = Struct("<8sII10Q")
_CHECKSUM = Struct("<Q")
_BATCH_AND_CHECKSUM = Struct("<8sII11Q")
BATCH_HEADER_BYTES = _BATCH_AND_CHECKSUM.size

_LENGTH = Struct("<I")
_RECORD_HEAD = Struct("<IQQQQ")
_RECORD = Struct("<IQQQQQ")
RECORD_HEADER_BYTES = _RECORD.size

BATCH_BYTES_LIMIT = 1 << 30
"""What the format can hold, whatever the options say: a header that claims more is corrupt."""

_LARGE_PAYLOAD_BYTES = 16 << 10
"""From here on a payload gets a buffer of its own in the vectored write, and is hashed in two
steps: copying it costs more than that. Measured: 64 x 4 KiB 23 us joined against 27 us apart,
16 x 64 KiB 49 us against 37 us."""

_MASK = (1 << 64) - 1


class Anchor(NamedTuple):
    """A position in the log: an index with the term and the chain of the record there."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    chain: int


ORIGIN = Anchor(0, 0, 0)


class Record(NamedTuple):
    """One entry of the log, as it is read back."""

    index: int  # type: ignore[assignment]
    term: int
    partition: int
    partition_index: int
    payload: bytes


RecordTuple = tuple[int, int, int, int, bytes]
"""What is appended: the fields of a `Record`, which is one too."""


RecordView = tuple[int, int, int, memoryview]
"""What who looks at a batch sees of a record: index, partition, partition index and payload."""


class BatchHeader(NamedTuple):
    """What a batch says about itself and about the log at the time it was written."""

    total: int  # bytes, this header included
    records: int  # how many follow; none in a truncation
    first: int  # index of the first record; everything from here on that came before is void
    first_term: int
    last_term: int
    previous_term: int
    previous_chain: int
    last_chain: int
    durable_before: int  # the highest index that was durable when this was written
    durable_end: int  # the bytes of this segment before here were durable when this was written
    commit: int  # a lower bound of the commit index
    body_checksum: int

    @property
    def last(self) -> int:
        return self.first + self.records - 1

    @property
    def previous(self) -> Anchor:
        return Anchor(self.first - 1, self.previous_term, self.previous_chain)


TermRuns = Sequence[tuple[int, int]]
"""(index, term) of each record whose term differs from that of the record before it."""


class Body(NamedTuple):
    """Encoded records, ready for one vectored write behind a batch header."""

    buffers: list[Buffer]
    size: int
    checksum: int
    last: Anchor
    runs: TermRuns


def header_seed(salt: int, offset: int) -> int:
    """Binds a batch header to one place in one segment."""
    return (salt + offset * 0x9E3779B97F4A7C15) & _MASK


def encode_body(
    records: Sequence[RecordTuple],
    previous: Anchor,
    *,
    max_record_bytes: int,
    max_batch_bytes: int,
) -> Body:
    """Chain and lay out `records`, which continue `previous` without a gap."""
    index, term, chain = previous
    buffers: list[Buffer] = []
    small: list[bytes] = []
    runs: list[tuple[int, int]] = []
    size = 0
    for record_index, record_term, partition, partition_index, payload in records:
        index += 1
        assert record_index == index, f"record {record_index} where {index} continues the log"
        if record_term != term:
            assert record_term > term, f"term {record_term} at {index} after term {term}"
            term = record_term
            runs.append((index, term))
        length = len(payload)
        size += RECORD_HEADER_BYTES + length
        if length > max_record_bytes:
            raise TooLarge(f"the payload of record {index}", length, max_record_bytes)
        if size > max_batch_bytes:
            raise TooLarge("the batch", size, max_batch_bytes)
        head = _RECORD_HEAD.pack(length, index, term, partition, partition_index)
        if length < _LARGE_PAYLOAD_BYTES:
            chain = xxh3_64_intdigest(head + payload, chain)
            small += (head, _CHECKSUM.pack(chain), payload)
        else:
            state = xxh3_64(head, chain)
            state.update(payload)
            chain = state.intdigest()
            small += (head, _CHECKSUM.pack(chain))
            buffers += (b"".join(small), payload)
            small = []
    if small:
        buffers.append(b"".join(small))
    return Body(buffers, size, _checksum(buffers), Anchor(index, term, chain), runs)


def empty_body(previous: Anchor) -> Body:
    """The body of a truncation: nothing follows `previous`."""
    return Body([], 0, _checksum([]), previous, [])


def _checksum(buffers: list[Buffer]) -> int:
    if len(buffers) == 1:
        return xxh3_64_intdigest(buffers[0])
    state = xxh3_64()
    for buffer in buffers:
        state.update(buffer)
    return state.intdigest()


def batch_header(
    body: Body,
    previous: Anchor,
    *,
    durable_before: int,
    durable_end: int,
    commit: int,
) -> BatchHeader:
    """The header for `body`, which continues `previous`."""
    first_term = body.runs[0][1] if body.runs and body.runs[0][0] == previous.index + 1 else None
    return BatchHeader(
        total=BATCH_HEADER_BYTES + body.size,
        records=body.last.index - previous.index,
        first=previous.index + 1,
        first_term=previous.term if first_term is None else first_term,
        last_term=body.last.term,
        previous_term=previous.term,
        previous_chain=previous.chain,
        last_chain=body.last.chain,
        durable_before=durable_before,
        durable_end=durable_end,
        commit=commit,
        body_checksum=body.checksum,
    )


def encode_batch_header(header: BatchHeader, salt: int, offset: int) -> bytes:
    """The header's bytes for this one place."""
    data = _BATCH.pack(BATCH_MAGIC, *header)
    return data + _CHECKSUM.pack(xxh3_64_intdigest(data, header_seed(salt, offset)))


def decode_batch_header(data: Buffer, at: int, salt: int, offset: int) -> BatchHeader:
    """The header at `data[at:]`, which was read from `offset` of a segment with this salt."""
    if len(data) - at < BATCH_HEADER_BYTES:
        raise Corrupt("a batch header is cut off")
    magic, *fields, checksum = _BATCH_AND_CHECKSUM.unpack_from(data, at)
    if magic != BATCH_MAGIC:
        raise Corrupt("no batch begins here")
    if xxh3_64_intdigest(data[at : at + _BATCH.size], header_seed(salt, offset)) != checksum:
        raise Corrupt("a batch header does not match its checksum")
    header = BatchHeader(*fields)
    if problem := _nonsense(header):
        raise Corrupt(f"a batch header makes no sense: {problem}")
    return header


def _nonsense(header: BatchHeader) -> str:
    """What no writer would write, although the checksum is right."""
    body = header.total - BATCH_HEADER_BYTES
    if not 0 <= body <= BATCH_BYTES_LIMIT:
        return f"{header.total} bytes in total"
    if header.records * RECORD_HEADER_BYTES > body or (header.records == 0) != (body == 0):
        return f"{header.records} records in {body} bytes"
    if header.first < 1 or not header.previous_term <= header.first_term <= header.last_term:
        return f"index {header.first}, terms {header[3:6]}"
    return ""


def check_body(header: BatchHeader, body: Buffer) -> None:
    """Raise `Corrupt` unless `body` is what the header was written for."""
    if len(body) != header.total - BATCH_HEADER_BYTES:
        raise Corrupt(f"a batch body has {len(body)} bytes of {header.total - BATCH_HEADER_BYTES}")
    if xxh3_64_intdigest(body) != header.body_checksum:
        raise Corrupt(f"the batch of index {header.first} does not match its checksum")


def decode_records(
    header: BatchHeader, body: Buffer, first: int = 0, last: int = _MASK
) -> Iterator[tuple[Record, int]]:
    """Each record from `first` to `last` with its chain. The caller has checked the body."""
    at = 0
    term = header.previous_term
    for index in range(header.first, min(header.last, last) + 1):
        start = at + RECORD_HEADER_BYTES
        if start > len(body):
            raise Corrupt(f"record {index} is cut off")
        length, found, record_term, part, part_index, chain = _RECORD.unpack_from(body, at)
        at = start + length
        if at > len(body) or found != index or not term <= record_term <= header.last_term:
            raise Corrupt(f"record {index} contradicts its batch: index {found}, {length} bytes")
        term = record_term
        if index >= first:
            yield Record(index, term, part, part_index, bytes(body[start:at])), chain
    if last >= header.last and at != len(body):
        raise Corrupt(f"{len(body) - at} bytes follow the last record of a batch")


def walk_chain(header: BatchHeader, body: memoryview) -> Iterator[RecordView]:
    """Each record of a checked body, with its chain worked out again; `Corrupt` where a record
    says another one. Payloads are views of the body."""
    at = 0
    chain = header.previous_chain
    for index in range(header.first, header.first + header.records):
        start = at + RECORD_HEADER_BYTES
        length, _, _, partition, partition_index, said = _RECORD.unpack_from(body, at)
        payload = body[start : start + length]
        if length < _LARGE_PAYLOAD_BYTES:
            chain = xxh3_64_intdigest(bytes(body[at : at + _RECORD_HEAD.size]) + payload, chain)
        else:
            state = xxh3_64(body[at : at + _RECORD_HEAD.size], chain)
            state.update(payload)
            chain = state.intdigest()
        if chain != said:
            raise Corrupt(f"record {index} should have chain {chain:016x}, has {said:016x}")
        yield index, partition, partition_index, payload
        at = start + length
    if chain != header.last_chain:
        raise Corrupt(f"a batch that ends with chain {chain:016x} says {header.last_chain:016x}")


def part_of(header: BatchHeader, body: memoryview, first: int, last: int) -> memoryview:
    """The bytes of the records from `first` to `last` of a batch, which the caller has checked."""
    if first <= header.first and last >= header.last:
        return body
    at = start = 0
    for index in range(header.first, min(header.last, last) + 1):
        if index == first:
            start = at
        if at + RECORD_HEADER_BYTES > len(body):
            raise Corrupt(f"record {index} is cut off")
        at += RECORD_HEADER_BYTES + _LENGTH.unpack_from(body, at)[0]
    return body[start:at]


def unpack_record_header(data: Buffer, at: int) -> tuple[int, int, int, int, int, int]:
    """Length of the payload, index, term, partition, partition index, chain."""
    return _RECORD.unpack_from(data, at)


def term_runs(header: BatchHeader, body: Buffer) -> TermRuns:
    """Where terms change; looks at single records only when the batch has several terms."""
    runs: list[tuple[int, int]] = []
    if header.first_term != header.last_term:
        term = header.previous_term
        for record, _ in decode_records(header, body):
            if record.term != term:
                term = record.term
                runs.append((record.index, term))
    elif header.first_term != header.previous_term:
        runs.append((header.first, header.first_term))
    return runs


def find_batches(data: bytes, salt: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Every intact batch header in `data`, wherever it begins, with its place in the file."""
    at = data.find(BATCH_MAGIC)
    while at >= 0:
        place = offset + at
        # Most are of an earlier life of the file, or inside a payload: a look at each, no more.
        if _is_checked(data, at, salt, place):
            with suppress(Corrupt):
                yield place, decode_batch_header(data, at, salt, place)
        at = data.find(BATCH_MAGIC, at + 1)


def _is_checked(data: bytes, at: int, salt: int, place: int) -> bool:
    end = at + _BATCH.size
    found = data[end : end + _CHECKSUM.size]
    seed = header_seed(salt, place)
    return found == _CHECKSUM.pack(xxh3_64_intdigest(data[at:end], seed))
