"""The payload of a log entry: a fixed header in front of the request body as it came.

    stamp ms u64 | kind u16 | flags u16 | client id 16 | sequence u64 | acked below u64 | body

The one rule: a payload is packed once, by the leader, and every replica reads the same bytes.
Nothing here looks into the body; `shard.keyvalue` and `shard.control` do.

A reply of the state machine is the number of an error in two bytes (0: none) and the body of the
reply or of that error.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shardnode.wire.errors import InvalidRequest, ShardnodeError
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.replies import encode_error

INTERNAL_KINDS = 0x7F00
"""Kinds above are commands of the leader; no client may send one."""

EXPIRE_KEYS = 0x7F01
"""Body: msgpack [keys, versions]. Deletes each key that still has that version."""

EXPIRE_SESSIONS = 0x7F02
"""Body: msgpack [silent_since_ms, forget_before_ms]."""

CONTROL_SET = 0x7F10
"""Body: msgpack [table bytes, {node id: router's endpoint}, version]."""

CHECK_STATE = 0x7F11
"""No body. Every replica notes its digest at this index, and they compare them."""

RESTORED = 0x7F12
"""No body. From here on it is another cluster, of one node: the nodes of before are not wanted."""

PARTITIONS_SET = 0x7F20
"""Body: msgpack [version of the topics, [[namespace, settings], …], whether these are the last].
For the control partition: stream partitions of this shard exist from here on; with nil, no more."""

STREAM_TRIM = 0x7F21
"""Body: msgpack first offset. For a stream partition: what is below it is no more."""

GROUP_TOPICS = 0x7F30
"""Body: msgpack [version of the topics, [[topic, [stream, topic, partitions]], …]]: where those
that groups of this shard read have their partitions."""

EXPIRE_MEMBERS = 0x7F31
"""Body: msgpack [now_ms, since_ms]. Members of groups that were silent for their time are given up;
a leader has listened since then."""

_HEADER = Struct(">QHH16sQQ")
HEADER_BYTES = _HEADER.size

_CODE = Struct(">H")
OK = _CODE.pack(0)


class Command(NamedTuple):
    """A decoded payload; `body` is a view of its bytes."""

    stamp_ms: int
    kind: int
    flags: int
    client_id: bytes
    sequence: int
    acked_below: int
    body: bytes | memoryview


def encode_entry(
    stamp_ms: int,
    kind: int,
    body: bytes | memoryview,
    *,
    flags: int = 0,
    client_id: bytes = NO_CLIENT,
    sequence: int = 0,
    acked_below: int = 0,
) -> bytes:
    """The payload to propose. Of the flags only the lower 16, which have a meaning, are kept."""
    assert len(client_id) == len(NO_CLIENT), "struct would pad or cut it without a word"
    header = _HEADER.pack(stamp_ms, kind, flags & 0xFFFF, client_id, sequence, acked_below)
    return b"".join((header, body))


def decode_entry(payload: bytes) -> Command:
    """The inverse of `encode_entry`; raises `InvalidRequest` if it is too short to be one."""
    if len(payload) < HEADER_BYTES:
        raise InvalidRequest(
            f"expected an entry of at least {HEADER_BYTES} bytes, found {len(payload)}"
        )
    header = _HEADER.unpack_from(payload)
    return Command._make((*header, memoryview(payload)[HEADER_BYTES:]))


def kind_of(payload: bytes) -> int:
    """The kind of an entry, without a look at the rest."""
    return int.from_bytes(payload[8:10], "big")


def stamp_of(payload: bytes) -> int:
    """The stamp of an entry, without a look at the rest; 0 for one that has none."""
    return int.from_bytes(payload[:8], "big") if len(payload) >= HEADER_BYTES else 0


def accept(body: bytes) -> bytes:
    """The reply of a command that worked."""
    return OK + body


def refuse(error: ShardnodeError) -> bytes:
    """The reply of a command that did not."""
    return _CODE.pack(error.number) + encode_error(error)


def split_reply(reply: bytes) -> tuple[int, bytes]:
    """(error number, body) of a reply; the number is 0 when there is no error."""
    return _CODE.unpack_from(reply)[0], reply[_CODE.size :]
