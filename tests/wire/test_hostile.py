"""Whatever a stranger sends: an error by type or a value, never another exception, never more
memory than a few times what was sent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.cursors import ScanCursor, WatchCursor
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.frames import Frame, build_reply, parse_reply, parse_request, return_address
from shardnode.wire.placement import PlacementTable, initial_table
from shardnode.wire.replies import REPLIES, decode_error, encode_error
from shardnode.wire.requests import REQUESTS
from shardnode.wire.streams import MessageBatch
from tests.wire.make_vectors import BATCH, ERRORS, EXAMPLES, frame_vectors

Decoder = Callable[[bytes], object]

CLASSES: set[type[Body]] = {
    *REQUESTS.values(),
    *REPLIES.values(),
    MessageBatch,
    ScanCursor,
    WatchCursor,
}
DECODERS: dict[str, Decoder] = {
    **{cls.__name__: cls.decode for cls in sorted(CLASSES, key=lambda cls: cls.__name__)},
    "PlacementTable": PlacementTable.decode,
    "decode_error": decode_error,
}
SEEDS: list[bytes] = [
    ScanCursor(3, [0, 2], [b"user:1", b""]).encode(),
    WatchCursor(3, [0, 1], [70, 0]).encode(),
    BATCH.encode(),
    *(body.encode() for pair in EXAMPLES.values() for body in pair),
    *(encode_error(error) for error in ERRORS),
    initial_table(7).encode(),
]
MESSAGES: list[list[bytes]] = [
    [bytes.fromhex(frame) for frame in vector["frames"]]
    for vector in (*frame_vectors()["requests"], *frame_vectors()["replies"])
]

MULTIPLE = 3
"""The unpacker's copy, the values taken out of it, and room for one of them again."""
CONSTANT_BYTES = 2 << 20
"""A column of small values that turn out to be of the wrong type."""


def refused(decode: Callable[[Any], object], data: object) -> bool:
    """Whether it was refused; any other exception than an `InvalidRequest` fails the test."""
    try:
        decode(data)
    except InvalidRequest as error:
        said = str(error)
    else:
        return False
    assert len(said) < 10_000, "a message does not repeat what was sent"
    return True


