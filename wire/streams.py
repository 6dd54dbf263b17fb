"""Messages of a stream partition: append a batch, read batches, look up an offset.

One rule: a batch is stored as it was sent. The shard looks at how it begins, and from then on
passes the same bytes to its log, to the other members and to every reader; only clients take
messages out of it. A producer may have compressed it (`batches`).

Each request here is sent to the shard of its partition, with the namespace as routing key and
`Flag.NAMESPACE`. Topics are turned into namespaces by `control.TopicDescribe`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgpack

from shardnode.wire import limits
from shardnode.wire.batches import unpack_batch
from shardnode.wire.codec import Answer, Body
from shardnode.wire.errors import malformed
from shardnode.wire.fields import (
    Bytes,
    BytesColumn,
    Choice,
    Int,
    IntColumn,
    Level,
    Namespace,
    Number,
    TextColumn,
)
from shardnode.wire.kinds import Consistency, OffsetPoint

_BatchNumbers = Annotated[Sequence[int], IntColumn("read_page_batches_max")]


@dataclass(frozen=True, slots=True)
class MessageBatch(Body):
    """Messages as parallel columns. A column that would be all nil or all zero is left empty."""

    values: Annotated[Sequence[bytes], BytesColumn("value_bytes_max", "batch_messages_max")]
    keys: Annotated[
        Sequence[bytes | None], BytesColumn("key_bytes_max", "batch_messages_max", optional=True)
    ] = ()
    """Empty, or one for each message."""
    header_counts: Annotated[
        Sequence[int], IntColumn("batch_messages_max", "batch_headers_max")
    ] = ()
    """Empty, or how many of the headers below belong to each message, in order."""
    header_names: Annotated[Sequence[str], TextColumn("name_bytes_max", "batch_headers_max")] = ()
    header_values: Annotated[
        Sequence[bytes], BytesColumn("value_bytes_max", "batch_headers_max")
    ] = ()

    def validate(self) -> None:
        count = len(self.values)
        if not count:
            raise malformed("at least one message", "none", "leave out an empty batch")
        if len(self.keys) not in (0, count) or len(self.header_counts) not in (0, count):
            raise malformed(
                f"no keys and header counts, or {count} of each",
                f"{len(self.keys)} and {len(self.header_counts)}",
                "send one for each message",
            )
        if not sum(self.header_counts) == len(self.header_names) == len(self.header_values):
            raise malformed(
                f"{sum(self.header_counts)} headers, the sum of their counts",
                f"{len(self.header_names)} names and {len(self.header_values)} values",
                "send one name and one value for each header",
            )


def pack_values(values: Sequence[bytes]) -> bytes:
    """A `MessageBatch` of values alone, all of them bytes, as `encode` would have it. One that is
    no larger than a single value may be needs no look at each."""
    packed: bytes = msgpack.packb((values, (), (), (), ()))
    if 0 < len(values) <= limits.batch_messages_max and len(packed) <= limits.value_bytes_max:
        return packed
    return MessageBatch(values).encode()


def open_batch(data: bytes, count: int) -> MessageBatch:
    """The messages in the bytes of a batch, as many as were said; raises an `InvalidRequest`."""
    batch = MessageBatch.decode(unpack_batch(data))
    if len(batch.values) != count:
        raise malformed(
            f"a batch of {count} messages, its count",
            f"{len(batch.values)}",
            "count the messages of the batch",
        )
    return batch


@dataclass(frozen=True, slots=True)
class Append(Body):
    """Append a batch to a partition, all or nothing. Answered by `Appended`."""

    namespace: Namespace
    count: Annotated[int, Int("batch_messages_max", low=1)]
    """How many messages the batch has, so that offsets are given without looking into it."""
    batch: Annotated[bytes, Bytes("batch_bytes_max", length_min=1)]
    """A `MessageBatch`, encoded, or one zstd frame of it. The shard refuses what does not begin as
    one of `count` messages does, or a frame that names no size; the rest readers check."""
    producer: Annotated[bytes, Bytes("name_bytes_max")] = b""
    """Who appends, over restarts and sessions; empty: nobody in particular."""
    producer_sequence: Number = 0
    """Grows with each batch of one producer in one partition. The last number again is answered
    as the first time and appends nothing; a lower one is a `Conflict`, whose version is the last
    number."""


@dataclass(frozen=True, slots=True)
class AppendMany(Body):
    """Append several batches to a partition, in order, all or nothing. Each is stored by itself, as
    if it had been sent alone. Answered by `Appended`, of the first; the others follow it without a
    gap, and have the same stamp."""

    namespace: Namespace
    counts: Annotated[Sequence[int], IntColumn("append_batches_max", "batch_messages_max", low=1)]
    """How many messages each batch has."""
    sizes: Annotated[Sequence[int], IntColumn("append_batches_max", "batch_bytes_max", low=1)]
    """How many bytes."""
    batches: Annotated[bytes, Bytes("batch_bytes_max", length_min=1)]
    """All of them, one behind the other: each as in `Append`."""

    def validate(self) -> None:
        if len(self.counts) != len(self.sizes) or sum(self.sizes) != len(self.batches):
            raise malformed(
                "a count and a size for each batch, and as many bytes as the sizes together",
                f"{len(self.counts)} counts and {len(self.sizes)} sizes of {sum(self.sizes)} bytes,"
                f" and {len(self.batches)} bytes",
                "say of each batch how many messages and bytes it has",
            )

    def each(self) -> Iterator[tuple[int, bytes]]:
        """The count of each batch, and its bytes."""
        begin, batches = 0, self.batches
        for count, size in zip(self.counts, self.sizes, strict=True):
            yield count, batches[begin : begin + size]
            begin += size


@dataclass(frozen=True, slots=True)
class Appended(Answer):
    """Where a batch is."""

    offset: Number
    """Of its first message; the others follow without a gap."""
    timestamp_ms: Number
    """The stamp of all its messages, in milliseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Read(Body):
    """Whole batches from the one that holds `offset`. Answered by `MessagesFound`, as soon as
    there are any or after `wait_ms`; an offset below the first one is `Compacted`.

    A page ends with the batch that reaches `limit` messages or `page_bytes`, with at least one
    batch; 0 leaves either to the shard.
    """

    namespace: Namespace
    offset: Number
    limit: Annotated[int, Int("batch_messages_max")] = 0
    page_bytes: Annotated[int, Int("read_page_bytes_max")] = 0
    wait_ms: Annotated[int, Int("read_wait_ms_max")] = 0
    consistency: Level = Consistency.LINEARIZABLE


