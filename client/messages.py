"""Messages as callers see them, and batches as the wire has them.

One rule: no Python per message where messages are plain. Batches become messages and messages a
batch by functions that loop in C; only headers, and messages with a key of their own, cost a step
each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, NoReturn

from shardnode.client.arguments import Data, to_bytes
from shardnode.client.values import stamp_of
from shardnode.wire.errors import Corrupt, InvalidRequest
from shardnode.wire.streams import MessageBatch, MessagesFound, open_batch, pack_values


class Headers(dict[str, bytes]):
    """The headers of a message by name, which may not be changed. Of a name that comes twice the
    last value counts; `pairs` has all of them, in order."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[str, bytes]] = ()) -> None:
        self.pairs = tuple(pairs)
        super().__init__(self.pairs)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the headers of a message that was read cannot be changed; copy them first")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Headers], tuple[object, ...]]:
        return Headers, (self.pairs,)


NO_HEADERS = Headers()
"""Shared by all messages without headers."""


class Message(NamedTuple):
    """A message as it was read."""

    partition: int
    offset: int
    timestamp: datetime
    """When it was appended, in UTC."""
    key: bytes | None
    value: bytes
    headers: Headers


class OutgoingMessage(NamedTuple):
    """A message to append, with a key and headers of its own."""

    value: Data
    key: Data | None = None
    headers: Mapping[str, Data] | Iterable[tuple[str, Data]] | None = None
    """Pairs, where a name comes twice."""


class Position(NamedTuple):
    """Where the first message of a batch is; the others follow without a gap."""

    partition: int
    offset: int


class Outgoing(NamedTuple):
    """A batch to append."""

    size: int
    """How many messages."""
    encoded: bytes
    """As a `MessageBatch`."""
    key: bytes | None
    """What chooses the partition, if anything does."""


Outgoings = Iterable[Data | OutgoingMessage]

_MAKE = partial(tuple.__new__, Message)


def to_batch(messages: Outgoings, key: Data | None) -> Outgoing:
    """Messages as one batch. `key` is that of every message without one of its own."""
    if isinstance(messages, bytes | bytearray | memoryview | str | OutgoingMessage):
        raise TypeError(
            f"expected many messages, found a single one ({type(messages).__name__}); put it into"
            " a list"
        )
    listed = list(messages)
    common = None if key is None else to_bytes(key)
    is_plain = [*map(type, listed)].count(bytes) == len(listed)  # half the time of a set of types
    if common is None and is_plain:
        return Outgoing(len(listed), pack_values(listed), None)  # type: ignore[arg-type]  # checked
    if is_plain:
        keys: Sequence[bytes | None] = () if common is None else [common] * len(listed)
        batch = MessageBatch(listed, keys)  # type: ignore[arg-type]  # just checked, in C
    else:
        batch = _mixed(listed, common)
        keys = batch.keys
    first = keys[0] if keys else None
    return Outgoing(len(listed), batch.encode(), common if common is not None else first)


def _mixed(listed: Sequence[Data | OutgoingMessage], common: bytes | None) -> MessageBatch:
    """A batch in which some message is not plain bytes."""
    values: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[Sequence[tuple[str, bytes]]] = []
    for message in listed:
        if isinstance(message, OutgoingMessage):
            values.append(to_bytes(message.value, "message"))
            keys.append(common if message.key is None else to_bytes(message.key))
            headers.append(_pairs(message.headers))
        else:
            values.append(to_bytes(message, "message"))
            keys.append(common)
            headers.append(())
    flat = list(chain.from_iterable(headers))
    return MessageBatch(
        values,
        keys if any(key is not None for key in keys) else (),
        [*map(len, headers)] if flat else (),
        [name for name, _ in flat],
        [value for _, value in flat],
    )


def _pairs(
    headers: Mapping[str, Data] | Iterable[tuple[str, Data]] | None,
) -> Sequence[tuple[str, bytes]]:
    if not headers:
        return ()
    if isinstance(headers, Headers):
        return headers.pairs
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(_header_name(name), to_bytes(value, "header")) for name, value in pairs]


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a header as str, found {type(name).__name__}")
    return name


class Batch(NamedTuple):
    """A batch as it was read, not opened yet."""

    base: int
    size: int
    stamp_ms: int
    data: bytes

    def open(self, partition: int, start: int, limit: int | None = None) -> Iterator[Message]:
        """Its messages from the offset `start` on, at most `limit` of them. Raises `Corrupt` when
        it is not what its producer said it was."""
        base, size = self.base, self.size
        try:
            batch = open_batch(self.data, size)
        except InvalidRequest as error:
            raise Corrupt(
                f"the {size} messages from offset {base} of partition {partition} were appended so"
                f" that nobody can read them ({error}); go on at offset {base + size}, and look at"
                " their producer"
            ) from error
        first = max(start - base, 0)
        last = size if limit is None else min(size, first + limit)
        columns: Iterator[tuple[Any, ...]] = zip(
            repeat(partition),
            range(base + first, base + last),
            repeat(stamp_of(self.stamp_ms)),
            batch.keys[first:last] if batch.keys else repeat(None),
            batch.values if last - first == size else batch.values[first:last],
            _headers(batch)[first:last] if batch.header_counts else repeat(NO_HEADERS),
            strict=False,
        )
        return map(_MAKE, columns)


def to_batches(found: MessagesFound) -> Iterator[Batch]:
    """The batches of a page."""
    columns = zip(found.base_offsets, found.counts, found.timestamps_ms, found.batches, strict=True)
    return map(Batch._make, columns)


def to_messages(
    found: MessagesFound, partition: int, start: int, limit: int | None = None
) -> list[Message]:
    """The messages of a page from the offset `start` on, at most `limit` of them."""
    messages: list[Message] = []
    for batch in to_batches(found):
        left = None if limit is None else limit - len(messages)
        messages += batch.open(partition, start, left)
        if len(messages) == limit:
            break
    return messages


def _headers(batch: MessageBatch) -> list[Headers]:
    pairs = zip(batch.header_names, batch.header_values, strict=True)
    return [Headers(islice(pairs, count)) if count else NO_HEADERS for count in batch.header_counts]
