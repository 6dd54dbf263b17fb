"""What `inspect` tells: rows, one for each thing, as they are read.

The one rule: a row is made of plain values — text, numbers, bytes, times, lists of these — and its
first one, `row`, says what it is about. How bytes are shown is the command's business.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from shardnode.shard import entries
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    RAFT_PARTITION,
    split_namespace,
)

Row = dict[str, Any]

NAMES = {
    "raft": RAFT_PARTITION,
    "keys": KEY_VALUE_PARTITION,
    "control": CONTROL_PARTITION,
    "groups": GROUP_PARTITION,
}
_PARTITIONS = {number: name for name, number in NAMES.items()}
_KINDS = {
    entries.EXPIRE_KEYS: "expire_keys",
    entries.EXPIRE_SESSIONS: "expire_sessions",
    entries.CONTROL_SET: "control_set",
    entries.CHECK_STATE: "check_state",
    entries.PARTITIONS_SET: "partitions_set",
    entries.STREAM_TRIM: "stream_trim",
    entries.GROUP_TOPICS: "group_topics",
    entries.EXPIRE_MEMBERS: "expire_members",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def partition_name(number: int) -> str:
    """`keys`, or the stream, topic and partition in a namespace: `2/0/7`."""
    if number in _PARTITIONS:
        return _PARTITIONS[number]
    try:
        return "/".join(map(str, split_namespace(number)))
    except InvalidRequest:
        return f"{number:#x}"


def kind_name(number: int) -> str:
    """Of an entry or a request."""
    if number in _KINDS:
        return _KINDS[number]
    try:
        return Kind(number).name.lower()
    except ValueError:
        return f"kind {number}"


def time_of(stamp_ms: int) -> datetime | int:
    """A stamp as a time; the number itself when it is none that a clock shows."""
    try:
        return _EPOCH + timedelta(milliseconds=stamp_ms)
    except OverflowError:
        return stamp_ms


def hexadecimal(number: int) -> str:
    return f"{number:016x}"
