"""Batches of messages as columns of Arrow: no object of ours for a row.

One rule: a batch is believed only as far as it was looked at. What msgpack gives goes straight into
Arrow; where it is not what a batch must be, the reader of the wire says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import accumulate, repeat
from typing import NamedTuple

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from shardnode.pipeline.columns import counting, record_batch, timestamps_ms
from shardnode.wire.batches import unpack_batch
from shardnode.wire.errors import Corrupt, InvalidRequest
from shardnode.wire.streams import MessageBatch, open_batch

OPENED_BYTES_MAX = 16 << 20
"""Where compressed messages are many more than what came, they leave in several batches."""

INSIDE = frozenset({"key", "value", "headers"})
"""Columns for which a batch has to be opened."""


class Origin(NamedTuple):
    """What all rows of a partition have in common."""

    topic: str
    partition: int
    shard: int


class Stored(NamedTuple):
    """A batch as it is stored."""

    base: int
    size: int
    stamp_ms: int
    data: bytes


class Damaged(Corrupt):
    """A batch that nobody can read; the next one begins at `after`."""

    def __init__(self, message: str, after: int) -> None:
        super().__init__(message)
        self.after = after


class Rows:
    """Rows of one partition, gathered until they are enough for a record batch."""

    def __init__(self, schema: pa.Schema, origin: Origin) -> None:
        self._schema = schema
        self._origin = origin
        self._opens = bool(INSIDE & {*schema.names})
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._first = 0
        self._size_bytes = 0
        self._stamps: list[tuple[int, int]] = []
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._has_keys = False
        self._headers: list[int] = []
        self._names: list[str] = []
        self._header_values: list[bytes] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to `take`."""
        return self._size_bytes >= OPENED_BYTES_MAX

    def add(self, batch: Stored, start: int, end: int) -> None:
        """The messages of a batch that lie between two offsets; raises `Damaged`."""
        low, high = max(start - batch.base, 0), min(end - batch.base, batch.size)
        if low >= high:
            return
        if self._opens:
            data, opened = _open(batch, self._origin)
            self._add_inside(opened, low, high)
            self._size_bytes += len(data)
        if not self.count:
            self._first = batch.base + low
        self._stamps.append((batch.stamp_ms, high - low))
        self.count += high - low

    def _add_inside(self, opened: MessageBatch, low: int, high: int) -> None:
        self._values += opened.values[low:high]
        if opened.keys:
            if not self._has_keys:
                self._keys, self._has_keys = [None] * self.count, True
            self._keys += opened.keys[low:high]
        elif self._has_keys:
            self._keys += repeat(None, high - low)
        if not opened.header_counts:
            self._headers += repeat(0, high - low)
            return
        counts = opened.header_counts
        skipped = sum(counts[:low])
        kept = skipped + sum(counts[low:high])
        self._headers += counts[low:high]
        self._names += opened.header_names[skipped:kept]
        self._header_values += opened.header_values[skipped:kept]

    def take(self) -> pa.RecordBatch:
        """All that was gathered, of which there has to be some."""
        count, origin = self.count, self._origin
        assert count, "there is nothing to take"
        batch = record_batch(
            self._schema,
            {
                "key": self._key_column,
                "value": lambda: pa.array(self._values, pa.binary()),
                "headers": self._header_column,
                "topic": lambda: pa.repeat(pa.scalar(origin.topic), count),
                "partition": lambda: pa.repeat(pa.scalar(origin.partition, pa.int32()), count),
                "offset": lambda: counting(self._first, count),
                "timestamp": self._stamp_column,
                "shard": lambda: pa.repeat(pa.scalar(origin.shard, pa.int32()), count),
            },
        )
        self._clear()
        return batch

    def _key_column(self) -> pa.Array:
        if not self._has_keys:
            return pa.nulls(self.count, pa.binary())
        return pa.array(self._keys, pa.binary())

    def _stamp_column(self) -> pa.Array:
        stamps, counts = zip(*self._stamps, strict=True)
        runs = pa.RunEndEncodedArray.from_arrays(
            pa.array(accumulate(counts), pa.int32()), pa.array(stamps, pa.int64())
        )
        return timestamps_ms(pc.run_end_decode(runs))

    def _header_column(self) -> pa.Array:
        of = self._schema.field("headers").type
        pairs = pa.StructArray.from_arrays(
            [pa.array(self._names, pa.string()), pa.array(self._header_values, pa.binary())],
            fields=list(of.value_type),
        )
        ends = pa.array(accumulate(self._headers, initial=0), pa.int32())
        return pa.ListArray.from_arrays(ends, pairs, type=of)


def record_batches(
    rows: Rows, batches: Iterator[Stored], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """What the batches of a page have between two offsets. Whatever was whole before damage has
    been given out when that is raised."""
    for batch in batches:
        try:
            rows.add(batch, start, end)
        except Damaged:
            if rows.count:
                yield rows.take()
            raise
        if rows.is_full:
            yield rows.take()
    if rows.count:
        yield rows.take()


def _open(batch: Stored, origin: Origin) -> tuple[bytes, MessageBatch]:
    """The encoded batch, and its columns."""
    try:
        data = unpack_batch(batch.data)
        return data, _columns(data, batch.size) or open_batch(data, batch.size)
    except InvalidRequest as error:
        after = batch.base + batch.size
        raise Damaged(
            f"topic {origin.topic}, partition {origin.partition}: the {batch.size} messages from"
            f" offset {batch.base} to {after - 1} were appended so that nobody can read them"
            f" ({error}); look at their producer, and go on at {after}, or set failOnDataLoss to"
            " false",
            after,
        ) from error


def _columns(data: bytes, count: int) -> MessageBatch | None:
    """The columns of an encoded batch; None when anything about them is not as it has to be."""
    try:
        columns = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if type(columns) is not list or [*map(type, columns)] != [list] * 5:
        return None
    batch = MessageBatch(*columns)
    sound = (
        len(batch.values) == count
        and len(batch.keys) in (0, count)
        and _are({bytes}, batch.values)
        and _are({bytes, type(None)}, batch.keys)
        and _has_sound_headers(batch, count)
    )
    return batch if sound else None


def _has_sound_headers(batch: MessageBatch, count: int) -> bool:
    counts, names, values = batch.header_counts, batch.header_names, batch.header_values
    if not (counts or names or values):
        return True
    return (
        len(counts) == count
        and _are({int}, counts)
        and min(counts) >= 0
        and sum(counts) == len(names) == len(values)
        and _are({str}, names)
        and _are({bytes}, values)
    )


def _are(types: Set[type], column: Sequence[object]) -> bool:
    return types >= {*map(type, column)}
