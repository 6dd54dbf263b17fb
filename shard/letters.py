"""What workers of one shard on different nodes send each other, as bytes.

The one rule: `decode` gives a message or raises `MalformedMessage`, whatever the bytes are, and
never takes more memory than they have. Consensus has its own codec; here are the others:

    Hello   at first boot: I have nothing; do you?
    Check   the hash of my state at an index
    Carry   a request of a client that knows one node only, for the leader; and its reply
    Trims   what the master of partitions decided, for the leader: where they are to begin
    Pull    send me a piece of a snapshot
    Piece   here it is

    magic 4 | kind 1 | cluster 8 | source 8 | target 8 | fields of the kind | data of a Piece
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from shardnode.raft import MalformedMessage, Message, codec
from shardnode.shard.transfer import Piece, Pull

MAGIC = b"peer"
_HEAD = Struct(">4sBQQQ")
_PULL = Struct(">QQIB")
_PIECE = Struct(">QQB")
_HELLO = Struct(">BB")
_CHECK = Struct(">QQ")
_CARRY = Struct(">QBB")
_TRIMS = Struct(">Q")
_TRIM = Struct(">QQ")
_LENGTH = Struct(">I")

_KIND_HELLO, _KIND_PULL, _KIND_PIECE, _KIND_CHECK, _KIND_CARRY, _KIND_TRIMS = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Hello:
    """Whether the sender's directory holds anything of this group; `asks` wants one back."""

    cluster: int
    source: int
    target: int
    has_data: bool
    asks: bool


@dataclass(frozen=True, slots=True)
class Check:
    """What the sender's state hashes to after the entry at `index`."""

    cluster: int
    source: int
    target: int
    index: int
    digest: int


@dataclass(frozen=True, slots=True)
class Carry:
    """The frames of a request, or of its reply; `token` is the sender's, and repeated."""

    cluster: int
    source: int
    target: int
    token: int
    is_reply: bool
    frames: Sequence[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Trims:
    """Partitions are to begin at these offsets, as of a stamp of the sender."""

    cluster: int
    source: int
    target: int
    stamp_ms: int
    trims: Sequence[tuple[int, int]]
    """(namespace, offset)."""


Letter = Message | Pull | Piece | Hello | Check | Carry | Trims


def encode(letter: Letter) -> bytes:
    """The bytes of a letter."""
    if isinstance(letter, Message):
        return codec.encode(letter)
    envelope = letter.cluster, letter.source, letter.target
    if isinstance(letter, Hello):
        return _HEAD.pack(MAGIC, _KIND_HELLO, *envelope) + _HELLO.pack(letter.has_data, letter.asks)
    if isinstance(letter, Check):
        return _HEAD.pack(MAGIC, _KIND_CHECK, *envelope) + _CHECK.pack(letter.index, letter.digest)
    if isinstance(letter, Carry):
        return _HEAD.pack(MAGIC, _KIND_CARRY, *envelope) + _pack_carry(letter)
    if isinstance(letter, Trims):
        pairs = [_TRIMS.pack(letter.stamp_ms), *(_TRIM.pack(*each) for each in letter.trims)]
        return _HEAD.pack(MAGIC, _KIND_TRIMS, *envelope) + b"".join(pairs)
    if isinstance(letter, Pull):
        fields = _PULL.pack(letter.snapshot, letter.offset, letter.size, letter.doubt)
        return _HEAD.pack(MAGIC, _KIND_PULL, *envelope) + fields
    fields = _PIECE.pack(letter.snapshot, letter.offset, letter.gone)
    return b"".join((_HEAD.pack(MAGIC, _KIND_PIECE, *envelope), fields, letter.data))


def decode(data: bytes) -> Letter:
    """The inverse of `encode`."""
    if data[:4] != MAGIC:
        return codec.decode(data)
    if len(data) < _HEAD.size:
        raise MalformedMessage(f"expected {_HEAD.size} bytes at least, found {len(data)}")
    _, kind, cluster, source, target = _HEAD.unpack_from(data)
    rest = memoryview(data)[_HEAD.size :]
    if kind == _KIND_HELLO and len(rest) == _HELLO.size:
        has_data, asks = _HELLO.unpack(rest)
        if max(has_data, asks) <= 1:
            return Hello(cluster, source, target, bool(has_data), bool(asks))
    elif kind == _KIND_CHECK and len(rest) == _CHECK.size:
        return Check(cluster, source, target, *_CHECK.unpack(rest))
    elif kind == _KIND_CARRY and len(rest) >= _CARRY.size:
        token, is_reply, count = _CARRY.unpack_from(rest)
        if is_reply <= 1:
            frames = _split(rest[_CARRY.size :], count)
            return Carry(cluster, source, target, token, bool(is_reply), frames)
    elif kind == _KIND_TRIMS and len(rest) % _TRIM.size == _TRIMS.size:
        trims = list(_TRIM.iter_unpack(rest[_TRIMS.size :]))
        (stamp_ms,) = _TRIMS.unpack_from(rest)
        return Trims(cluster, source, target, stamp_ms, trims)
    elif kind == _KIND_PULL and len(rest) == _PULL.size:
        snapshot, offset, size, doubt = _PULL.unpack(rest)
        if doubt <= 1:
            return Pull(cluster, source, target, snapshot, offset, size, bool(doubt))
    elif kind == _KIND_PIECE and len(rest) >= _PIECE.size:
        snapshot, offset, gone = _PIECE.unpack_from(rest)
        if gone <= 1:
            piece = bytes(rest[_PIECE.size :])
            return Piece(cluster, source, target, snapshot, offset, piece, bool(gone))
    raise MalformedMessage(
        f"expected a letter between workers, found kind {kind}, {len(data)} bytes"
    )


def _pack_carry(letter: Carry) -> bytes:
    parts: list[bytes | memoryview] = [
        _CARRY.pack(letter.token, letter.is_reply, len(letter.frames))
    ]
    for frame in letter.frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    return b"".join(parts)


def _split(data: memoryview, count: int) -> list[bytes]:
    """Exactly `count` frames, each behind its length."""
    frames: list[bytes] = []
    at = 0
    for _ in range(count):
        if len(data) - at < _LENGTH.size:
            raise MalformedMessage(f"expected {count} frames, found {len(frames)}")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if len(data) - at < size:
            raise MalformedMessage(f"expected a frame of {size} bytes, found {len(data) - at}")
        frames.append(bytes(data[at : at + size]))
        at += size
    if at != len(data):
        raise MalformedMessage(f"expected {count} frames, found {len(data) - at} bytes more")
    return frames