@dataclass(frozen=True, slots=True)
class MessagesFound(Answer):
    """Batches in order, as they were sent. The first may begin below the offset asked for: a
    client leaves those messages out."""

    base_offsets: _BatchNumbers
    counts: _BatchNumbers
    timestamps_ms: _BatchNumbers
    batches: Annotated[Sequence[bytes], BytesColumn("batch_bytes_max", "read_page_batches_max")]
    next: Number
    """The offset to go on at."""
    first: Number
    """The first message that is still there."""
    end: Number
    """Behind the last message that readers may see."""

    def validate(self) -> None:
        lengths = [
            len(self.base_offsets),
            len(self.counts),
            len(self.timestamps_ms),
            len(self.batches),
        ]
        if len(set(lengths)) > 1:
            raise malformed(
                "one offset, count and time per batch",
                f"{lengths} of them",
                "the shard that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class OffsetLookup(Body):
    """Which offset is that? Answered by `OffsetFound`."""

    namespace: Namespace
    point: Annotated[OffsetPoint, Choice(OffsetPoint)]
    timestamp_ms: Number = 0
    """For TIMESTAMP; otherwise 0."""


@dataclass(frozen=True, slots=True)
class OffsetFound(Answer):
    """An offset, and the bounds of its partition."""

    offset: Number
    first: Number
    end: Number
