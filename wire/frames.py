"""The envelope: ZeroMQ multipart frames around a body that is not looked into.

    request   [delimiter] [prefix] [header] [routing key] [body]
    reply     [delimiter] [prefix] [reply header] [body]

    delimiter  an empty frame, as REQ sockets put first: optional, echoed in the reply
    prefix     4 bytes, the shard number, big endian. Without it the request is legacy: it goes to
               shard 0 and its reply has no prefix either

One rule: the frame that stands first (after a delimiter) is a prefix if and only if it is 4 bytes
long. A header begins with its magic and is never 4 bytes long, so the two cannot be confused.

Headers are big endian. Their first 56 (request) and 40 (reply) bytes keep their layout in every
version; a later version may only add bytes behind them. So any version can answer any other.

    request   magic 4 | version u16 | kind u16 | flags u32 | deadline ms u32 | epoch u64
              | client id 16 | sequence u64 | acked below u64
    reply     magic 4 | version u16 | kind u16 | error code u16 | flags u16 | version min u16
              | version max u16 | epoch u64 | log index u64 | sequence u64

The client id has 128 bits because clients draw it at random, without asking anybody: it must be
the same on all shards, and two clients that met in 64 bits would be taken for each other's
retries, which loses a write without a trace. It costs 8 bytes per request, not per key.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from shardnode.wire import limits
from shardnode.wire.errors import UnsupportedVersion, limit_exceeded, malformed
from shardnode.wire.kinds import FLAGS_MUST_UNDERSTAND, Flag

Frame = bytes | memoryview

VERSION = 1
VERSION_MIN = 1
VERSION_MAX = 1

REQUEST_MAGIC = b"SNRQ"
REPLY_MAGIC = b"SNRP"

PLACE_FOR_ME = 0xFFFFFFFF
"""As a request's prefix: the router finds the shard from the routing key."""

NO_SHARD = 0xFFFFFFFF
"""As a reply's prefix: no shard executed it, the router itself answered."""

NO_CLIENT = bytes(16)
"""The client id of requests outside a session: reads, and writes nobody will retry."""

_PREFIX = Struct(">I")
_REQUEST = Struct(">4sHHIIQ16sQQ")
_REPLY = Struct(">4sHHHHHHQQQ")

REQUEST_HEADER_BYTES = _REQUEST.size
REPLY_HEADER_BYTES = _REPLY.size

# int(): the complement of an IntFlag has only the bits that have names, which are none here.
_FLAGS_UNKNOWN = FLAGS_MUST_UNDERSTAND & ~int(Flag.NAMESPACE | Flag.FORWARDED)


class Header(NamedTuple):
    """A request's header, without its magic. `kind` may be one this version does not know."""

    version: int
    kind: int
    flags: int
    deadline_ms: int
    """How long the sender will wait, counted from receipt; 0 means `deadline_ms_default`."""
    epoch: int
    """The placement table the sender used; 0: none."""
    client_id: bytes
    sequence: int
    """Numbers the requests of one client, over all shards; the reply repeats it."""
    acked_below: int
    """The client has the replies of all sequences below this one; they need no longer be kept."""


class Request(NamedTuple):
    """A request as it came, its body not yet decoded."""

    prefix: int | None
    delimited: bool
    header: Header
    routing_key: bytes
    body: Frame

    def return_address(self) -> "ReturnAddress":
        """What its reply needs; holds on to none of its bytes."""
        header = self.header
        return ReturnAddress(self.delimited, self.prefix is not None, header.kind, header.sequence)


class ReturnAddress(NamedTuple):
    """What a reply repeats from its request."""

    delimited: bool
    sharded: bool
    kind: int
    sequence: int


class ReplyHeader(NamedTuple):
    """A reply's header, without its magic."""

    version: int
    kind: int
    code: int
    """0, or the number of the error that the body holds."""
    flags: int
    version_min: int
    version_max: int
    """The versions the sender speaks."""
    epoch: int
    """The placement table in force where it was executed."""
    log_index: int
    """That of a write; for a read, the index it reflects; 0 where there is none."""
    sequence: int


