"""What is answered: one class per reply body, and the body of an error.

One rule: a reply may grow. Newer peers add fields at its end, which the classes here skip, so a
client works with any node of its protocol version.

A class is found by its request's kind in `REPLIES`; `decode_reply` also raises the error when the
reply is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgpack

from shardnode.wire import control, cuts, errors, groups, limits, streams
from shardnode.wire.cluster import Route, StatusFound, TopologyFound
from shardnode.wire.codec import Answer, BodyReader
from shardnode.wire.errors import Detail, ShardnodeError, limit_exceeded, malformed
from shardnode.wire.fields import (
    Bool,
    Bound,
    BytesColumn,
    ChangeKinds,
    Flag,
    Int,
    IntColumn,
    Keys,
    Number,
    Numbers,
    OptionalValue,
    OptionalValues,
    Text,
    Values,
)
from shardnode.wire.frames import Frame, Reply, ReturnAddress, build_reply
from shardnode.wire.kinds import Kind


@dataclass(frozen=True, slots=True)
class Written(Answer):
    """Every key of the request now has this version, since a version is made from the request's
    log index."""

    version: Number


@dataclass(frozen=True, slots=True)
class Entry(Answer):
    """A key's value, None if it does not exist."""

    value: OptionalValue
    version: Number
    """0 if the key does not exist."""
    expires_at_ms: Number
    """Milliseconds since 1970 UTC; 0: never."""


@dataclass(frozen=True, slots=True)
class Found(Answer):
    """The values of the first keys asked for, in that order, None for those that do not exist.
    Fewer than asked for when they would fill the reply; at least one. Ask again for the rest."""

    values: OptionalValues


@dataclass(frozen=True, slots=True)
class Deleted(Answer):
    """How many of the keys existed."""

    version: Number
    deleted: Number


@dataclass(frozen=True, slots=True)
class Transacted(Answer):
    """What the branch that was taken did, operation by operation."""

    succeeded: Flag
    """Whether all comparisons held."""
    versions: Annotated[Sequence[int], IntColumn("transact_operations_max")]
    """Put: the new version. Delete and get: the version found, 0 if there was none."""
    values: Annotated[
        Sequence[bytes | None],
        BytesColumn("value_bytes_max", "transact_operations_max", optional=True),
    ]
    """Get: the value found. Otherwise None."""


