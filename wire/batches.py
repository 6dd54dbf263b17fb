"""Batches of messages as bytes: plain, or compressed by their producer.

One rule: the first bytes tell which. A batch is an encoded `MessageBatch`, or exactly one zstd
frame of it; a `MessageBatch` begins with 0x95, so it is never taken for a frame. The frame names
the size of what is in it, so nobody allocates more than a batch may have, whatever a stranger sent.

Shards look into a batch once, when it arrives, and store and send it as it came.
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

_WINDOW_LOG_MAX = limits.batch_bytes_max.bit_length() - 1
"""No window need be larger than the largest batch."""


def pack_batch(encoded: bytes, compression: Compression | None = None) -> bytes:
    """The bytes to append of an encoded `MessageBatch`. What a frame does not make smaller stays
    as it is."""
    if compression is None:
        return encoded
    compress, _ = _codec()
    frame = compress(encoded)
    return frame if len(frame) < len(encoded) else encoded


def unpack_batch(data: bytes) -> bytes:
    """The encoded `MessageBatch` in the bytes of a batch; raises an `InvalidRequest`."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    _, decompress = _codec()
    return decompress(data)


@cache
def _codec() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Compress and decompress, loaded when they are first needed."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}

    def decompress(frame: bytes) -> bytes:
        try:
            size = zstd.get_frame_info(frame).decompressed_size
            if size is None:
                raise malformed("a zstd frame with its content size", "none", "write it into it")
            if size > limits.batch_bytes_max:
                raise limit_exceeded(
                    "batch_bytes_max", limits.batch_bytes_max, size, "send smaller batches"
                )
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

    return zstd.compress, decompress
