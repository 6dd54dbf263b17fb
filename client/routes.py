"""Where to send: the cached topology and topics, who leads, and which addresses answer.

One rule: everything here is a belief. A wrong one costs a redirect or another attempt, never a
wrong result, because the shard that receives a request checks that it is the owner and leads.

A request for a shard tries, in this order, what is not known to be down:

    the direct port of the shard on the node that leads it
    the router of that node, which passes it on
    the shard's other replicas, and the other routers

A node that let a request wait in vain comes last for a while: it may hang, and whoever leads in its
place is known to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardnode.client.values import Topology
from shardnode.wire.control import TopicFound
from shardnode.wire.placement import PlacementTable

SILENT_S = 2.0
"""How long a node that did not answer comes last: others need about that to elect a leader."""

TOPIC_FRESH_S = 10.0
"""After this long whoever uses a topic asks anew: it may have more partitions now."""

_WILDCARDS = ("0.0.0.0", "*", "[::]", "")


class KnownTopic(NamedTuple):
    """What shard 0 said of a topic, and when."""

    found: TopicFound
    fresh_until: float


class Routes:
    """The beliefs of one client."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self.seeds = tuple(seeds)
        self.topology: Topology | None = None
        self.table: PlacementTable | None = None
        self.down: set[str] = set()
        self.silent: dict[tuple[int | None, str], float] = {}
        """(shard, endpoint) that let a request wait in vain → until when it comes last."""
        self.topics: dict[str, KnownTopic] = {}
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
        # A node that knows no leader may just be cut off from the one that we know.
        known = self._leaders
        self._leaders = {
            place.id: place.leader or known.get(place.id, 0) for place in topology.shards
        }
        nodes = [reachable(endpoint, asked) for endpoint in topology.nodes.values()]
        self._routers = list(dict.fromkeys([asked, *nodes, *self.seeds]))
        self._candidates = {}
        for place in topology.shards:
            self._order(place.id, asked)

    def learn_topic(self, found: TopicFound, now: float) -> None:
        """Shard 0 said what a topic is."""
        self.topics[found.name] = KnownTopic(found, now + TOPIC_FRESH_S)

    def forget_topic(self, name: str) -> None:
        """It is gone, or not what it was."""
        self.topics.pop(name, None)

    def lead(self, shard: int, leader: int) -> None:
        """A member of the shard said who leads; 0: it does not know."""
        if self._leaders.get(shard) != leader:
            self._leaders[shard] = leader
            self._order(shard, self._routers[0])

    def served(self, shard: int, endpoint: str) -> None:
        """A shard's request was answered there: whoever is asked next, that is a good guess."""
        topology = self.topology
        if topology is None or shard >= len(topology.shards):
            return
        for node, replica in topology.shards[shard].replicas.items():
            if reachable(replica, self._routers[0]) == endpoint:
                self.lead(shard, node)

    def knows(self, node: int | None) -> bool:
        """Whether that is a node of the topology we have; a newer one may have been joined."""
        return self.topology is not None and node in self.topology.nodes

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

    def for_shard(
        self, shard: int, avoid: str | None = None, now: float = 0.0, node: int = 0
    ) -> str | None:
        """Where to send a request for a shard, or for its replica on one node; None while all of
        that is down."""
        if node:
            return self._choose(self._ways_to(shard, node), avoid, shard, now)
        return self._choose(self._candidates.get(shard) or self._routers, avoid, shard, now)

    def _ways_to(self, shard: int, node: int) -> list[str]:
        topology = self.topology
        if topology is None or shard >= len(topology.shards):
            return []
        told = (topology.shards[shard].replicas, topology.nodes)
        return [reachable(each[node], self._routers[0]) for each in told if node in each]

    def for_router(self, avoid: str | None = None, now: float = 0.0) -> str | None:
        """Where to send a request that any node answers."""
        return self._choose(self._routers, avoid, None, now)

    def _choose(
        self, candidates: Sequence[str], avoid: str | None, shard: int | None, now: float
    ) -> str | None:
        up = [endpoint for endpoint in candidates if endpoint not in self.down]
        others = [endpoint for endpoint in up if endpoint != avoid]
        if self.silent:
            for endpoint in others:
                if self.silent.get((shard, endpoint), 0.0) <= now:
                    return endpoint
        return next(iter(others or up), None)

    def silence(self, shard: int | None, endpoint: str, now: float) -> None:
        """A request for a shard waited at `endpoint` in vain; its node's other way is no better."""
        self.silent = {each: until for each, until in self.silent.items() if until > now}
        for each in {endpoint, *self._ways(shard, endpoint)}:
            self.silent[shard, each] = now + SILENT_S

    def heard(self, shard: int | None, endpoint: str) -> None:
        """An answer came from there."""
        for each in {endpoint, *self._ways(shard, endpoint)}:
            self.silent.pop((shard, each), None)

    def is_silent(self, shard: int, leader: int, now: float) -> bool:
        """Whether the node that is said to lead let a request for this shard wait in vain."""
        topology = self.topology
        if not self.silent or topology is None or leader not in topology.nodes:
            return False
        router = reachable(topology.nodes[leader], self._routers[0])
        return self.silent.get((shard, router), 0.0) > now

    def _ways(self, shard: int | None, endpoint: str) -> list[str]:
        """Both ways to a shard on the node that `endpoint` belongs to."""
        topology = self.topology
        if shard is None or topology is None or shard >= len(topology.shards):
            return []
        for node in topology.shards[shard].replicas:
            ways = self._ways_to(shard, node)
            if endpoint in ways:
                return ways
        return []


def reachable(endpoint: str, asked: str) -> str:
    """An address that a node told; one that means "every interface" is at the host we asked."""
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or host not in _WILDCARDS or not asked.startswith("tcp://"):
        return endpoint
    return f"tcp://{asked.removeprefix('tcp://').rpartition(':')[0]}:{port}"
