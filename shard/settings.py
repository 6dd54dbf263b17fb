"""What a worker is told when it starts: the first line on its standard input.

The one rule: everything a worker needs to know is in this line, so a worker can be started by
hand, by a test or by the supervisor, and behaves the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from shardnode.wire.placement import member_id

_BY_NUMBER = ("siblings", "peers")


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
    peers: Mapping[int, str] = field(default_factory=dict)
    """The same of the other nodes, by node id."""
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
        return [member_id(self.shard, node) for node in self.founders or (self.node,)]

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
