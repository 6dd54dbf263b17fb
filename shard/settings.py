"""What a worker is told when it starts: the first line on its standard input.

The one rule: everything a worker needs to know is in this line, so a worker can be started by
hand, by a test or by the supervisor, and behaves the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.placement import member_id
from shardnode.wire.ports import PEER_PORT_OFFSET, PORT_MAX, shifted

_BY_NUMBER = ("siblings", "nodes")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker of one node."""

    cluster_id: int
    cluster: str
    node: int
    shard: int
    shards: int
    directory: str
    direct: str
    """Where clients that know the owners connect."""
    ipc: str
    """Where the router and the other workers of this node connect."""
    siblings: Mapping[int, str] = field(default_factory=dict)
    peer_listen: str = ""
    """Where this shard's workers on other nodes connect; empty in a cluster of one."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """The routers of all nodes that are wanted, this one among them; its peers' ports follow."""
    nodes_version: int = 0
    """Of what was wanted when these nodes were; 0: what the founders were told to begin with."""
    joins: bool = False
    """At first boot: the group exists, and this node is none of its founders."""
    founders: Sequence[int] = ()
    """The nodes that the group begins with; empty: this one alone."""
    core: int | None = None
    engine: str = "lmdb"
    raft: Mapping[str, Any] = field(default_factory=dict)
    storage: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def member(self) -> int:
        """This worker's id in its group."""
        return member_id(self.shard, self.node)

    @property
    def voters(self) -> list[int]:
        """The members that the group begins with."""
        if self.joins:
            return []
        return [member_id(self.shard, node) for node in self.founders or (self.node,)]

    def peers(self, nodes: Mapping[int, str]) -> dict[int, str]:
        """Where this shard's workers on the other nodes listen."""
        offset = PEER_PORT_OFFSET + self.shard
        return {
            node: shifted(router, offset) for node, router in nodes.items() if node != self.node
        }

    @property
    def title(self) -> str:
        """What the process list shows."""
        where = "" if self.core is None else f" core {self.core}"
        return f"shardnode: shard {self.shard} node {self.node}{where}"

    def encode(self) -> bytes:
        """The line, without its end."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        for name in _BY_NUMBER:
            fields[name] = {str(number): address for number, address in fields[name].items()}
        return orjson.dumps(fields)

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """The inverse of `encode`. Unknown names are ignored: the supervisor may be newer."""
        fields = orjson.loads(line)
        known = {name: fields[name] for name in cls.__slots__ if name in fields}
        for name in _BY_NUMBER:
            known[name] = {int(number): address for number, address in known.get(name, {}).items()}
        return cls(**known)


def check_endpoint(endpoint: str) -> None:
    """Whether a router can be there, with its shards' ports above it."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    room = PEER_PORT_OFFSET + limits.shards_max
    good = endpoint.startswith("tcp://") and host and port.isascii() and port.isdigit()
    if not good or not 0 < int(port) <= PORT_MAX - room:
        raise InvalidRequest(
            f"expected tcp://HOST:PORT with a port up to {PORT_MAX - room}, found {endpoint}"
        )
