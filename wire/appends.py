"""Append requests on the way of a shard: taken apart without a copy of the batches.

One rule: what this gives is what `decode` gives, but that the batches are a view of the body.
Anything out of the ordinary is left to `decode`, which says what is wrong with it.

A batch of 100 KB is copied often enough between two machines; here it is looked at once more for
each request and each replica, and a view costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

import msgpack

from shardnode.wire import limits
from shardnode.wire.batches import look_at
from shardnode.wire.streams import Append, AppendMany

_APPEND = 0x95  # an array of the five fields
_NUMBERS: dict[int, tuple[Callable[..., tuple[int, ...]], int]] = {
    0xCC: (Struct(">B").unpack_from, 1),
    0xCD: (Struct(">H").unpack_from, 2),
    0xCE: (Struct(">I").unpack_from, 4),
    0xCF: (Struct(">Q").unpack_from, 8),
}
_HEAD = Struct(">xBQBHBI")
_NOBODY = b"\xc4\x00\x00"
"""Ends an append of nobody in particular."""
_LARGE_BYTES = 1 << 16
_MANY = 0x94  # an array of four fields
_COLUMNS_BYTES = 32 + 2 * 5 * limits.append_batches_max
"""What is in front of the batches is never longer."""
_LENGTHS = {0xC4: _NUMBERS[0xCC], 0xC5: _NUMBERS[0xCD], 0xC6: _NUMBERS[0xCE]}


def view_append(body: bytes | memoryview) -> Append:
    """The request in a body; raises an `InvalidRequest` for anything but a valid one."""
    try:
        found = _view(memoryview(body))
    except Exception:  # too short, or no such field: the decoder tells which
        found = None
    return Append.decode(body) if found is None else found


def view_append_many(body: bytes | memoryview) -> AppendMany:
    """The same for several batches."""
    try:
        found = _view_many(memoryview(body))
    except Exception:  # as above
        found = None
    return AppendMany.decode(body) if found is None else found


def pack_append_many(namespace: int, counts: Sequence[int], batches: Sequence[bytes]) -> bytes:
    """What `AppendMany.encode` gives for batches that are known to be within the limits; they are
    copied once."""
    sizes = [*map(len, batches)]
    columns = map(msgpack.packb, (namespace, counts, sizes))
    return b"".join((bytes((_MANY,)), *columns, _bytes_head(sum(sizes)), *batches))


def _bytes_head(size: int) -> bytes:
    """How bytes of that size begin."""
    first, width = (0xC4, 1) if size < 1 << 8 else (0xC5, 2) if size < 1 << 16 else (0xC6, 4)
    return bytes((first, *size.to_bytes(width, "big")))


def check_batches(ask: Append | AppendMany) -> None:
    """Whether each batch begins as one of so many messages does; raises an `InvalidRequest`. What
    is inside is for those who read it: a shard's work is for the batch, not for its messages."""
    if isinstance(ask, Append):
        look_at(ask.batch, ask.count)
        return
    for count, batch in ask.each():
        look_at(batch, count)


def _view(body: memoryview) -> Append | None:
    if body[0] != _APPEND or len(body) > limits.body_bytes_max:
        return None
    if body[-3:] == _NOBODY and len(body) > _LARGE_BYTES and (found := _usual(body)):
        return found
    namespace, at = _number(body, 1)
    count, at = _number(body, at)
    batch, at = _bytes(body, at)
    producer, at = _bytes(body, at)
    sequence, at = _number(body, at)
    if (
        at != len(body)
        or namespace > limits.namespace_max
        or not 1 <= count <= limits.batch_messages_max
        or not 1 <= len(batch) <= limits.batch_bytes_max
        or len(producer) > limits.name_bytes_max
    ):
        return None
    return Append(namespace, count, batch, bytes(producer), sequence)  # type: ignore[arg-type]


def _view_many(body: memoryview) -> AppendMany | None:
    if body[0] != _MANY or len(body) > limits.body_bytes_max:
        return None
    columns = msgpack.Unpacker(max_array_len=limits.append_batches_max, max_str_len=0)
    columns.feed(body[1:_COLUMNS_BYTES])
    namespace, counts, sizes = columns.unpack(), columns.unpack(), columns.unpack()
    batches, end = _bytes(body, 1 + columns.tell())
    if (
        end != len(body)
        or type(namespace) is not int
        or not 0 <= namespace <= limits.namespace_max
        or {*map(type, counts), *map(type, sizes)} != {int}
        or not (min(counts) >= 1 and max(counts) <= limits.batch_messages_max)
        or not (min(sizes) >= 1 and len(counts) == len(sizes))
        or not sum(sizes) == len(batches) <= limits.batch_bytes_max
    ):
        return None
    return AppendMany(namespace, counts, sizes, batches)  # type: ignore[arg-type]


def _usual(body: memoryview) -> Append | None:
    """Of the large batches most have numbers of the same widths: these are read in one step."""
    first, namespace, second, count, third, size = _HEAD.unpack_from(body)
    if (
        (first, second, third) != (0xCF, 0xCD, 0xC6)
        or _HEAD.size + size + len(_NOBODY) != len(body)
        or namespace > limits.namespace_max
        or not 1 <= count <= limits.batch_messages_max
        or size > limits.batch_bytes_max
    ):
        return None
    return Append(namespace, count, body[_HEAD.size : -len(_NOBODY)])  # type: ignore[arg-type]


def _number(body: memoryview, at: int) -> tuple[int, int]:
    first = body[at]
    if first < 0x80:
        return first, at + 1
    unpack, size = _NUMBERS[first]
    return unpack(body, at + 1)[0], at + 1 + size


def _bytes(body: memoryview, at: int) -> tuple[memoryview, int]:
    unpack, size = _LENGTHS[body[at]]
    begin = at + 1 + size
    end = begin + unpack(body, at + 1)[0]
    if end > len(body):
        raise ValueError("the body ends before")
    return body[begin:end], end
