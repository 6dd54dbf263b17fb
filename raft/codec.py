"""Messages as bytes, for the lane between members.

The one rule: `decode` gives back a message that a member could have sent, or raises
`MalformedMessage`, whatever the bytes are; what a length claims is compared with what is there
before anything is taken. Big-endian, one struct per kind:

    magic 4 | version 1 | kind 1 | cluster 8 | source 8 | target 8 | term 8 | fields of the kind

An `Append` goes on with its entries: term 8, partition 8, partition index 8, length 4, payload.
Their indexes follow from `prev_index`, so a gap cannot be said. A `SnapshotOffer` goes on with its
membership and its handle, both of the lengths given before. Nothing may follow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from shardnode.raft.errors import MalformedMessage
from shardnode.raft.membership import Membership
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from shardnode.raft.types import Entry, SnapshotRef

MAGIC: Final = b"raft"
VERSION: Final = 1

MESSAGE_BYTES_MAX: Final = 32 << 20
"""An append holds at least one entry however large, and an entry is one request of a client."""

ENTRIES_MAX: Final = 4096
"""Per append; a sender stays below by `Options.append_entries_max`. It bounds what the objects of
a message cost beyond its bytes: about 300 bytes for each entry."""

HANDLE_BYTES_MAX: Final = 4096
"""A snapshot's handle is a name, never its contents."""

_ENVELOPE: Final = ("cluster", "source", "target", "term")
_PREFIX: Final = ">4sBB4Q"
_ENTRY: Final = struct.Struct(">3QI")
_U64_MAX: Final = (1 << 64) - 1


class _Layout(NamedTuple):
    """How one kind is laid out. `flags` are the positions of its booleans after the envelope."""

    kind: int
    type: type[Message]
    struct: struct.Struct
    fields: Callable[[Any], tuple[int, ...]]
    flags: tuple[int, ...]


def _layout(kind: int, cls: type[Message], form: str, *names: str) -> _Layout:
    flags = tuple(len(_ENVELOPE) + i for i, code in enumerate(form) if code == "B")
    whole = struct.Struct(_PREFIX + form)
    return _Layout(kind, cls, whole, attrgetter(*_ENVELOPE, *names), flags)


_LOG_END: Final = ("last_index", "last_term")
_REPLY: Final = ("accepted", "match", "rejected", "hint_index", "hint_term", "recovering")

_PLAIN: Final = (
    _layout(1, PreVote, "QQ", *_LOG_END),
    _layout(2, PreVoteReply, "B", "granted"),
    _layout(3, Vote, "QQB", *_LOG_END, "forced"),
    _layout(4, VoteReply, "B", "granted"),
    _layout(6, AppendReply, "QBQQQQB", "stamp", *_REPLY),
    _layout(7, Heartbeat, "QQQQ", "stamp", "commit", "last_index", "recovery"),
    _layout(8, HeartbeatReply, "QQ", "stamp", "recovery"),
    _layout(10, TimeoutNow, ""),
)
"""Kinds that are all fixed fields."""

_APPEND: Final = _layout(5, Append, "QQQQI", "stamp", "prev_index", "prev_term", "commit")
_OFFER: Final = _layout(9, SnapshotOffer, "QQQHH", "stamp", "snapshot.index", "snapshot.term")

_BY_TYPE: Final = {layout.type: layout for layout in _PLAIN}
_BY_KIND: Final = {layout.kind: layout for layout in (*_PLAIN, _APPEND, _OFFER)}
_HEAD_SIZE: Final = struct.calcsize(_PREFIX)


def encode(message: Message) -> bytes:
    """The bytes of a message. `MalformedMessage` when it is beyond a bound of this module."""
    try:
        layout = _BY_TYPE.get(type(message))
        if layout is not None:
            return layout.struct.pack(MAGIC, VERSION, layout.kind, *layout.fields(message))
        if isinstance(message, Append):
            return _encode_append(message)
        if isinstance(message, SnapshotOffer):
            return _encode_offer(message)
    except struct.error as error:
        raise MalformedMessage(f"a field does not fit: {error}, in {message}") from error
    raise MalformedMessage(f"expected a kind of message that peers send, found {type(message)}")


def _encode_append(message: Append) -> bytes:
    entries = message.entries
    count = len(entries)
    if count > ENTRIES_MAX:
        raise MalformedMessage(f"expected at most {ENTRIES_MAX} entries, found {count}")
    fields = _APPEND.fields(message)
    parts = [_APPEND.struct.pack(MAGIC, VERSION, _APPEND.kind, *fields, count)]
    add, pack = parts.append, _ENTRY.pack
    for index, entry in enumerate(entries, message.prev_index + 1):
        found, term, partition, partition_index, payload = entry
        if found != index:
            raise MalformedMessage(f"expected the entry at {index}, found the one at {found}")
        add(pack(term, partition, partition_index, len(payload)))
        add(payload)
    data = b"".join(parts)
    if len(data) > MESSAGE_BYTES_MAX:
        raise MalformedMessage(f"expected at most {MESSAGE_BYTES_MAX} bytes, found {len(data)}")
    return data


