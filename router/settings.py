"""What the router is told when it starts: the first line on its standard input.

The one rule: everything it needs to know is in this line, so a router can be started by hand, by a
test or by the supervisor, and behaves the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """One router of one node."""

    listen: str
    """Where clients connect: `tcp://host:port`."""
    node: int
    cluster: str
    shards: int
    """Shards of the whole cluster."""
    workers: Mapping[int, str]
    """The ipc address of each worker of this node."""
    direct: Mapping[int, str]
    """What clients are told of each worker's direct port."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """The routers of all nodes of the cluster, this one included; empty in a cluster of one."""
    advertise: str = ""
    """What clients are told of this router; empty: `listen`."""
    cluster_id: int = 0
    """What a node that joins is told."""
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What the process list shows."""
        return f"shardnode: router node {self.node}"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """The settings in a line. Unknown names are ignored: the supervisor may be newer."""
        fields = json.loads(line)
        known = {name: fields[name] for name in cls.__slots__ if name in fields}
        for name in ("workers", "direct", "nodes"):
            known[name] = {int(key): address for key, address in known.get(name, {}).items()}
        return cls(**known)