class Reply(NamedTuple):
    """A reply as it came, its body not yet decoded."""

    shard: int | None
    """The shard that executed it; None in a legacy reply and when no shard did."""
    delimited: bool
    header: ReplyHeader
    body: Frame


def build_request(
    kind: int,
    body: Frame,
    *,
    prefix: int | None,
    routing_key: bytes = b"",
    flags: int = 0,
    deadline_ms: int = 0,
    epoch: int = 0,
    client_id: bytes = NO_CLIENT,
    sequence: int = 0,
    acked_below: int = 0,
    delimited: bool = False,
) -> list[Frame]:
    """The frames of a request. `prefix` is a shard, `PLACE_FOR_ME`, or None for legacy."""
    assert len(client_id) == len(NO_CLIENT), "struct would pad or cut it without a word"
    header = Header(VERSION, kind, flags, deadline_ms, epoch, client_id, sequence, acked_below)
    _check_request(header, routing_key, body)
    frames: list[Frame] = [b""] if delimited else []
    if prefix is not None:
        _check_prefix(prefix)
        frames.append(_PREFIX.pack(prefix))
    frames += (_REQUEST.pack(REQUEST_MAGIC, *header), routing_key, body)
    return frames


def parse_request(frames: Sequence[Frame]) -> Request:
    """Read the envelope of a request (without any ROUTER identity) and check its bounds.

    Raises `MalformedFrame` or `LimitExceeded`; `return_address` then tells where to answer.
    """
    start = _start(frames)
    prefix, at = _read_prefix(frames, start, 3)
    header = _read_request_header(frames[at])
    routing_key, body = frames[at + 1], frames[at + 2]
    _check_request(header, routing_key, body)
    return Request(prefix, start == 1, header, bytes(routing_key), body)


def return_address(frames: Sequence[Frame]) -> ReturnAddress:
    """As much of a request's return address as can be read from frames that may be anything."""
    start = _start(frames)
    sharded = len(frames) > start and len(frames[start]) == _PREFIX.size
    at = start + sharded
    if len(frames) > at and len(frames[at]) >= REQUEST_HEADER_BYTES:
        magic, *fields = _REQUEST.unpack_from(frames[at])
        if magic == REQUEST_MAGIC:
            header = Header._make(fields)
            return ReturnAddress(start == 1, sharded, header.kind, header.sequence)
    return ReturnAddress(start == 1, sharded, 0, 0)


def build_reply(
    to: ReturnAddress,
    body: Frame,
    *,
    shard: int | None,
    code: int = 0,
    epoch: int = 0,
    log_index: int = 0,
) -> list[Frame]:
    """The frames of a reply. `shard` is the one that executed; None when none did."""
    if len(body) > limits.body_bytes_max:
        raise limit_exceeded(
            "body_bytes_max", limits.body_bytes_max, len(body), "ask for less in one request"
        )
    frames: list[Frame] = [b""] if to.delimited else []
    if to.sharded:
        frames.append(_PREFIX.pack(NO_SHARD if shard is None else shard))
    header = ReplyHeader(
        VERSION, to.kind, code, 0, VERSION_MIN, VERSION_MAX, epoch, log_index, to.sequence
    )
    frames += (_REPLY.pack(REPLY_MAGIC, *header), body)
    return frames


def parse_reply(frames: Sequence[Frame]) -> Reply:
    """Read the envelope of a reply; raises `MalformedFrame` or `LimitExceeded`."""
    start = _start(frames)
    prefix, at = _read_prefix(frames, start, 2)
    header = _read_reply_header(frames[at])
    body = frames[at + 1]
    if len(body) > limits.body_bytes_max:
        raise limit_exceeded(
            "body_bytes_max", limits.body_bytes_max, len(body), "the peer breaks the protocol"
        )
    return Reply(None if prefix == NO_SHARD else prefix, start == 1, header, body)


def _start(frames: Sequence[Frame]) -> int:
    """Where the frames after an empty delimiter begin."""
    return 1 if frames and len(frames[0]) == 0 else 0


