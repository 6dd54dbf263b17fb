"""Messages as bytes: every message comes back, and anything else is the one typed error."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.raft import Entry, MalformedMessage, Message, SnapshotRef
from shardnode.raft.codec import (
    ENTRIES_MAX,
    HANDLE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    decode,
    encode,
)
from shardnode.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from tests.raft.kit import append, run_of, vote
from tests.raft.test_membership import MEMBERSHIPS

U64 = st.integers(0, (1 << 64) - 1)
FLAG = st.booleans()
ENVELOPE = (U64, U64, U64, U64)
SNAPSHOTS = st.builds(
    SnapshotRef, U64, U64, MEMBERSHIPS, st.binary(max_size=40) | st.just(bytes(HANDLE_BYTES_MAX))
)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    """Indexes without a gap, and terms that grow up to the message's own, as in any log."""
    prev_term, *terms, term = sorted(draw(st.lists(U64, min_size=2, max_size=8)))
    prev_index = draw(st.integers(0, (1 << 64) - 1 - len(terms)))
    entries = tuple(
        Entry(index, term, draw(U64), draw(U64), draw(st.binary(max_size=40)))
        for index, term in enumerate(terms, prev_index + 1)
    )
    cluster, source, target, stamp, commit = (draw(U64) for _ in range(5))
    return Append(cluster, source, target, term, stamp, prev_index, prev_term, commit, entries)


BY_KIND: dict[type[Message], st.SearchStrategy[Message]] = {
    PreVote: st.builds(PreVote, *ENVELOPE, U64, U64),
    PreVoteReply: st.builds(PreVoteReply, *ENVELOPE, FLAG),
    Vote: st.builds(Vote, *ENVELOPE, U64, U64, FLAG),
    VoteReply: st.builds(VoteReply, *ENVELOPE, FLAG),
    Append: appends(),
    AppendReply: st.builds(AppendReply, *ENVELOPE, U64, FLAG, U64, U64, U64, U64, FLAG),
    Heartbeat: st.builds(Heartbeat, *ENVELOPE, U64, U64, U64, U64),
    HeartbeatReply: st.builds(HeartbeatReply, *ENVELOPE, U64, U64),
    SnapshotOffer: st.builds(SnapshotOffer, *ENVELOPE, U64, SNAPSHOTS),
    TimeoutNow: st.builds(TimeoutNow, *ENVELOPE),
}
MESSAGES = st.one_of(*BY_KIND.values())
HEADER_BYTES = len(encode(TimeoutNow(1, 2, 3, 4)))
KIND_AT = 5
COUNT_AT = len(encode(append(1, 2, 3))) - 4
SPARE_BYTES = 64 << 10
"""What decoding may cost beyond the bytes that came, whatever they claim."""


def attempt(data: bytes) -> Message | None:
    """The message, or None for the typed error; anything else fails the test."""
    try:
        return decode(data)
    except MalformedMessage:
        return None


