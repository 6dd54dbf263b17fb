"""Memberships as values and as bytes, and the history that can go back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.raft import MalformedMessage, Membership
from shardnode.raft.membership import MEMBERS_MAX, History

MEMBER_SETS = st.sets(st.integers(1, (1 << 64) - 1), max_size=9)
MEMBERSHIPS = st.builds(Membership.of, MEMBER_SETS, MEMBER_SETS, MEMBER_SETS)

A, B, C, D = (Membership.of([1, *more]) for more in ([], [2], [2, 3], [4]))


def test_equal_memberships_are_equal_bytes() -> None:
    assert Membership.of([3, 1, 2, 1]) == Membership.of([1, 2, 3])
    assert Membership.of([3, 1, 2]).encode() == Membership.of([2, 3, 1]).encode()


@given(MEMBERSHIPS)
def test_membership_comes_back_from_its_bytes(membership: Membership) -> None:
    assert Membership.decode(membership.encode()) == membership


def test_membership_is_never_taken_for_a_no_op() -> None:
    assert Membership(()).encode() != b""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        b"\1\0\0",
        b"\1\0\0" + bytes(7),
        b"\0\0\0" + bytes(8),
        bytes([MEMBERS_MAX + 1, 0, 0]) + bytes(8 * (MEMBERS_MAX + 1)),
        b"\2\0\0" + (2).to_bytes(8, "big") + (1).to_bytes(8, "big"),
        b"\2\0\0" + (1).to_bytes(8, "big") * 2,
    ],
    ids=["empty", "short", "no members", "cut", "trailing", "too many", "unsorted", "repeated"],
)
def test_other_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Membership.decode(data)


@given(st.binary(max_size=100))
def test_random_bytes_are_a_membership_or_malformed(data: bytes) -> None:
    try:
        membership = Membership.decode(data)
    except MalformedMessage:
        return
    assert membership.encode() == data


def test_change_of_voters_is_joint_and_settles() -> None:
    joint = C.toward([1, 4], [3])
    assert joint == Membership.of([1, 4], [1, 2, 3], [3])
    assert joint.joint
    assert all(joint.votes(member) for member in (1, 2, 3, 4))
    assert joint.everyone == (1, 2, 3, 4)
    assert joint.settled() == Membership.of([1, 4], (), [3])
    assert not joint.settled().votes(3)


def test_change_of_learners_alone_is_not_joint() -> None:
    assert not C.toward([3, 2, 1], [7]).joint


# -- history ------------------------------------------------------------------------------------


def test_newest_configuration_is_in_force() -> None:
    history = History(0, A)
    history.add(4, B)
    history.add(6, C)
    assert (history.index, history.current) == (6, C)


@pytest.mark.parametrize(
    ("kept", "current", "changed"),
    [(9, C, False), (6, C, False), (5, B, True), (4, B, True), (3, A, True), (0, A, True)],
)
def test_overwriting_goes_back_to_the_one_before(
    kept: int, current: Membership, changed: bool
) -> None:
    history = History(0, A)
    history.add(4, B)
    history.add(6, C)
    assert history.truncate_back(kept) is changed
    assert history.current == current
    history.add(8, D)
    assert history.current == D


def test_what_is_applied_is_never_rolled_back() -> None:
    history = History(0, A)
    history.add(4, B)
    history.add(6, C)
    history.settle(5)
    assert not history.truncate_back(6)
    assert history.truncate_back(4)
    assert (history.index, history.current) == (4, B)
    assert not history.truncate_back(4)


def test_membership_at_an_index_is_the_newest_not_above_it() -> None:
    history = History(2, A)
    history.add(4, B)
    history.add(6, C)
    assert [history.at(index) for index in (2, 3, 4, 5, 6, 99)] == [A, A, B, B, C, C]
    history.settle(5)
    assert history.at(5) == B
    with pytest.raises(AssertionError, match="no longer known"):
        history.at(3)


def test_configurations_are_added_in_log_order() -> None:
    history = History(4, A)
    with pytest.raises(AssertionError, match="log order"):
        history.add(4, B)


def test_snapshot_brings_its_membership() -> None:
    history = History(0, A)
    history.add(4, B)
    history.reset(9, C)
    assert (history.index, history.current, history.at(9)) == (9, C, C)
