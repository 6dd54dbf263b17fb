"""Compressed batches: what a producer sends arrives, and what a stranger sends costs little."""

from __future__ import annotations

import sys
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import limits
from shardnode.wire.batches import ZSTD_MAGIC, pack_batch, unpack_batch
from shardnode.wire.errors import InvalidRequest, LimitExceeded, MalformedFrame
from shardnode.wire.streams import MessageBatch, open_batch
from tests.wire.make_vectors import BATCH_FRAME

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHECKSUM: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
NO_SIZE: dict[int, int] = {zstd.CompressionParameter.content_size_flag: 0}
LONG = MessageBatch([b"%050d" % number for number in range(1_000)])
FRAME = pack_batch(LONG.encode(), "zstd")


def raw_frame(size: int, content: bytes) -> bytes:
    """A frame by hand that says a size and has one block as it is."""
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    return ZSTD_MAGIC + b"\xa0" + size.to_bytes(4, "little") + block + content


def test_batch_that_shrinks_is_one_frame_and_opens_to_the_same() -> None:
    assert len(FRAME) < len(LONG.encode()) / 5
    assert FRAME.startswith(ZSTD_MAGIC)
    assert open_batch(FRAME, 1_000).values == LONG.values


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_any_batch_survives_compression(values: list[bytes]) -> None:
    encoded = MessageBatch(values).encode()
    packed = pack_batch(encoded, "zstd")
    assert len(packed) <= len(encoded)
    assert unpack_batch(packed) == encoded


def test_what_does_not_shrink_and_what_nobody_compresses_stays_as_it_is() -> None:
    noise = MessageBatch([Random(1).randbytes(300)]).encode()
    assert pack_batch(noise, "zstd") is noise
    assert pack_batch(LONG.encode()) == LONG.encode()
    assert unpack_batch(noise) is noise


def test_frames_of_other_compressors_open() -> None:
    encoded = LONG.encode()
    for level in (1, 19):
        assert unpack_batch(zstd.compress(encoded, level)) == encoded
    assert unpack_batch(zstd.compress(encoded, options=CHECKSUM)) == encoded
    assert unpack_batch(raw_frame(3, b"abc")) == b"abc"


BAD = {
    "the magic alone": (ZSTD_MAGIC, "a zstd frame"),
    "cut in its header": (FRAME[:5], "a zstd frame"),
    "cut in the middle": (FRAME[: len(FRAME) // 2], "one whole zstd frame"),
    "cut at its end": (FRAME[:-1], "one whole zstd frame"),
    "something behind it": (FRAME + b"\0", "one whole zstd frame.*and 1 behind"),
    "a second frame": (FRAME + FRAME, "one whole zstd frame"),
    "less than it says": (raw_frame(4, b"abc"), "zstd frame"),
    "more than it says": (raw_frame(2, b"abc"), "zstd frame"),
    "no content size": (zstd.compress(LONG.encode(), options=NO_SIZE), "with its content size"),
    "no batch inside": (raw_frame(3, b"abc"), "MessageBatch as an array"),
    "another batch inside": (BATCH_FRAME, "a batch of 1000 messages, its count, found 2"),
    "a frame in a frame": (zstd.compress(FRAME), "MessageBatch as an array"),
    "nothing inside": (zstd.compress(b""), "the end of a body"),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_frame_is_refused(name: str) -> None:
    frame, said = BAD[name]
    with pytest.raises(MalformedFrame, match=said):
        open_batch(frame, 1_000)


def test_damaged_frame_is_an_error_by_type() -> None:
    random = Random(7)
    checked = zstd.compress(LONG.encode(), options=CHECKSUM)
    refused = 0
    for _ in range(500):
        damaged = bytearray(checked)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        try:
            open_batch(bytes(damaged), 1_000)
        except InvalidRequest:
            refused += 1
    assert refused > 490, "nearly every bit counts; a few of the header mean nothing"


def test_bomb_is_refused_by_its_size_before_anything_is_allocated() -> None:
    bomb = zstd.compress(bytes(256 << 20))
    assert len(bomb) < limits.batch_bytes_max
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded) as refused:
            open_batch(bomb, 1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.limit_name == "batch_bytes_max"


def test_bomb_that_lies_about_its_size_yields_no_more_than_it_said() -> None:
    honest = zstd.compress(bytes(64 << 20))
    size = (64 << 20).to_bytes(4, "little")
    assert size in honest[:14]
    liar = honest.replace(size, (1_000).to_bytes(4, "little"), 1)
    with pytest.raises(MalformedFrame):
        unpack_batch(liar)


def test_largest_batch_opens_and_one_byte_more_does_not() -> None:
    largest = bytes(limits.batch_bytes_max)
    assert unpack_batch(pack_batch(largest, "zstd")) == largest
    with pytest.raises(LimitExceeded):
        unpack_batch(pack_batch(largest + b"\0", "zstd"))
