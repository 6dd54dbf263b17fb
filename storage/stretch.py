"""Owns a stretch of a log outside of any log: records as plain bytes, one after another.

    record, record, …      each as `records.py` lays it out, with its chain

The bytes are those that stand in the batches, so a log gives them away without a look at each
record, and whoever has them can prove every one by the chain, from the position they continue.

The one rule: a record counts once its chain is verified; until then it is just bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from shardnode.storage.errors import Corrupt, StorageError
from shardnode.storage.files import Buffer
from shardnode.storage.reader import Reader
from shardnode.storage.records import (
    BATCH_BYTES_LIMIT,
    RECORD_HEADER_BYTES,
    Anchor,
    Record,
    unpack_record_header,
)

_CHAIN_BYTES = 8
_LARGE_PAYLOAD_BYTES = 16 << 10
"""From here on the payload is hashed where it is."""


class Stretch:
    """The records of a log through `last`, all committed, as one stream of bytes for each record it
    may begin with. Made to be read in order: the place where a read ended is remembered."""

    def __init__(self, reader: Reader, last: int) -> None:
        """Use `SegmentedLog.stretch`."""
        self.last = last
        self._reader = reader
        self._first = 0
        self._offset = 0
        self._bodies: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")

    def read(self, first: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes, `offset` bytes behind where the record `first` begins; fewer only at
        the end. `Compacted` when the log does not reach back to it any more."""
        if first != self._first or offset < self._offset:
            self._first, self._offset, self._rest = first, 0, memoryview(b"")
            self._bodies = self._reader.bodies(first, self.last)
        try:
            for _ in self._take(offset - self._offset):
                pass
            return b"".join(self._take(size))
        except StorageError:
            self._first = 0  # a place that was lost half-way must not pass for the end
            raise

    def _take(self, size: int) -> Iterator[memoryview]:
        while size > 0:
            if not self._rest:
                body = next(self._bodies, None)
                if body is None:
                    return
                self._rest = body
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            self._offset += len(piece)
            yield piece

    def close(self) -> None:
        """Give the file back."""
        self._bodies, self._rest = iter(()), memoryview(b"")
        self._first = 0
        self._reader.close()


class Proven(NamedTuple):
    """A record whose chain is right."""

    record: Record
    chain: int
    end: int
    """Of its bytes."""

    @property
    def position(self) -> Anchor:
        return Anchor(self.record.index, self.record.term, self.chain)


def prove(data: Buffer, previous: Anchor) -> Iterator[Proven]:
    """The whole records in `data`, which continue `previous`; what is left at the end is the
    beginning of the next one. `Corrupt` for a record that does not continue the one before it."""
    view = memoryview(data)
    index, term, chain = previous
    at = 0
    while len(view) - at >= RECORD_HEADER_BYTES:
        length, found, record_term, partition, number, claimed = unpack_record_header(view, at)
        if found != index + 1 or record_term < term:
            raise Corrupt(f"expected record {index + 1} of term {term}, found {found}", offset=at)
        if length > BATCH_BYTES_LIMIT:
            raise Corrupt(f"record {found} claims {length} bytes", offset=at)
        start, end = at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + length
        if end > len(view):
            return
        payload = bytes(view[start:end])
        chain = _chain(view[at : start - _CHAIN_BYTES], payload, chain)
        if chain != claimed:
            raise Corrupt(f"record {found} does not continue the hash chain", offset=at)
        index, term, at = found, record_term, end
        yield Proven(Record(index, term, partition, number, payload), chain, end)


def prove_pieces(pieces: Iterable[bytes], previous: Anchor) -> Iterator[Proven]:
    """The same of bytes that come one after another."""
    waiting = b""
    for piece in pieces:
        waiting += piece
        end = 0
        for proven in prove(waiting, previous):
            end, previous = proven.end, proven.position
            yield proven
        waiting = waiting[end:]
    if waiting:
        raise Corrupt(f"the log ends with {len(waiting)} bytes of a record")


def _chain(head: memoryview, payload: bytes, before: int) -> int:
    if len(payload) < _LARGE_PAYLOAD_BYTES:
        return xxh3_64_intdigest(bytes(head) + payload, before)
    state = xxh3_64(head, before)
    state.update(payload)
    return state.intdigest()
