"""What the bytes of records and batches promise, whatever bytes they are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.storage.errors import Corrupt, TooLarge
from shardnode.storage.records import (
    BATCH_HEADER_BYTES,
    ORIGIN,
    Anchor,
    BatchHeader,
    Body,
    Record,
    batch_header,
    check_body,
    decode_batch_header,
    decode_records,
    encode_batch_header,
    encode_body,
    find_batches,
    term_runs,
)
from tests.storage.kit import chain_of, record, run

SALT, OFFSET = 0x1122334455667788, 4096
u64 = st.integers(0, 2**64 - 1)


def encode(records: list[Record], previous: Anchor = ORIGIN) -> tuple[BatchHeader, Body, bytes]:
    body = encode_body(records, previous, max_record_bytes=1 << 20, max_batch_bytes=1 << 22)
    header = batch_header(body, previous, durable_before=0, durable_end=64, commit=0)
    return header, body, encode_batch_header(header, SALT, OFFSET) + b"".join(body.buffers)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Record], Anchor]:
    previous = Anchor(draw(st.integers(0, 2**40)), draw(st.integers(0, 5)), draw(u64))
    term = previous.term
    records = []
    for number in range(draw(st.integers(1, 6))):
        term += draw(st.integers(0, 1))
        size = draw(st.sampled_from([0, 1, 100, 20_000, 70_000]))
        payload = bytes([number]) * size
        records.append(Record(previous.index + number + 1, term, draw(u64), draw(u64), payload))
    return records, previous


@given(batches())
def test_what_is_encoded_is_decoded(batch: tuple[list[Record], Anchor]) -> None:
    records, previous = batch
    written, body, data = encode(records, previous)
    header = decode_batch_header(data, 0, SALT, OFFSET)
    assert header == written
    assert header.total == len(data) == BATCH_HEADER_BYTES + body.size
    check_body(header, data[BATCH_HEADER_BYTES:])
    decoded = list(decode_records(header, memoryview(data)[BATCH_HEADER_BYTES:]))
    assert [each for each, _ in decoded] == records
    assert [chain for _, chain in decoded] == [
        chain_of(previous.chain, records[: n + 1]) for n in range(len(records))
    ]
    assert term_runs(header, data[BATCH_HEADER_BYTES:]) == body.runs
    assert (header.first, header.last) == (records[0].index, records[-1].index)


def test_chain_does_not_depend_on_how_records_were_batched() -> None:
    records = run(1, 9, size=20_000) + run(10, 12)
    whole = encode(records)[1].last
    previous = ORIGIN
    for each in records:
        previous = encode([each], previous)[1].last
    assert previous == whole == Anchor(12, 1, chain_of(0, records))


@pytest.mark.parametrize(("salt", "offset"), [(SALT, OFFSET + 1), (SALT + 1, OFFSET), (0, 0)])
def test_a_batch_is_not_believed_in_another_place(salt: int, offset: int) -> None:
    _, _, data = encode(run(1, 3))
    with pytest.raises(Corrupt):
        decode_batch_header(data, 0, salt, offset)


def test_search_finds_batches_at_any_place_but_not_their_images_in_payloads() -> None:
    _, _, image = encode(run(5, 6), previous=Anchor(4, 1, 0))
    _, body, _ = encode([Record(1, 1, 0, 1, b"?" + image * 3)])
    header = batch_header(body, ORIGIN, durable_before=0, durable_end=0, commit=0)
    data = b"\1\2\3" + encode_batch_header(header, SALT, OFFSET + 3) + b"".join(body.buffers)
    assert list(find_batches(data, SALT, OFFSET)) == [(OFFSET + 3, header)]


def test_limits_are_checked_before_anything_is_built() -> None:
    with pytest.raises(TooLarge, match=r"record 2 has 101 bytes, the limit is 100"):
        encode_body(
            [record(1), record(2, size=101)], ORIGIN, max_record_bytes=100, max_batch_bytes=1000
        )
    with pytest.raises(TooLarge, match="the batch"):
        encode_body(run(1, 20), ORIGIN, max_record_bytes=100, max_batch_bytes=1000)


@pytest.mark.parametrize(
    "records", [[record(2)], [record(1), record(3)], [record(1, term=2), record(2, term=1)]]
)
def test_gaps_and_falling_terms_are_our_own_mistakes(records: list[Record]) -> None:
    with pytest.raises(AssertionError):
        encode(records)
