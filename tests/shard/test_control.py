"""The wish of the control plane: every replica and every repeat ends with the same one."""

from __future__ import annotations

import pytest

from shardnode.shard.control import Control, Wish, encode_control
from shardnode.shard.entries import CHECK_STATE, CONTROL_SET, encode_entry, split_reply
from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.control import Changed, MemberAdd, MemberRemove, Rebalance
from shardnode.wire.errors import Conflict, InvalidRequest
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import initial_table


def founded() -> Control:
    control = Control()
    body = encode_control(initial_table(2), Wish(1, {1: "tcp://a:1", 2: "tcp://b:1"}))
    control.apply([encode_entry(1, CONTROL_SET, body)])
    return control


def ask(control: Control, kind: int, body: Body | bytes) -> tuple[int, bytes]:
    packed = body if isinstance(body, bytes) else body.encode()
    [reply] = control.apply([encode_entry(1, kind, packed)])
    return split_reply(reply)


def version(control: Control, kind: int, body: Body) -> int:
    code, packed = ask(control, kind, body)
    assert code == 0
    return Changed.decode(packed).version


def test_member_is_added_moved_and_removed_once_however_often_it_is_asked_for() -> None:
    control = founded()
    for _ in range(3):
        assert version(control, Kind.MEMBER_ADD, MemberAdd(3, "tcp://c:1")) == 2
    assert version(control, Kind.MEMBER_ADD, MemberAdd(3, "tcp://d:1")) == 3
    assert control.wish.members == {1: "tcp://a:1", 2: "tcp://b:1", 3: "tcp://d:1"}
    for _ in range(3):
        assert version(control, Kind.MEMBER_REMOVE, MemberRemove(1)) == 4
    assert control.wish == Wish(4, {2: "tcp://b:1", 3: "tcp://d:1"})
    assert version(control, Kind.REBALANCE, Rebalance()) == 5
    assert control.wish.members == {2: "tcp://b:1", 3: "tcp://d:1"}


def test_what_would_leave_nobody_or_two_in_one_place_is_refused() -> None:
    control = founded()
    assert ask(control, Kind.MEMBER_ADD, MemberAdd(9, "tcp://b:1"))[0] == Conflict.number
    version(control, Kind.MEMBER_REMOVE, MemberRemove(1))
    assert ask(control, Kind.MEMBER_REMOVE, MemberRemove(2))[0] == Conflict.number
    assert control.wish == Wish(2, {2: "tcp://b:1"})
    for node in range(3, limits.nodes_max + 2):
        ask(control, Kind.MEMBER_ADD, MemberAdd(node, f"tcp://n{node}:1"))
    assert len(control.wish.members) == limits.nodes_max
    last = MemberAdd(limits.nodes_max + 9, "tcp://x:1")
    assert ask(control, Kind.MEMBER_ADD, last)[0] == Conflict.number


@pytest.mark.parametrize("kind", [Kind.MEMBER_ADD, Kind.MEMBER_REMOVE, CONTROL_SET, Kind.PUT])
def test_body_that_means_nothing_is_refused_and_changes_nothing(kind: int) -> None:
    control = founded()
    assert ask(control, kind, b"\x93\x01\x02\x03")[0] == InvalidRequest.number
    assert control.wish.version == 1


def test_state_comes_back_from_its_bytes_and_a_check_leaves_it_alone() -> None:
    control = founded()
    version(control, Kind.MEMBER_ADD, MemberAdd(3, "tcp://c:1"))
    before = control.encode()
    assert ask(control, CHECK_STATE, b"")[0] == 0
    assert control.encode() == before
    again = Control()
    again.load(before)
    assert (again.wish, again.epoch) == (control.wish, control.epoch)
