"""The log of a shard in a destination: chunks of records that continue each other.

The one rule: a chunk holds whole records, and each was proven to continue the one before it, up to
the position from which the log is read on. So chunks can be overlapped, left out and read in any
order: the chain says what belongs together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardnode.backup.format import Chunk, chunk_key, damaged
from shardnode.backup.store import Store
from shardnode.shard.entries import stamp_of
from shardnode.storage.errors import Corrupt as BadRecords
from shardnode.storage.records import Anchor
from shardnode.storage.stretch import Proven, prove
from shardnode.wire.errors import NotFound
from shardnode.wire.placement import RAFT_PARTITION

CHUNK_BYTES = 16 << 20
"""A chunk ends with the first record that reaches this."""


class ChunkWriter:
    """Takes the bytes of records that continue a position, and makes one chunk of them."""

    def __init__(self, before: Anchor) -> None:
        self.before = before
        self.position = before
        self._data = bytearray()
        self._proven_bytes = 0
        self._stamps = (0, 0)

    @property
    def is_full(self) -> bool:
        return self._proven_bytes >= CHUNK_BYTES

    def take(self, data: bytes) -> None:
        """More bytes; raises `BadRecords` for a record that does not continue the one before."""
        self._data += data
        first, last = self._stamps
        rest = memoryview(self._data)[self._proven_bytes :]
        start = self._proven_bytes
        try:
            for proven in prove(rest, self.position):
                stamp = stamp_of_record(proven)
                first, last = first or stamp, max(last, stamp)
                self.position = proven.position
                self._proven_bytes = start + proven.end
                if self.is_full:  # the same log gives the same chunks, whatever its pieces were
                    break
        finally:
            rest.release()
        self._stamps = first, last

    def store(self, store: Store, shard: int) -> Chunk:
        """Write the records that are whole; at least one must be."""
        assert self.position.index > self.before.index, "an empty chunk"
        chunk = Chunk(
            first=self.before.index + 1,
            last=self.position.index,
            term_before=self.before.term,
            chain_before=self.before.chain,
            chain=self.position.chain,
            size=self._proven_bytes,
            stamp_first_ms=self._stamps[0],
            stamp_last_ms=self._stamps[1],
        )
        key = chunk_key(shard, chunk)
        if store.exists(key) != chunk.size:
            store.put(key, bytes(self._data[: self._proven_bytes]))
        return chunk


def stamp_of_record(proven: Proven) -> int:
    """When it was taken, by the clock of who led; 0 for records of consensus itself."""
    record = proven.record
    return 0 if record.partition == RAFT_PARTITION else stamp_of(record.payload)


def read_chunk(store: Store, shard: int, chunk: Chunk) -> Iterator[Proven]:
    """The records of a chunk, each of them proven; `Corrupt` when it is not as it was."""
    key = chunk_key(shard, chunk)
    try:
        data = store.get(key)
    except NotFound as error:
        raise damaged(key, "it is missing") from error
    end, position = 0, chunk.before
    try:
        for proven in prove(data, chunk.before):
            end, position = proven.end, proven.position
            yield proven
    except BadRecords as error:
        raise damaged(key, str(error)) from error
    if (end, position.index, position.chain) != (len(data), chunk.last, chunk.chain):
        raise damaged(key, f"it ends with record {position.index} of {chunk.last}")


def read_log(store: Store, shard: int, path: Sequence[Chunk], after: Anchor) -> Iterator[Proven]:
    """The records behind a position, from chunks of which each reaches at least to the next one."""
    position = after
    for chunk in path:
        if chunk.before.index == position.index and chunk.before != position:
            raise damaged(chunk_key(shard, chunk), f"it does not continue index {position.index}")
        for proven in read_chunk(store, shard, chunk):
            if proven.record.index == position.index and proven.position != position:
                raise damaged(
                    chunk_key(shard, chunk), f"it has another history at index {position.index}"
                )
            if proven.record.index > position.index:
                position = proven.position
                yield proven