def _read_prefix(frames: Sequence[Frame], start: int, others: int) -> tuple[int | None, int]:
    """(the prefix or None, where the header is); `others` frames must follow the prefix."""
    if len(frames) > limits.frames_max:
        raise limit_exceeded(
            "frames_max", limits.frames_max, len(frames), "send one request per message"
        )
    count = len(frames) - start
    if count == others and len(frames[start]) != _PREFIX.size:
        return None, start
    if count != others + 1:
        raise malformed(
            f"{others} frames, or {others + 1} with a shard prefix, besides an empty delimiter",
            f"{count} of {[len(frame) for frame in frames[start:]]} bytes",
            "send a whole message: prefix, header, routing key (in a request) and body",
        )
    frame = frames[start]
    if len(frame) != _PREFIX.size:
        raise malformed(
            f"a shard prefix of exactly {_PREFIX.size} bytes",
            f"{len(frame)} bytes",
            "send the shard number as 32 bits, big endian",
        )
    (prefix,) = _PREFIX.unpack(frame)
    _check_prefix(prefix)
    return prefix, start + 1


def _check_prefix(prefix: int) -> None:
    if prefix != PLACE_FOR_ME and not 0 <= prefix < limits.shards_max:
        raise malformed(
            f"a shard prefix up to {limits.shard_id_max} (shard_id_max), or {PLACE_FOR_ME:#x}",
            f"{prefix}",
            "learn the shards from a topology request",
        )


def _check_header_start(frame: Frame, magic: bytes, size: int) -> None:
    """Magic, version and length, in the order in which they tell most about a mistake."""
    if bytes(frame[:4]) != magic:
        raise malformed(
            f"a header that begins with {magic!r}",
            f"{bytes(frame[:4])!r}",
            "check that this port speaks the shardnode protocol",
        )
    if len(frame) < size:
        raise malformed(f"a header of {size} bytes", f"{len(frame)}", "send the whole header")
    version = int.from_bytes(frame[4:6], "big")
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion(
            f"expected a protocol version from {VERSION_MIN} to {VERSION_MAX}, found {version};"
            " use a client of this node's release, or one that speaks an older version",
            version_min=VERSION_MIN,
            version_max=VERSION_MAX,
        )
    if len(frame) != size:
        raise malformed(
            f"a header of {size} bytes in version {version}",
            f"{len(frame)}",
            "send nothing behind the header's last field",
        )


def _read_request_header(frame: Frame) -> Header:
    _check_header_start(frame, REQUEST_MAGIC, REQUEST_HEADER_BYTES)
    return Header._make(_REQUEST.unpack(frame)[1:])


def _read_reply_header(frame: Frame) -> ReplyHeader:
    _check_header_start(frame, REPLY_MAGIC, REPLY_HEADER_BYTES)
    return ReplyHeader._make(_REPLY.unpack(frame)[1:])


def _check_request(header: Header, routing_key: Frame, body: Frame) -> None:
    """The bounds that hold for sender and receiver alike."""
    if len(body) > limits.body_bytes_max:
        raise limit_exceeded(
            "body_bytes_max", limits.body_bytes_max, len(body), "send it as several requests"
        )
    if len(routing_key) > limits.routing_key_bytes_max:
        raise limit_exceeded(
            "routing_key_bytes_max",
            limits.routing_key_bytes_max,
            len(routing_key),
            "use one of the request's keys",
        )
    if header.deadline_ms > limits.deadline_ms_max:
        raise limit_exceeded(
            "deadline_ms_max",
            limits.deadline_ms_max,
            header.deadline_ms,
            "wait for less, and ask again",
        )
    if header.flags & _FLAGS_UNKNOWN:
        raise malformed(
            f"only flags known to version {VERSION} among the lower 16",
            f"{header.flags:#x}",
            "use a node of the client's release",
        )
    if header.acked_below > header.sequence:
        raise malformed(
            "acked_below at most the request's own sequence",
            f"acked_below {header.acked_below} with sequence {header.sequence}",
            "count a reply as received only once it is",
        )
