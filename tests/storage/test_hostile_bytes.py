"""Every decoder of this room, against bytes that nobody wrote: typed errors, bounded memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
import xxhash

from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.manifest import SnapshotFile, SnapshotMeta
from shardnode.storage.records import (
    BATCH_HEADER_BYTES,
    ORIGIN,
    Anchor,
    BatchHeader,
    batch_header,
    check_body,
    decode_batch_header,
    decode_records,
    encode_batch_header,
    encode_body,
    find_batches,
    term_runs,
)
from shardnode.storage.segment import (
    SegmentHeader,
    SparseIndex,
    decode_segment_header,
    decode_sidecar,
    encode_segment_header,
    encode_sidecar,
)
from shardnode.storage.superblock import SuperblockState, decode_superblock, encode_superblock
from tests.storage.kit import (
    SHARD,
    contents,
    disk,
    disk_with,
    filled,
    open_log,
    run,
    segments,
    tree,
)

TRIES = 5

SEGMENT = SegmentHeader(7, 99, Anchor(5, 2, 3), reset=False)
BODY = encode_body(
    [*run(6, 8, term=2), *run(9, 12, term=3)],
    Anchor(5, 2, 3),
    max_record_bytes=1 << 20,
    max_batch_bytes=1 << 20,
)
HEADER = batch_header(BODY, Anchor(5, 2, 3), durable_before=5, durable_end=64, commit=4)


class Decoder(NamedTuple):
    name: str
    sample: bytes
    decode: Callable[[bytes], object]
    checksummed: bool = True


def decode_batch(data: bytes) -> object:
    header = decode_batch_header(data, 0, 99, 64)
    body = memoryview(data)[BATCH_HEADER_BYTES : header.total]
    check_body(header, body)
    return header, term_runs(header, body), list(decode_records(header, body))


def decode_unchecked_records(data: bytes) -> object:
    """Even a body that was not checked must not lead astray."""
    return term_runs(HEADER, data), list(decode_records(HEADER, memoryview(data)))


def sidecar() -> bytes:
    index = SparseIndex()
    for number in range(1, 20):
        index.add(number * 5, number * 640)
    return encode_sidecar(SEGMENT, index)


META = SnapshotMeta(9, 2, 77, b"\1\2", (SnapshotFile("keys", 100, 5), SnapshotFile("s", 0, 6)))
DECODERS = [
    Decoder("batch", encode_batch_header(HEADER, 99, 64) + b"".join(BODY.buffers), decode_batch),
    Decoder("records", b"".join(BODY.buffers), decode_unchecked_records, checksummed=False),
    Decoder("segment header", encode_segment_header(SEGMENT), decode_segment_header),
    Decoder("sidecar", sidecar(), lambda data: decode_sidecar(data, SEGMENT)),
    Decoder(
        "superblock",
        encode_superblock(SuperblockState(1, 2, 3, 4, 5, 6, True), 7),
        decode_superblock,
    ),
    Decoder("manifest", META.encode(), SnapshotMeta.decode),
]


def spoiled(sample: bytes, rng: random.Random) -> bytes:
    """One of the ways in which bytes go wrong."""
    data = bytearray(sample)
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(2 * len(data)))
    if kind == 1:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 2:
        return bytes(data) + rng.randbytes(rng.randrange(1, 40))
    at = rng.randrange(len(data))
    if kind == 3:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 4:
        huge = rng.choice([b"\xff" * 4, b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 62)])
        data[at : at + len(huge)] = huge
    else:
        del data[at : at + rng.randrange(1, 30)]
    return bytes(data)


def least_peak(work: Callable[[], object], most: int) -> int:
    """What a call takes, at its height. All threads are counted together, and one that earlier
    tests have left (it reads what a shared node says) takes 64 KiB whenever it likes. That only
    adds, so what is too much is measured again and the least of it counts."""
    least = most
    for _ in range(TRIES):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        least = min(least, tracemalloc.get_traced_memory()[1] - before)
        if least < most:
            break
    return least


def kept_here() -> int:
    """What is still held of all that lines of this room and of its tests have allocated."""
    ours = tracemalloc.Filter(True, "*/storage/*")
    traces = tracemalloc.take_snapshot().filter_traces([ours])
    return sum(each.size for each in traces.statistics("filename"))


def outcome(decoder: Decoder, data: bytes, written: object) -> str:
    """What decodes all the same, such as bytes after the end, must mean what was written."""
    try:
        return "same" if decoder.decode(data) == written else "other"
    except Corrupt as error:
        return "refused" if str(error) else "refused without a word"


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_spoiled_bytes_give_a_typed_error_and_never_much_memory(decoder: Decoder) -> None:
    written = decoder.decode(decoder.sample)
    rng = random.Random(decoder.name)
    outcomes: Counter[str] = Counter()
    most = 20_000 + 40 * len(decoder.sample)
    tracemalloc.start()
    try:
        for _ in range(1500):
            data = spoiled(decoder.sample, rng)
            found = [""]

            def work() -> None:
                found[0] = outcome(decoder, data, written)  # noqa: B023 (it is done at once)

            assert least_peak(work, most) < most, data
            outcomes[found[0]] += 1
        assert kept_here() < most
    finally:
        tracemalloc.stop()
    assert outcomes["refused"] > 500
    assert not outcomes["refused without a word"]
    if decoder.checksummed:
        assert outcomes["other"] == 0


@pytest.mark.parametrize("which", [0, -1], ids=["sealed segment", "last segment"])
def test_a_log_of_spoiled_bytes_opens_in_part_or_is_refused(which: int) -> None:
    """The decoders together: no segment, however spoiled, yields anything that was not written."""
    sound = disk()
    filled(sound, 30)
    path = segments(sound)[which]
    image = tree(sound, SHARD)
    rng = random.Random(which)
    outcomes = {"refused": 0, "opened": 0}
    peak = 0
    for number in range(300):
        files = disk_with({**image, path: spoiled(image[path], rng)}, seed=number)
        tracemalloc.start()
        try:
            log = open_log(files)
        except LogDamaged:
            outcomes["refused"] += 1
        else:
            outcomes["opened"] += 1
            assert contents(log) == run(1, log.last_index)
            assert which == -1 or log.last_index == 30
        finally:
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert min(outcomes.values()) > 30
    assert peak < 200_000


@pytest.mark.parametrize("total", [0, 103, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("count", [0, 1, (1 << 32) - 1])
def test_absurd_lengths_under_a_right_checksum_are_refused(total: int, count: int) -> None:
    header = HEADER._replace(total=total, records=count)
    with pytest.raises(Corrupt, match="makes no sense"):
        decode_batch_header(encode_batch_header(header, 99, 64), 0, 99, 64)


def test_absurd_record_lengths_are_refused() -> None:
    one = encode_body(run(1, 1), ORIGIN, max_record_bytes=100, max_batch_bytes=1000)
    header = batch_header(one, ORIGIN, durable_before=0, durable_end=0, commit=0)
    body = b"\xff\xff\xff\xff" + b"".join(one.buffers)[4:]
    with pytest.raises(Corrupt, match="contradicts its batch"):
        list(decode_records(header, body))
    with pytest.raises(Corrupt, match="bytes follow"):
        list(decode_records(header, b"".join(one.buffers) + b"\0"))


def test_a_search_through_nothing_but_magic_ends() -> None:
    data = encode_batch_header(HEADER, 1, 1)[:8] * 5000
    assert list(find_batches(data, 99, 0)) == []


def checksummed(text: str) -> bytes:
    return f"{text}\n{xxhash.xxh3_64_hexdigest(text.encode())}\n".encode()


GOOD_TEXT = META.encode().decode().rpartition("\n}")[0] + "\n}"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{}",
        "7",
        "null",
        GOOD_TEXT.replace('"keys"', '"../keys"'),
        GOOD_TEXT.replace('"keys"', '"manifest"'),
        GOOD_TEXT.replace('"keys"', '"s"'),
        GOOD_TEXT.replace('"keys"', "5"),
        GOOD_TEXT.replace('"keys"', '"' + "k" * 300 + '"'),
        GOOD_TEXT.replace('"size": 100', '"size": -1'),
        GOOD_TEXT.replace('"size": 100', '"size": true'),
        GOOD_TEXT.replace('"size": 100', '"size": 1e300'),
        GOOD_TEXT.replace('"size": 100', '"size": ' + "9" * 5000),
        GOOD_TEXT.replace('"format": 1', '"format": 2'),
        GOOD_TEXT.replace('"index": 9', '"index":  9'),
    ],
    ids=range(15),
)
def test_a_hostile_manifest_is_refused_although_its_checksum_is_right(text: str) -> None:
    assert SnapshotMeta.decode(checksummed(GOOD_TEXT)) == META
    assert text != GOOD_TEXT
    with pytest.raises(Corrupt, match="not a sound manifest"):
        SnapshotMeta.decode(checksummed(text))


def test_a_manifest_has_one_spelling_only() -> None:
    with pytest.raises(Corrupt, match="another spelling"):
        SnapshotMeta.decode(META.encode().removesuffix(b"\n"))


def test_header_fields_are_all_covered_by_the_checksum() -> None:
    for field in BatchHeader._fields:
        changed = HEADER._replace(**{field: getattr(HEADER, field) + 1})
        stored = encode_batch_header(HEADER, 99, 64)
        forged = encode_batch_header(changed, 99, 64)[:-8] + stored[-8:]
        with pytest.raises(Corrupt, match="checksum"):
            decode_batch_header(forged, 0, 99, 64)
