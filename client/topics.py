"""One function per method that is about topics: from a caller's arguments to a call.

One rule: `Topic` and `AsyncTopic` build their calls here and nowhere else, so they cannot differ in
what they mean. Batches are encoded here, in the thread that appends.
"""

from __future__ import annotations

from datetime import timedelta

from shardnode.client.arguments import Data, to_bytes, to_ttl_ms
from shardnode.client.messages import Outgoings, to_batch
from shardnode.client.offsets import Offset, to_start
from shardnode.client.topic_calls import AppendCall, DescribeCall, LookupCall, ReadCall
from shardnode.client.topic_wishes import BoundsCall, DeleteCall, ListCall, WishCall
from shardnode.wire import control, limits
from shardnode.wire.batches import Compression, pack_batch
from shardnode.wire.errors import InvalidRequest, limit_exceeded
from shardnode.wire.kinds import Kind

DEFAULT_STREAM = "default"

Retention = float | timedelta | None


def to_topic_name(name: str) -> str:
    """The full name of a topic; raises `InvalidRequest` for what is none."""
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a topic as str, found {type(name).__name__}")
    full = name if "/" in name else f"{DEFAULT_STREAM}/{name}"
    control.TopicDescribe(full).encode()  # says what is wrong
    return full


def create(
    name: str,
    partitions: int,
    retention_time: Retention,
    retention_bytes: int | None,
    exist_ok: bool,
) -> WishCall:
    body = control.TopicCreate(
        to_topic_name(name),
        _to_count(partitions, "partitions"),
        _to_retention_ms(retention_time) or 0,
        _to_size(retention_bytes) or 0,
    )
    return WishCall(Kind.TOPIC_CREATE, body, exist_ok=exist_ok)


def alter(
    name: str, partitions: int | None, retention_time: Retention, retention_bytes: int | None
) -> WishCall:
    body = control.TopicAlter(
        to_topic_name(name),
        None if partitions is None else _to_count(partitions, "partitions"),
        _to_retention_ms(retention_time),
        _to_size(retention_bytes),
    )
    return WishCall(Kind.TOPIC_ALTER, body, exist_ok=False)


def delete(name: str) -> DeleteCall:
    return DeleteCall(to_topic_name(name))


def describe(name: str) -> DescribeCall:
    return DescribeCall(to_topic_name(name))


def names() -> ListCall:
    return ListCall()


def append(
    name: str,
    messages: Outgoings,
    *,
    key: Data | None,
    partition: int | None,
    turn: int,
    compression: Compression | None,
    producer: Data | None,
    sequence: int | None,
) -> AppendCall:
    if compression not in (None, "zstd"):
        raise InvalidRequest(f"expected compression as 'zstd' or None, found {compression!r}")
    if (producer is None) != (sequence is None):
        raise InvalidRequest("expected a producer and its sequence, found one of them; give both")
    batch = to_batch(messages, key)
    if producer is not None and partition is None and batch.key is None:
        raise InvalidRequest(
            "expected a partition or a key with a producer, found neither; its sequence counts in"
            " one partition"
        )
    data = pack_batch(batch.encoded, compression)
    if max(len(data), len(batch.encoded)) > limits.batch_bytes_max:
        raise limit_exceeded(
            "batch_bytes_max", limits.batch_bytes_max, len(batch.encoded), "append fewer at once"
        )
    return AppendCall(
        name,
        batch,
        data,
        partition=None if partition is None else to_partition(partition),
        turn=turn,
        producer=b"" if producer is None else to_bytes(producer, "producer"),
        sequence=0 if sequence is None else _to_count(sequence, "sequence", low=0),
    )


def read(
    name: str, partition: int, offset: Offset, max_messages: int, max_bytes: int | None, wait: float
) -> ReadCall:
    limit = _to_count(max_messages, "max_messages")
    return ReadCall(
        name,
        to_partition(partition),
        to_start(offset),
        limit=min(limit, limits.batch_messages_max),
        page_bytes=min(_to_count(max_bytes, "max_bytes"), limits.read_page_bytes_max)
        if max_bytes is not None
        else 0,
        wait_s=to_wait_s(wait),
    )


def offset(name: str, partition: int, at: Offset) -> LookupCall:
    start = to_start(at)
    if start.point is None:
        raise InvalidRequest(f"expected earliest, latest, last or a time, found the offset {at}")
    return LookupCall(name, to_partition(partition), start)


def bounds(name: str, partition: int) -> LookupCall:
    return LookupCall(name, to_partition(partition), to_start("earliest"))


def all_bounds(name: str) -> BoundsCall:
    return BoundsCall(name)


def to_partition(partition: int) -> int:
    """The number of a partition, which may be one that does not exist."""
    return _to_count(partition, "partition", low=0)


def to_wait_s(wait: float) -> float:
    """How long a shard shall wait for messages."""
    longest = limits.read_wait_ms_max / 1000
    if not isinstance(wait, int | float) or isinstance(wait, bool):
        raise TypeError(f"expected wait in seconds, found {type(wait).__name__}")
    if not 0 <= wait <= longest:
        raise InvalidRequest(
            f"expected wait from 0 to {longest:g} seconds (read_wait_ms_max), found {wait:g}; read"
            " again after that"
        )
    return float(wait)


def _to_count(count: int, what: str, low: int = 1) -> int:
    if type(count) is not int:
        raise TypeError(f"expected {what} as an int, found {type(count).__name__}")
    if count < low:
        raise InvalidRequest(f"expected {what} of {low} or more, found {count}")
    return count


def _to_retention_ms(retention: Retention) -> int | None:
    """0 ends it."""
    if retention is None:
        return None
    if retention in (0, timedelta(0)) and not isinstance(retention, bool):
        return 0
    return to_ttl_ms(retention, "retention_time")


def _to_size(size: int | None) -> int | None:
    return None if size is None else _to_count(size, "retention_bytes", low=0)