@dataclass(frozen=True, slots=True)
class Page(Answer):
    """A page of a scan, as parallel columns."""

    keys: Keys
    values: Values
    """Empty when only keys were asked for."""
    versions: Numbers
    expires_at_ms: Numbers
    next: Bound
    """The `after` of the next page; None when the shard's range is finished."""

    def validate(self) -> None:
        count = len(self.keys)
        if len(self.values) not in (0, count) or not (
            len(self.versions) == len(self.expires_at_ms) == count
        ):
            raise malformed(
                f"a page of {count} keys with as many values, versions and times",
                f"{len(self.values)}, {len(self.versions)} and {len(self.expires_at_ms)}",
                "the shard that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class Changes(Answer):
    """Changes in the order of the log, as parallel columns."""

    kinds: ChangeKinds
    keys: Keys
    values: OptionalValues
    """None unless the change is a put."""
    versions: Numbers
    positions: Numbers
    """Resuming after a change's position begins with the next one."""
    next: Number
    """The position to go on after; it also passes changes that the prefix left out."""
    expires_at_ms: Numbers = ()
    """When what was put expires, 0: never; empty if nothing of it does."""

    def validate(self) -> None:
        counts = {
            len(self.kinds),
            len(self.keys),
            len(self.values),
            len(self.versions),
            len(self.positions),
            len(self.expires_at_ms) or len(self.keys),
        }
        if len(counts) > 1:
            raise malformed(
                "one kind, key, value, version and position per change",
                f"{sorted(counts)} of them",
                "the shard that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class SessionGranted(Answer):
    """The session lives at least this long from now, without a further sign of life."""

    ttl_ms: Number


@dataclass(frozen=True, slots=True)
class SessionClosed(Answer):
    """The session is gone."""


REPLIES: Mapping[Kind, type[Answer]] = {
    Kind.PUT: Written,
    Kind.PUT_MANY: Written,
    Kind.GET: Entry,
    Kind.GET_MANY: Found,
    Kind.DELETE_MANY: Deleted,
    Kind.CAS: Written,
    Kind.TRANSACT: Transacted,
    Kind.SCAN: Page,
    Kind.WATCH: Changes,
    Kind.SESSION_OPEN: SessionGranted,
    Kind.SESSION_KEEP_ALIVE: SessionGranted,
    Kind.SESSION_CLOSE: SessionClosed,
    Kind.TOPOLOGY: TopologyFound,
    Kind.EXPLAIN: Route,
    Kind.STATUS: StatusFound,
    Kind.APPEND: streams.Appended,
    Kind.APPEND_MANY: streams.Appended,
    Kind.READ: streams.MessagesFound,
    Kind.OFFSET_LOOKUP: streams.OffsetFound,
    Kind.GROUP_JOIN: groups.GroupAssigned,
    Kind.GROUP_HEARTBEAT: groups.GroupAssigned,
    Kind.GROUP_LEAVE: groups.GroupLeft,
    Kind.OFFSET_COMMIT: groups.OffsetsCommitted,
    Kind.OFFSET_FETCH: groups.OffsetsFound,
    Kind.GROUP_LIST: groups.GroupsFound,
    Kind.GROUP_DESCRIBE: groups.GroupFound,
    Kind.OFFSET_CLAIM: groups.OffsetsFound,
    Kind.GROUP_RELEASE: groups.GroupReleased,
    Kind.TOPIC_CREATE: control.TopicFound,
    Kind.TOPIC_ALTER: control.TopicFound,
    Kind.TOPIC_DELETE: control.TopicDeleted,
    Kind.TOPIC_LIST: control.TopicsFound,
    Kind.TOPIC_DESCRIBE: control.TopicFound,
    Kind.MEMBER_ADD: control.Changed,
    Kind.MEMBER_REMOVE: control.Changed,
    Kind.LEADER_TRANSFER: control.Changed,
    Kind.REBALANCE: control.Changed,
    Kind.CUT_OPEN: cuts.CutOpened,
    Kind.CUT_READ: cuts.CutPiece,
    Kind.CUT_LOG: cuts.CutPiece,
    Kind.CUT_KEEP: cuts.CutKept,
    Kind.CUT_CLOSE: cuts.CutClosed,
}


def decode_reply(reply: Reply) -> Answer:
    """What a reply says; raises the error it carries, or `MalformedFrame` if it is not one."""
    if reply.header.code:
        raise decode_error(reply.body)
    if reply.header.kind not in REPLIES:
        raise malformed(
            "a reply to a kind of request known here",
            f"kind {reply.header.kind}",
            "match replies to requests by their sequence",
        )
    return REPLIES[Kind(reply.header.kind)].decode(reply.body)


def build_error(
    to: ReturnAddress, error: ShardnodeError, *, shard: int | None, epoch: int = 0
) -> list[Frame]:
    """The frames of a reply that says what went wrong."""
    return build_reply(to, encode_error(error), shard=shard, code=error.number, epoch=epoch)


def encode_error(error: ShardnodeError) -> bytes:
    """The body of an error: [number, code, message, retryable, {detail: value}]."""
    packed: bytes = msgpack.packb(errors.to_wire(error))
    return packed


def decode_error(body: bytes | memoryview) -> ShardnodeError:
    """The error in a body (returned, not raised); raises `MalformedFrame` if it holds none."""
    reader = BodyReader(body)
    further = reader.array_size("an error") - 5
    if further < 0:
        raise malformed("5 fields of an error", f"{further + 5}", "the peer breaks the protocol")
    number = Int(low=1).take("number", reader.scalar("number"), len(body))
    code = Text("name_bytes_max").take("code", reader.scalar("code"), len(body))
    message = Text("error_message_bytes_max").take("message", reader.scalar("message"), len(body))
    retryable = Bool().take("retryable", reader.scalar("retryable"), len(body))
    details = _read_details(reader)
    reader.skip(further)
    reader.end()
    return errors.from_wire(number, code, message, retryable, details)


def _read_details(reader: BodyReader) -> dict[str, Detail]:
    count = reader.map_size("details")
    if count > limits.error_details_max:
        raise limit_exceeded(
            "error_details_max", limits.error_details_max, count, "the peer breaks the protocol"
        )
    details: dict[str, Detail] = {}
    for _ in range(count):
        name = reader.scalar("detail's name")
        value = reader.scalar("detail")
        if type(name) is not str or not isinstance(value, Detail):
            raise malformed(
                "details as str: int, str, bin, bool or nil",
                f"{type(name).__name__}: {type(value).__name__}",
                "the peer breaks the protocol",
            )
        if isinstance(value, str | bytes) and len(value) > limits.error_detail_bytes_max:
            raise limit_exceeded(
                "error_detail_bytes_max",
                limits.error_detail_bytes_max,
                len(value),
                "the peer breaks the protocol",
            )
        details[name] = value
    return details