def peak_of(decode: Callable[[Any], object], data: object) -> int:
    """How many bytes were allocated at most."""
    tracemalloc.start()
    refused(decode, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def mutated(dice: Random, seed: bytes) -> bytes:
    """A few bytes changed, cut off, repeated or put in."""
    data = bytearray(seed)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        action = dice.randrange(5)
        if action == 0:
            data[at : at + 1] = dice.randbytes(1)
        elif action == 1:
            del data[at:]
        elif action == 2:
            data[at:at] = data[: dice.randrange(len(data) + 1)]
        elif action == 3:
            # What opens something large: array, map, bin, str, ext, of 16 or 32 bits.
            data[at : at + 1] = dice.choice(b"\xdc\xdd\xde\xdf\xc5\xc6\xda\xdb\xc8\xc9").to_bytes()
        else:
            data[at:at] = dice.choice([b"\xff" * 4, b"\x91" * 50, b"\x90" * 50, b"\xc1", b"\x80"])
    return bytes(data)


@given(st.binary(max_size=300))
def test_garbage_is_refused_by_every_decoder(garbage: bytes) -> None:
    for decode in DECODERS.values():
        refused(decode, garbage)


@pytest.mark.parametrize("name", DECODERS)
def test_mutations_of_valid_bodies_are_refused_or_decoded(name: str) -> None:
    dice = Random(name)
    bodies = [mutated(dice, dice.choice(SEEDS)) for _ in range(1_500)]
    assert sum(refused(DECODERS[name], body) for body in bodies) > len(bodies) // 2


@pytest.mark.parametrize("name", DECODERS)
def test_body_cut_off_anywhere_is_refused(name: str) -> None:
    decode = DECODERS[name]
    own = [seed for seed in SEEDS if not refused(decode, seed)]
    assert own
    assert [
        seed[:end] for seed in own for end in range(len(seed)) if not refused(decode, seed[:end])
    ] == []


def parsers_that_refuse(message: Sequence[Frame]) -> int:
    """Of the two; finding where to answer never fails."""
    assert build_reply(return_address(message), b"", shard=0)
    return refused(parse_request, message) + refused(parse_reply, message)


@given(st.lists(st.binary(max_size=80), max_size=7))
def test_garbage_frames_are_refused(message: list[bytes]) -> None:
    assert parsers_that_refuse(message) == 2


def test_mutations_of_valid_frames_are_refused_or_parsed() -> None:
    dice = Random(1)
    refusals = 0
    for _ in range(5_000):
        message = list(dice.choice(MESSAGES))
        action = dice.randrange(4)
        at = dice.randrange(len(message))
        if action == 0:
            del message[at]
        elif action == 1:
            message.insert(at, dice.choice(dice.choice(MESSAGES)))
        else:
            message[at] = mutated(dice, message[at])
        refusals += parsers_that_refuse(message)
    assert refusals > 5_000


def hostile_bodies(size: int) -> dict[str, bytes]:
    """Bodies of about `size` bytes, each an attempt to make a decoder allocate far more."""
    fields = {n: bytes([0x90 | n]) for n in range(16)}
    return {
        "arrays that declare 4 Gi elements, nested": b"\xdd\xff\xff\xff\xff" * (size // 5),
        "arrays that declare what a batch may have, nested": b"\xdc\x27\x10" * (size // 3),
        "maps that declare 4 Gi pairs, nested": b"\xdf\xff\xff\xff\xff" * (size // 5),
        "arrays of one, nested": b"\x91" * size,
        "maps of one, nested": b"\x81" * size,
        **{
            f"{n} fields, each as many {what} as a body has bytes": head
            + b"".join(b"\xdd" + (size // n).to_bytes(4) + item * (size // n) for _ in range(n))
            for n, head in fields.items()
            if n in (1, 4, 11)
            for what, item in {
                "empty arrays": b"\x90",
                "negatives": b"\xe0",
                "nils": b"\xc0",
            }.items()
        },
        **{
            f"{n} fields, each a full batch of {what}": head
            + b"".join(b"\xdc\x27\x10" + item * 10_000 for _ in range(n))
            for n, head in fields.items()
            if n in (1, 2, 3, 4, 5, 6, 11)
            for what, item in {
                "empty arrays": b"\x90",
                "empty maps": b"\x80",
                "negatives": b"\xe0",
                "large numbers": b"\xcf" + b"\xff" * 8,
                "short strings": b"\xa2ab",
                "short bytes": b"\xc4\x02ab",
                "empty extensions": b"\xc7\x00\x01",
            }.items()
        },
        "bytes that declare 4 GiB": fields[4] + b"\xc6\xff\xff\xff\xff" + bytes(size),
        "extension that declares 4 GiB": fields[4] + b"\xc9\xff\xff\xff\xff\x01" + bytes(size),
        "one long text": fields[4] + b"\xdb" + size.to_bytes(4) + b"a" * size,
        "one long text with a wide letter": fields[4]
        + b"\xdb"
        + (size + 4).to_bytes(4)
        + "😀".encode()
        + b"a" * size,
        "long text that is not UTF-8": fields[4] + b"\xdb" + size.to_bytes(4) + b"\xff" * size,
        "one long value": fields[4] + b"\xc6" + size.to_bytes(4) + bytes(size),
        "many fields to skip": b"\xdd" + size.to_bytes(4) + b"\xc0" * size,
        "deep field to skip": b"\x92\x01" + b"\x91" * size,
        "error with many details": b"\x95\x01\xa0\xa0\xc2\xdf\xff\xff\xff\xff" + b"\xa1a\x01" * 99,
        "table of one endless run": b"\x94\x01\x01\x91\xcf" + b"\xff" * 8 + b"\xc4\x01\x00",
        "table of many endless runs": b"\x94\x01\x01\xdc\x40\x00"
        + b"\xcd\x40\x00" * 16384
        + b"\xc5\x40\x00"
        + bytes(16384),
    }


HOSTILE = hostile_bodies(1 << 18)


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_stays_within_a_small_multiple_of_what_was_sent(name: str) -> None:
    body = HOSTILE[name]
    allowed = MULTIPLE * len(body) + CONSTANT_BYTES
    peaks = {decoder: peak_of(decode, body) for decoder, decode in DECODERS.items()}
    assert {decoder: peak for decoder, peak in peaks.items() if peak > allowed} == {}


def test_unpacking_without_the_reader_would_not_stay_within_it() -> None:
    """The measure can tell: the same limit on arrays, without opening them only where expected."""
    body = HOSTILE["arrays that declare what a batch may have, nested"]

    def unpack(data: bytes) -> None:
        with pytest.raises(msgpack.StackError):
            msgpack.unpackb(data, max_array_len=limits.batch_keys_max)

    assert peak_of(unpack, body) > 10 * (MULTIPLE * len(body) + CONSTANT_BYTES)


@pytest.mark.parametrize("at", range(4))
def test_frames_are_not_copied_to_be_refused(at: int) -> None:
    message: list[bytes] = list(MESSAGES[0])
    message[at] = bytes(limits.body_bytes_max + 1)
    assert refused(parse_request, message)
    assert peak_of(parse_request, message) < 100_000
