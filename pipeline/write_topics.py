"""Rows of a task as messages: grouped by partition, in big batches, appended in their order.

One rule: a partition has one batch of a task under way at a time, so its rows are there in the
order of the task; different partitions do not wait for each other.

A row goes to the partition it asks for; else to that of its key, as with every client; else to the
next partition in turn, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import add
from typing import Any, NamedTuple

from shardnode.client import topics
from shardnode.client.calls import Call
from shardnode.client.many import column as pick
from shardnode.client.messages import Outgoing
from shardnode.pipeline.options import Options
from shardnode.pipeline.write_calls import NamedAppend
from shardnode.pipeline.write_chunks import BUFFERED_BYTES_MAX, CHUNK_BYTES, Buffer, Columns
from shardnode.pipeline.write_columns import Rows
from shardnode.pipeline.write_identity import Names, batch_of, digest_of
from shardnode.pipeline.write_sender import Sender
from shardnode.wire import limits
from shardnode.wire.batches import pack_batch
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import Conflict, limit_exceeded
from shardnode.wire.placement import pack_namespace, partition_of_key, slot_of_partition
from shardnode.wire.streams import MessageBatch, pack_values

VARIANTS_MAX = 8
"""How often other rows may have been appended in place of these in one micro-batch."""

_OVERHEAD_BYTES = 16
_HEADER_BYTES = -(-CHUNK_BYTES // limits.batch_headers_max)
"""Counted for each header at least, so that a batch never has too many."""

_NO_KEY = -1
"""The buffer of rows that may go anywhere."""


class _Batch(NamedTuple):
    """What is to be appended, and how often something else was there."""

    partition: int
    space: int
    """Its namespace, by which it is not taken for that of a topic of the same name before."""
    slot: int
    digest: int
    batch: Outgoing
    data: bytes
    variant: int = 0


class TopicWriter:
    """The appends of one task."""

    def __init__(self, sender: Sender, options: Options) -> None:
        assert options.topic is not None, "the door looked at it"
        self._sender = sender
        self._compression = options.compression
        self._rows_max = options.batchrows or limits.batch_messages_max
        self._rows_max = min(self._rows_max, limits.batch_messages_max)
        self._name = topics.to_topic_name(options.topic)
        self._topic: TopicFound = sender.run(topics.describe(options.topic))
        self._buffers: dict[int, Buffer] = {}
        self._names = Names()
        self._slots: dict[int, int] = {}
        self._turn = sender.author.partition
        self._under_way: set[int] = set()
        self._displaced: list[_Batch] = []
        self.rows = 0

    def add(self, rows: Rows) -> None:
        """The rows of one record batch."""
        values, keys, headers = rows.values(), rows.optional_keys(), rows.headers()
        places = self._places(rows, keys)
        sizes = [len(value) + _OVERHEAD_BYTES for value in values]
        if keys is not None:
            sizes = [*map(add, sizes, [len(key) if key else 1 for key in keys])]
        by_row = headers.by_row() if headers is not None else [[]] * rows.count
        if headers is not None:
            more = [sum(max(h[2], _HEADER_BYTES) for h in row) for row in by_row]
            sizes = [*map(add, sizes, more)]
        self.rows += rows.count
        columns = [values, [None] * rows.count if keys is None else keys, by_row]
        for place, positions in places.items():
            buffer = self._buffers.get(place)
            if buffer is None:
                buffer = self._buffers[place] = Buffer(self._rows_max)
            buffer.add([pick(each, positions) for each in columns], pick(sizes, positions))
            for chunk in buffer.full():
                self._append(place, chunk)
        if sum(buffer.bytes for buffer in self._buffers.values()) > BUFFERED_BYTES_MAX:
            self._flush()

    def finish(self) -> None:
        """Everything is appended when this returns."""
        self._flush()
        self._sender.drain()
        while self._displaced:
            self._send_displaced()
            self._sender.drain()

    def _flush(self) -> None:
        for place, buffer in self._buffers.items():
            for chunk in buffer.rest():
                self._append(place, chunk)

    def _places(self, rows: Rows, keys: Sequence[bytes | None] | None) -> dict[int, Sequence[int]]:
        """Partition → positions of its rows."""
        count = self._topic.partitions
        asked = rows.partitions(count, self._name)
        if keys is None and asked is None:
            return {_NO_KEY: range(rows.count)}
        chosen = [_NO_KEY] * rows.count
        if keys is not None:
            chosen = [_NO_KEY if key is None else partition_of_key(key, count) for key in keys]
        if asked is not None:
            chosen = [
                mine if other is None else other for mine, other in zip(chosen, asked, strict=True)
            ]
        places: dict[int, list[int]] = {}
        for position, place in enumerate(chosen):
            places.setdefault(place, []).append(position)
        return dict(places)

    def _append(self, place: int, chunk: Columns) -> None:
        values, keys, headers = chunk
        partition = place
        if place == _NO_KEY:
            partition = self._turn % self._topic.partitions
            self._turn += 1
        keyed = any(key is not None for key in keys)
        with_headers = any(headers)
        encoded = _encode(values, keys if keyed else (), headers if with_headers else ())
        data = pack_batch(encoded, self._compression)
        if max(len(data), len(encoded)) > limits.batch_bytes_max:
            raise limit_exceeded(
                "batch_bytes_max",
                limits.batch_bytes_max,
                len(encoded),
                "make the headers of a message smaller",
            )
        more = [[pair[:2] for pair in row] for row in headers] if with_headers else None
        space = pack_namespace(self._topic.stream, self._topic.topic, partition)
        digest = self._names.of(digest_of(values, keys if keyed else None, more), space)
        slot = self._slots[partition] = self._slots.get(partition, -1) + 1
        batch = Outgoing(len(values), b"", keys[0] if keyed else None)
        self._send(_Batch(partition, space, slot, digest, batch, data))

    def _send(self, what: _Batch) -> None:
        """Append a batch, behind what is under way to its partition."""
        self._sender.wait(lambda: what.partition not in self._under_way)
        if not what.variant:
            self._send_displaced()
        author, space = self._sender.author, what.space
        shard = self._sender.table.shard_of_slot(slot_of_partition(space))
        producer, sequence = b"", 0
        if author.is_stream:
            producer = author.producer(what.slot, what.variant)
            sequence = author.producer_sequence(what.digest)
        call = NamedAppend(
            self._name,
            what.batch,
            what.data,
            partition=what.partition,
            identity=self._sender.name(shard, what.digest + what.variant),
            producer=producer,
            sequence=sequence,
        )
        self._under_way.add(what.partition)
        self._sender.send(call, len(what.data), partial(self._done, what))

    def _done(self, what: _Batch, call: Call[Any]) -> None:
        self._under_way.discard(what.partition)
        try:
            call.result()
        except Conflict as error:
            self._displaced.append(self._displaced_by(what, error))

    def _displaced_by(self, what: _Batch, error: Conflict) -> _Batch:
        """Its producer has appended something later. If that was in this micro-batch, it was made
        of other rows the last time, and these are not there yet: another producer appends them."""
        found = batch_of(error.version or 0)
        author = self._sender.author
        if found != author.batch:
            raise Conflict(
                f"micro-batch {author.batch} of this query was to be appended to {self._name},"
                f" which has its micro-batch {found} already: another run of the query goes on from"
                " the same checkpoint; stop one of them"
            ) from error
        if what.variant == VARIANTS_MAX:
            raise Conflict(
                f"micro-batch {author.batch} of this query was appended to {self._name} in part,"
                f" {VARIANTS_MAX} times, each time made of other rows; let the query give the same"
                " rows when it is run again: sort them, or write them to a table first"
            ) from error
        return what._replace(variant=what.variant + 1)

    def _send_displaced(self) -> None:
        displaced, self._displaced = self._displaced, []
        for what in displaced:
            self._send(what)


def _encode(
    values: Sequence[bytes],
    keys: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes, int]]],
) -> bytes:
    if not keys and not headers:
        return pack_values(values)
    flat = list(chain.from_iterable(headers))
    return MessageBatch(
        values,
        keys,
        [*map(len, headers)],
        [each[0] for each in flat],
        [each[1] for each in flat],
    ).encode()