def peak_bytes(act: Callable[[], object]) -> int:
    """The most memory held at any moment while `act` runs."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- round trip ---------------------------------------------------------------------------------


def test_every_kind_of_message_is_tried_here() -> None:
    kinds = {kind.__name__ for kind in Message.__subclasses__()}
    assert {kind.__name__ for kind in BY_KIND} == kinds


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.__name__)
def test_message_comes_back_from_its_bytes(kind: type[Message]) -> None:
    @given(BY_KIND[kind])
    def check(message: Message) -> None:
        data = encode(message)
        assert decode(data) == message
        assert decode(memoryview(data)) == message
        assert type(decode(data)) is kind

    check()


def test_flags_come_back_as_booleans() -> None:
    message = decode(encode(vote(1, 2, 3, forced=True)))
    assert isinstance(message, Vote)
    assert message.forced is True


def test_entries_do_not_keep_the_whole_message_alive() -> None:
    message = decode(memoryview(encode(append(1, 2, 9, run_of(1, 3)))))
    assert isinstance(message, Append)
    assert type(message.entries[0].payload) is bytes


# -- what cannot be said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        vote(-1, 2, 3),
        vote(1, 1 << 64, 3),
        append(1, 2, 9, run_of(5, 1)),
        append(1, 2, 9, run_of(1, *[1] * (ENTRIES_MAX + 1))),
        append(1, 2, 9, [Entry(1, 1, 1, 1, bytes(MESSAGE_BYTES_MAX))]),
        Message(1, 2, 3, 4),
    ],
    ids=["negative", "too large", "gap", "too many entries", "too many bytes", "no kind"],
)
def test_message_beyond_a_bound_is_not_encoded(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        encode(message)


@given(SNAPSHOTS)
def test_handle_beyond_its_bound_is_not_encoded(snapshot: SnapshotRef) -> None:
    snapshot = replace(snapshot, handle=bytes(HANDLE_BYTES_MAX + 1))
    with pytest.raises(MalformedMessage, match="handle"):
        encode(SnapshotOffer(1, 2, 3, 4, 5, snapshot))


# -- what comes in ------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_malformed(data: bytes) -> None:
    assert attempt(data) is None


@settings(max_examples=300)
@given(st.integers(0, 255), st.binary(max_size=300))
def test_random_fields_of_any_kind_are_a_message_or_malformed(kind: int, fields: bytes) -> None:
    data = b"raft\1" + bytes([kind]) + fields
    message = attempt(data)
    assert message is None or encode(message) == data


@given(MESSAGES, st.data())
def test_truncated_message_is_malformed(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    assert attempt(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@given(MESSAGES, st.binary(min_size=1, max_size=40))
def test_nothing_may_follow_a_message(message: Message, more: bytes) -> None:
    assert attempt(encode(message) + more) is None


@settings(max_examples=300)
@given(MESSAGES, st.data())
def test_flipped_bit_is_another_message_or_malformed(message: Message, data: st.DataObject) -> None:
    flipped = bytearray(encode(message))
    position = data.draw(st.integers(0, 8 * len(flipped) - 1))
    flipped[position // 8] ^= 1 << position % 8
    found = attempt(bytes(flipped))
    assert found != message
    assert found is None or encode(found) == flipped


@pytest.mark.parametrize("kind", [0, 11, 99, 255])
def test_unknown_kind_is_named(kind: int) -> None:
    data = bytearray(encode(vote(1, 2, 3)))
    data[KIND_AT] = kind
    with pytest.raises(MalformedMessage, match=f"found {kind}"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("position", "value", "reason"), [(0, 0, "magic"), (4, 2, "version 1, found 2")]
)
def test_other_magic_and_version_are_named(position: int, value: int, reason: str) -> None:
    data = bytearray(encode(vote(1, 2, 3)))
    data[position] = value
    with pytest.raises(MalformedMessage, match=reason):
        decode(bytes(data))


def test_flag_is_nothing_but_0_or_1() -> None:
    data = bytearray(encode(vote(1, 2, 3)))
    data[-1] = 2
    with pytest.raises(MalformedMessage, match="flag"):
        decode(bytes(data))


@pytest.mark.parametrize(("prev_term", "terms"), [(5, [4]), (1, [3, 2]), (1, [10])])
def test_terms_that_no_log_can_have_are_malformed(prev_term: int, terms: list[int]) -> None:
    message = append(1, 2, 9, run_of(2, *terms), prev=(1, prev_term))
    with pytest.raises(MalformedMessage, match="terms that grow"):
        decode(encode(message))


def test_index_beyond_64_bits_is_malformed() -> None:
    last = (1 << 64) - 1
    good = bytearray(encode(append(1, 2, 9, run_of(last, 9), prev=(last - 1, 9))))
    assert attempt(bytes(good)) is not None
    at = HEADER_BYTES + 8
    good[at : at + 8] = struct.pack(">Q", last)
    assert attempt(bytes(good)) is None


# -- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, ENTRIES_MAX, ENTRIES_MAX + 1, (1 << 32) - 1])
def test_absurd_number_of_entries_costs_nothing(count: int) -> None:
    data = bytearray(encode(append(1, 2, 9, run_of(1, 9))))
    data[COUNT_AT : COUNT_AT + 4] = struct.pack(">I", count)
    assert peak_bytes(lambda: attempt(bytes(data))) < SPARE_BYTES
    assert attempt(bytes(data)) is None


@pytest.mark.parametrize("length", [7, 1 << 20, (1 << 32) - 1])
def test_absurd_length_of_an_entry_costs_nothing(length: int) -> None:
    data = bytearray(encode(append(1, 2, 9, run_of(1, 9))))
    at = COUNT_AT + 4 + 24
    assert struct.unpack_from(">I", data, at) == (len(run_of(1, 9)[0].payload),)
    struct.pack_into(">I", data, at, length)
    assert peak_bytes(lambda: attempt(bytes(data))) < SPARE_BYTES
    assert attempt(bytes(data)) is None


@pytest.mark.parametrize("at", [-4, -2], ids=["membership", "handle"])
def test_absurd_length_in_an_offer_costs_nothing(at: int) -> None:
    fixed = HEADER_BYTES + 3 * 8 + 2 * 2
    data = bytearray(b"raft\1\x09" + bytes(fixed - 6))
    struct.pack_into(">H", data, fixed + at, 0xFFFF)
    assert peak_bytes(lambda: attempt(bytes(data))) < SPARE_BYTES
    assert attempt(bytes(data)) is None


def test_message_beyond_the_bound_is_not_looked_at() -> None:
    data = encode(append(1, 2, 9)) + bytes(MESSAGE_BYTES_MAX)
    assert peak_bytes(lambda: attempt(data)) < SPARE_BYTES


def test_largest_number_of_empty_entries_costs_a_bounded_amount() -> None:
    entries = [Entry(index, 9, 1, 1, b"") for index in range(1, ENTRIES_MAX + 1)]
    data = encode(append(1, 2, 9, entries))
    assert peak_bytes(lambda: attempt(data)) < 600 * ENTRIES_MAX
