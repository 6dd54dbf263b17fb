"""Where to send: the cached topology, who leads, and which addresses answer.

One rule: everything here is a belief. A wrong one costs a redirect or another attempt, never a
wrong result, because the shard that receives a request checks that it is the owner and leads.

A request for a shard tries, in this order, what is not known to be down:

    the direct port of the shard on the node that leads it
    the router of that node, which passes it on
    the shard's other replicas, and the other routers
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.client.values import Topology
from shardnode.wire.placement import PlacementTable

_WILDCARDS = ("0.0.0.0", "*", "[::]", "")


class Routes:
    """The beliefs of one client."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self.seeds = tuple(seeds)
        self.topology: Topology | None = None
        self.table: PlacementTable | None = None
        self.down: set[str] = set()
        self.reached = False
        """Whether any address ever answered: then an outage is waited out, not reported at once."""
        self._leaders: dict[int, int] = {}
        self._routers: list[str] = list(seeds)
        self._candidates: dict[int, list[str]] = {}

    @property
    def epoch(self) -> int:
        return self.table.epoch if self.table else 0

    def learn(self, topology: Topology, asked: str) -> None:
        """A topology came from the router at `asked`; an older one than ours tells nothing."""
        if topology.epoch < self.epoch:
            return
        self.topology, self.table = topology, topology.table
        self._leaders = {place.id: place.leader or 0 for place in topology.shards}
        nodes = [reachable(endpoint, asked) for endpoint in topology.nodes.values()]
        self._routers = list(dict.fromkeys([asked, *nodes, *self.seeds]))
        self._candidates = {}
        for place in topology.shards:
            self._order(place.id, asked)

    def lead(self, shard: int, leader: int) -> None:
        """A member of the shard said who leads; 0: it does not know."""
        if self._leaders.get(shard) != leader:
            self._leaders[shard] = leader
            self._order(shard, self._routers[0])

    def _order(self, shard: int, asked: str) -> None:
        topology = self.topology
        if topology is None or shard >= len(topology.shards):
            return
        leader = self._leaders.get(shard, 0)
        replicas = topology.shards[shard].replicas
        first = [replicas[leader]] if leader in replicas else []
        first += [topology.nodes[leader]] if leader in topology.nodes else []
        rest = [*replicas.values(), *self._routers]
        self._candidates[shard] = list(
            dict.fromkeys(reachable(endpoint, asked) for endpoint in [*first, *rest])
        )

    def for_shard(self, shard: int, avoid: str | None = None) -> str | None:
        """Where to send a request for a shard; None while everything is down."""
        return self._choose(self._candidates.get(shard) or self._routers, avoid)

    def for_router(self, avoid: str | None = None) -> str | None:
        """Where to send a request that any node answers."""
        return self._choose(self._routers, avoid)

    def _choose(self, candidates: Sequence[str], avoid: str | None) -> str | None:
        for endpoint in candidates:
            if endpoint not in self.down and endpoint != avoid:
                return endpoint
        return avoid if avoid in candidates and avoid not in self.down else None


def reachable(endpoint: str, asked: str) -> str:
    """An address that a node told; one that means "every interface" is at the host we asked."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or host not in _WILDCARDS or not asked.startswith("tcp://"):
        return endpoint
    return f"tcp://{asked.removeprefix('tcp://').rpartition(':')[0]}:{port}"