def _encode_offer(message: SnapshotOffer) -> bytes:
    membership, handle = message.snapshot.membership.encode(), message.snapshot.handle
    if len(handle) > HANDLE_BYTES_MAX:
        raise MalformedMessage(
            f"expected a handle of at most {HANDLE_BYTES_MAX} bytes, found {len(handle)}"
        )
    fields, lengths = _OFFER.fields(message), (len(membership), len(handle))
    head = _OFFER.struct.pack(MAGIC, VERSION, _OFFER.kind, *fields, *lengths)
    return head + membership + handle


def decode(data: bytes | memoryview) -> Message:
    """The message in these bytes, all of them; anything else is `MalformedMessage`."""
    layout = _layout_of(data)
    size, form = len(data), layout.struct
    if size < form.size:
        raise MalformedMessage(
            f"expected {form.size} bytes of {layout.type.__name__}, found {size}"
        )
    fields = form.unpack_from(data)[3:]
    if layout is _APPEND:
        return _decode_append(data, fields)
    if layout is _OFFER:
        return _decode_offer(data, fields)
    if size != form.size:
        raise _trailing(layout, form.size, size)
    if layout.flags:
        fields = _with_flags(layout, fields)
    return layout.type(*fields)


def _layout_of(data: bytes | memoryview) -> _Layout:
    size = len(data)
    if not _HEAD_SIZE <= size <= MESSAGE_BYTES_MAX:
        raise MalformedMessage(
            f"expected {_HEAD_SIZE} to {MESSAGE_BYTES_MAX} bytes of a message, found {size}"
        )
    if data[:4] != MAGIC:
        raise MalformedMessage(f"expected the magic {MAGIC!r}, found {bytes(data[:4])!r}")
    if data[4] != VERSION:
        raise MalformedMessage(f"expected version {VERSION}, found {data[4]}")
    layout = _BY_KIND.get(data[5])
    if layout is None:
        raise MalformedMessage(f"expected a kind from 1 to {len(_BY_KIND)}, found {data[5]}")
    return layout


def _with_flags(layout: _Layout, fields: tuple[int, ...]) -> tuple[int, ...]:
    values = list(fields)
    for position in layout.flags:
        if values[position] > 1:
            raise MalformedMessage(
                f"expected a flag of 0 or 1 in {layout.type.__name__}, found {values[position]}"
            )
        values[position] = values[position] == 1
    return tuple(values)


def _decode_append(data: bytes | memoryview, fields: tuple[int, ...]) -> Append:
    cluster, source, target, term, stamp, prev_index, prev_term, commit, count = fields
    room = len(data) - _APPEND.struct.size
    if count > ENTRIES_MAX or count * _ENTRY.size > room:
        raise MalformedMessage(
            f"expected at most {ENTRIES_MAX} entries and room for them, "
            f"found {count} in {room} bytes"
        )
    if prev_index + count > _U64_MAX:
        raise MalformedMessage(f"expected indexes of 64 bits, found {count} after {prev_index}")
    entries = _decode_entries(data, range(prev_index + 1, prev_index + 1 + count))
    terms = [prev_term, *[entry.term for entry in entries], term]
    if terms != sorted(terms):
        raise MalformedMessage(
            f"expected terms that grow from {prev_term} to at most {term}, found others between"
        )
    return Append(cluster, source, target, term, stamp, prev_index, prev_term, commit, entries)


def _decode_entries(data: bytes | memoryview, indexes: range) -> tuple[Entry, ...]:
    size, header, unpack = len(data), _ENTRY.size, _ENTRY.unpack_from
    rows: list[tuple[int, int, int, int, bytes]] = []
    end = _APPEND.struct.size
    for index in indexes:
        start = end + header
        if start > size:
            raise MalformedMessage(f"expected an entry at {index}, found the end of the message")
        term, partition, partition_index, length = unpack(data, end)
        end = start + length
        if end > size:
            raise MalformedMessage(
                f"expected {length} bytes of entry {index}, found {size - start}"
            )
        rows.append((index, term, partition, partition_index, bytes(data[start:end])))
    if end != size:
        raise _trailing(_APPEND, end, size)
    return tuple(map(Entry._make, rows))


def _decode_offer(data: bytes | memoryview, fields: tuple[int, ...]) -> SnapshotOffer:
    cluster, source, target, term, stamp, index, index_term, membership_size, handle_size = fields
    if handle_size > HANDLE_BYTES_MAX:
        raise MalformedMessage(
            f"expected a handle of at most {HANDLE_BYTES_MAX} bytes, found {handle_size}"
        )
    start = _OFFER.struct.size
    middle = start + membership_size
    end = middle + handle_size
    if len(data) < end:
        raise MalformedMessage(f"expected {end} bytes of SnapshotOffer, found {len(data)}")
    if len(data) > end:
        raise _trailing(_OFFER, end, len(data))
    membership = Membership.decode(bytes(data[start:middle]))
    snapshot = SnapshotRef(index, index_term, membership, bytes(data[middle:end]))
    return SnapshotOffer(cluster, source, target, term, stamp, snapshot)


def _trailing(layout: _Layout, expected: int, found: int) -> MalformedMessage:
    return MalformedMessage(
        f"expected {layout.type.__name__} to end after {expected} bytes, found {found}"
    )
