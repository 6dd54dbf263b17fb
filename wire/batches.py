"""Batches of messages as bytes: plain, or compressed by their producer.

One rule: the first bytes tell which. A batch is an encoded `MessageBatch`, or exactly one zstd
frame of it; a `MessageBatch` begins with 0x95, so it is never taken for a frame. The frame names
the size of what is in it, so nobody allocates more than a batch may have, whatever a stranger sent.

A shard looks at how a batch begins, when it arrives, and stores and sends it as it came. So its
work is the same for a thousand messages as for one, and whoever reads a batch opens it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Literal

from shardnode.wire import limits
from shardnode.wire.errors import limit_exceeded, malformed

if TYPE_CHECKING:
    from collections.abc import Callable

Compression = Literal["zstd"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_BATCH = 0x95  # an array of five columns, of which the messages are the first
_HEAD_BYTES = 6
_FRAME_HEAD_BYTES = 18
"""As long as the header of a zstd frame can be."""

_WINDOW_LOG_MAX = limits.batch_bytes_max.bit_length() - 1
"""No window need be larger than the largest batch."""


def pack_batch(encoded: bytes, compression: Compression | None = None) -> bytes:
    """The bytes to append of an encoded `MessageBatch`. What a frame does not make smaller stays
    as it is."""
    if compression is None:
        return encoded
    compress, _, _ = _codec()
    frame = compress(encoded)
    return frame if len(frame) < len(encoded) else encoded


def look_at(data: bytes | memoryview, count: int) -> None:
    """Raise an `InvalidRequest` unless this begins as a batch of so many messages does."""
    head = bytes(data[:_HEAD_BYTES])
    if head.startswith(ZSTD_MAGIC):
        frame_size(bytes(data[:_FRAME_HEAD_BYTES]))
        return
    found = _messages(head)
    if found != count:
        raise malformed(
            f"a batch of {count} messages, its count",
            "something else" if found is None else f"one of {found}",
            "send a MessageBatch, or one zstd frame of it, and count its messages",
        )


def frame_size(head: bytes) -> int:
    """The size of what is in a zstd frame, by its first bytes; raises an `InvalidRequest`."""
    _, _, size_of = _codec()
    return size_of(head)


def _messages(head: bytes) -> int | None:
    """How many messages an encoded `MessageBatch` says it has; None if it is none."""
    if len(head) < 2 or head[0] != _BATCH:
        return None
    first = head[1]
    if first >> 4 == 0x9:
        return first & 0xF
    size = {0xDC: 2, 0xDD: 4}.get(first)
    return None if size is None else int.from_bytes(head[2 : 2 + size], "big")


def unpack_batch(data: bytes) -> bytes:
    """The encoded `MessageBatch` in the bytes of a batch; raises an `InvalidRequest`."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    _, decompress, _ = _codec()
    return decompress(data)


@cache
def _codec() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes], Callable[[bytes], int]]:
    """Compress, decompress and look at the size, loaded when they are first needed."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}

    def size_of(frame: bytes) -> int:
        try:
            size = zstd.get_frame_info(frame).decompressed_size
        except zstd.ZstdError as problem:
            raise malformed("a zstd frame", f"{problem}", "compress the batch anew") from problem
        if size is None:
            raise malformed("a zstd frame with its content size", "none", "write it into it")
        if size > limits.batch_bytes_max:
            raise limit_exceeded(
                "batch_bytes_max", limits.batch_bytes_max, size, "send smaller batches"
            )
        return int(size)

    def decompress(frame: bytes) -> bytes:
        size = size_of(frame)
        try:
            decompressor = zstd.ZstdDecompressor(options=options)
            # One byte more than there should be: else the end of the frame may stay unread.
            data = decompressor.decompress(frame, max_length=size + 1)
        except zstd.ZstdError as problem:
            raise malformed("a zstd frame", f"{problem}", "compress the batch anew") from problem
        extra = len(decompressor.unused_data)
        if not decompressor.eof or extra or len(data) != size:
            raise malformed(
                f"one whole zstd frame of {size} bytes",
                f"{len(data)} bytes of it, and {extra} behind it",
                "compress the batch anew",
            )
        return data

    return zstd.compress, decompress, size_of
