"""The control plane's state, on shard 0: the placement table and the nodes.

The one rule: a table replaces another only when its epoch is newer, whoever sent it and however
often; so every replica, and every repeat, ends with the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgpack

from shardnode.shard.entries import CONTROL_SET, Command, accept, decode_entry, refuse
from shardnode.wire import limits
from shardnode.wire.control import Changed
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.placement import PlacementTable


def encode_control(table: PlacementTable, members: Mapping[int, str]) -> bytes:
    """The body of a CONTROL_SET, and the form in which the state is kept."""
    return bytes(msgpack.packb([table.encode(), dict(sorted(members.items()))]))


class Control:
    """What the cluster should look like."""

    def __init__(self) -> None:
        self.table: PlacementTable | None = None
        self.members: Mapping[int, str] = {}

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
            table, members = _decode(command)
        except InvalidRequest as error:
            return refuse(error)
        if table.epoch > self.epoch:
            self.table, self.members = table, members
        return accept(Changed(self.epoch).encode())

    def encode(self) -> bytes:
        """For a flush and a snapshot; empty before there is a table."""
        return encode_control(self.table, self.members) if self.table else b""

    def load(self, data: bytes) -> None:
        """The inverse of `encode`."""
        self.table, self.members = _read(data) if data else (None, {})


def _decode(command: Command) -> tuple[PlacementTable, Mapping[int, str]]:
    if command.kind != CONTROL_SET:
        raise InvalidRequest(
            f"expected a command of the control plane ({CONTROL_SET:#x}), found {command.kind:#x}"
        )
    try:
        return _read(command.body)
    except (ValueError, TypeError, InvalidRequest) as problem:
        # A text of our own: that of a library may differ between replicas.
        raise InvalidRequest(
            "expected [table, {node id: endpoint}], found another body"
        ) from problem


def _read(body: bytes | memoryview) -> tuple[PlacementTable, Mapping[int, str]]:
    packed, members = msgpack.unpackb(body, strict_map_key=False)
    if not isinstance(packed, bytes) or not isinstance(members, dict):
        raise TypeError("a table and a map of members")
    for node, endpoint in members.items():
        if type(node) is not int or type(endpoint) is not str:
            raise TypeError("members are {int: str}")
    if len(members) > limits.nodes_max:
        raise ValueError("too many members")
    return PlacementTable.decode(packed), dict(sorted(members.items()))
