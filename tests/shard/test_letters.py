"""Letters between workers: every letter comes back, and anything else is the one typed error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.raft import MalformedMessage, Message
from shardnode.shard.letters import MAGIC, Carry, Letter, Trims, decode, encode
from shardnode.shard.transfer import Piece, Pull
from shardnode.wire import limits
from tests.raft.test_codec import MESSAGES as RAFT_MESSAGES
from tests.raft.test_codec import SPARE_BYTES, peak_bytes

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: U64,
    bool: st.booleans(),
    bytes: st.binary(max_size=60),
}
NARROW: dict[tuple[object, str], st.SearchStrategy[Any]] = {
    (Pull, "size"): U32,
    (Carry, "frames"): st.lists(st.binary(max_size=20), max_size=6),
    (Trims, "trims"): st.lists(st.tuples(U64, U64), max_size=6),
}
KINDS = [kind for kind in get_args(Letter) if kind is not Message]
"""All letters but those of consensus; a new one is tried here without a word."""


def letters_of(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    names = [part.name for part in fields(kind)]
    narrow = {name: NARROW[kind, name] for name in names if (kind, name) in NARROW}
    usual = {name: BY_TYPE[hints[name]] for name in names if name not in narrow}
    return st.builds(kind, **usual, **narrow)


def sample(kind: Any, **values: Any) -> Any:
    """One letter of a kind: every number 1, every flag 1, and a little data."""
    known = {"data": b"data", "frames": [b"one", b"", b"three"], "trims": [(1, 2)], **values}
    return kind(**{part.name: known.get(part.name, 1) for part in fields(kind)})


OWN = st.one_of(*map(letters_of, KINDS))
LETTERS = OWN | RAFT_MESSAGES


def attempt(data: bytes) -> Letter | None:
    """The letter, or None for the typed error; anything else fails the test."""
    try:
        return decode(data)
    except MalformedMessage:
        return None


def peak_of(data: bytes) -> int:
    act: Callable[[], object] = lambda: attempt(data)  # noqa: E731
    return peak_bytes(act)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_letter_comes_back_from_its_bytes(kind: Any) -> None:
    @given(letters_of(kind))
    def check(letter: Letter) -> None:
        found = decode(encode(letter))
        assert type(found) is kind
        assert found == letter

    check()


@given(RAFT_MESSAGES)
def test_message_of_consensus_comes_back_too(message: Message) -> None:
    assert decode(encode(message)) == message


def test_flags_come_back_as_booleans_and_are_nothing_but_0_or_1() -> None:
    tried = 0
    for kind in KINDS:
        for name in [name for name, hint in get_type_hints(kind).items() if hint is bool]:
            yes, no = (encode(sample(kind, **{name: value})) for value in (True, False))
            assert getattr(decode(yes), name) is True
            assert getattr(decode(no), name) is False
            (at,) = (at for at in range(len(yes)) if yes[at] != no[at])
            assert attempt(yes[:at] + b"\2" + yes[at + 1 :]) is None
            tried += 1
    assert tried >= 4


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_malformed(data: bytes) -> None:
    assert attempt(data) is None


@settings(max_examples=500)
@given(st.integers(0, 255), st.binary(max_size=120))
def test_random_fields_of_any_kind_are_a_letter_or_malformed(kind: int, rest: bytes) -> None:
    data = MAGIC + bytes([kind]) + rest
    letter = attempt(data)
    assert letter is None or encode(letter) == data


@given(LETTERS, st.data())
def test_truncated_letter_is_malformed_or_a_shorter_piece(
    letter: Letter, data: st.DataObject
) -> None:
    whole = encode(letter)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    found = attempt(cut)
    if isinstance(letter, Piece) and len(whole) - len(cut) <= len(letter.data):
        assert isinstance(found, Piece)
        assert found.data == letter.data[: len(found.data)]
    else:
        assert found is None


@given(LETTERS.filter(lambda letter: not isinstance(letter, Piece)), st.binary(min_size=1))
def test_nothing_may_follow_a_letter_but_the_data_of_a_piece(letter: Letter, more: bytes) -> None:
    assert attempt(encode(letter) + more) is None


@settings(max_examples=300)
@given(LETTERS, st.data())
def test_flipped_bit_is_another_letter_or_malformed(letter: Letter, data: st.DataObject) -> None:
    flipped = bytearray(encode(letter))
    position = data.draw(st.integers(0, 8 * len(flipped) - 1))
    flipped[position // 8] ^= 1 << position % 8
    found = attempt(bytes(flipped))
    assert found != letter
    assert found is None or encode(found) == flipped


def test_mutations_of_letters_are_letters_or_malformed() -> None:
    """Bytes of several letters mixed up: cut, doubled, overwritten."""
    dice, seeds = Random(1), [encode(sample(kind)) for kind in KINDS]
    refused = 0
    for _ in range(5_000):
        one, other = bytearray(dice.choice(seeds)), dice.choice(seeds)
        at = dice.randrange(len(one))
        if dice.randrange(2):
            one[at : at + dice.randrange(9)] = other[: dice.randrange(len(other))]
        else:
            one[at:] = dice.randbytes(dice.randrange(40))
        found = attempt(bytes(one))
        refused += found is None
        assert found is None or encode(found) == one
    assert 2_500 < refused < 5_000


@pytest.mark.parametrize("kind", [*range(8), 255])
def test_large_letter_costs_no_more_than_its_own_bytes(kind: int) -> None:
    """The largest frame that a socket lets through, under every kind."""
    data = MAGIC + bytes([kind]) + bytes(limits.frame_bytes_max - 5)
    assert peak_of(data) < len(data) + SPARE_BYTES


@pytest.mark.parametrize("size", [1, 1 << 20, (1 << 32) - 1])
def test_absurd_size_of_a_pull_costs_nothing_to_read(size: int) -> None:
    data = encode(Pull(1, 2, 3, 4, 5, size))
    assert peak_of(data) < SPARE_BYTES


@pytest.mark.parametrize("claimed", [4, 1 << 20, (1 << 32) - 1])
def test_absurd_length_of_a_carried_frame_costs_nothing(claimed: int) -> None:
    whole = encode(sample(Carry, frames=[b"one"]))
    data = whole[:-7] + claimed.to_bytes(4, "big") + b"one"
    assert peak_of(data) < SPARE_BYTES
    assert attempt(data) is None
