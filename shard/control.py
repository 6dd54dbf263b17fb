"""The control plane's state, on shard 0: the placement table and the nodes that are wanted.

The one rule: this is a wish, and replicated like any other state. A table replaces another only
when its epoch is newer, and a member is added or removed at most once, whoever asked and however
often; so every replica, and every repeat, ends with the same state. Each group's leader makes the
wish come true for its own group (`steward`).

    command          does
    CONTROL_SET      the first state of a new cluster, or a newer table
    MEMBER_ADD       a node is wanted, at that address
    MEMBER_REMOVE    … and not any more
    REBALANCE        nothing but a new version: leaders return to where they belong
    TOPIC_…          create, alter or delete a topic (`topics`)
    RESTORED         no node is wanted, until the one that was restored says where it is
    CHECK_STATE      nothing: replicas compare their digests at its index
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgpack

from shardnode.shard.entries import (
    CHECK_STATE,
    CONTROL_SET,
    RESTORED,
    Command,
    accept,
    decode_entry,
    refuse,
)
from shardnode.shard.topics import Topics
from shardnode.wire import limits
from shardnode.wire.control import (
    Changed,
    MemberAdd,
    MemberRemove,
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDeleted,
    TopicFound,
)
from shardnode.wire.errors import Conflict, InvalidRequest, ShardnodeError
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable

TOPIC_KINDS = frozenset((Kind.TOPIC_CREATE, Kind.TOPIC_ALTER, Kind.TOPIC_DELETE))


class Wish(NamedTuple):
    """The nodes that are wanted, by id, with the addresses of their routers."""

    version: int
    """Grows with every change; 0: nothing was ever said."""
    members: Mapping[int, str]


NOTHING = Wish(0, {})


def encode_control(table: PlacementTable, wish: Wish) -> bytes:
    """The body of a CONTROL_SET, and the form in which the state is kept."""
    return bytes(msgpack.packb([table.encode(), dict(sorted(wish.members.items())), wish.version]))


class Control:
    """What the cluster should look like."""

    def __init__(self) -> None:
        self.table: PlacementTable | None = None
        self.wish = NOTHING
        self.topics = Topics()

    @property
    def epoch(self) -> int:
        """0 before there is a table."""
        return self.table.epoch if self.table else 0

    def apply(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Let entries of the control partition take effect, in order; a reply for each."""
        return [self._apply(payload) for payload in payloads]

    def _apply(self, payload: bytes) -> bytes:
        try:
            command = decode_entry(payload)
            if command.kind in TOPIC_KINDS:
                return accept(self._change_topic(command).encode())
            self._obey(command)
        except ShardnodeError as error:
            return refuse(error)
        return accept(Changed(self.wish.version).encode())

    def _obey(self, command: Command) -> None:
        kind = command.kind
        if kind == CONTROL_SET:
            self._set(command)
        elif kind == Kind.MEMBER_ADD:
            self._add(MemberAdd.decode(command.body))
        elif kind == Kind.MEMBER_REMOVE:
            self._remove(MemberRemove.decode(command.body).node)
        elif kind == Kind.REBALANCE:
            self._want(self.wish.members)
        elif kind == RESTORED:
            self._want({})
            self.topics.begin_anew()
        elif kind != CHECK_STATE:
            raise InvalidRequest(f"expected a command of the control plane, found {kind:#x}")

    def _change_topic(self, command: Command) -> TopicFound | TopicDeleted:
        if command.kind == Kind.TOPIC_CREATE:
            return self.topics.create(TopicCreate.decode(command.body), command.stamp_ms)
        if command.kind == Kind.TOPIC_ALTER:
            return self.topics.alter(TopicAlter.decode(command.body))
        self.topics.delete(TopicDelete.decode(command.body).name)
        return TopicDeleted()

    def _set(self, command: Command) -> None:
        try:
            table, wish = _read(command.body)
        except (ValueError, TypeError, InvalidRequest) as problem:
            # A text of our own: that of a library may differ between replicas.
            raise InvalidRequest(
                "expected [table, {node id: endpoint}, version], found another body"
            ) from problem
        if table.epoch > self.epoch:
            self.table = table
        if wish.version > self.wish.version:
            self.wish = wish

    def _add(self, member: MemberAdd) -> None:
        members = self.wish.members
        if members.get(member.node) == member.endpoint:
            return
        for node, endpoint in members.items():
            if endpoint == member.endpoint:
                raise Conflict(
                    f"expected an address of its own for node {member.node}, found {endpoint} in"
                    f" use by node {node}; remove that node first, or give another address"
                )
        if len(members) >= limits.nodes_max:
            raise Conflict(f"expected fewer than {limits.nodes_max} nodes; remove one first")
        self._want({**members, member.node: member.endpoint})

    def _remove(self, node: int) -> None:
        members = dict(self.wish.members)
        if members.pop(node, None) is None:
            return
        if not members:
            raise Conflict(
                f"expected another node beside node {node}, found none; a cluster keeps at least"
                " one: stop it instead"
            )
        self._want(members)

    def _want(self, members: Mapping[int, str]) -> None:
        self.wish = Wish(self.wish.version + 1, dict(sorted(members.items())))

    def encode(self) -> bytes:
        """For a flush and a snapshot; empty before there is a table."""
        return encode_control(self.table, self.wish) if self.table else b""

    def load(self, data: bytes) -> None:
        """The inverse of `encode`."""
        self.table, self.wish = _read(data) if data else (None, NOTHING)


def _read(body: bytes | memoryview) -> tuple[PlacementTable, Wish]:
    packed, members, version = msgpack.unpackb(body, strict_map_key=False)
    if not isinstance(packed, bytes) or not isinstance(members, dict) or type(version) is not int:
        raise TypeError("a table, a map of members and a version")
    for node, endpoint in members.items():
        if type(node) is not int or type(endpoint) is not str:
            raise TypeError("members are {int: str}")
    if len(members) > limits.nodes_max:
        raise ValueError("too many members")
    return PlacementTable.decode(packed), Wish(version, dict(sorted(members.items())))
