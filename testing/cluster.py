"""`Cluster`: real nodes on this machine, with a proxy between them that does harm on demand.

    with Cluster(nodes=3, shards=2) as cluster, cluster.client() as db:
        db.put(b"k", b"v")
        cluster.nodes[cluster.leader(0)].kill()
        cluster.partition({1}, {2, 3})
        cluster.heal()

The one rule: what a cluster starts is gone when its block ends, whatever happened inside; the
proxy's process even sees to that when the test's own process is killed.

A direction I → J is what node I sends to node J: its requests of consensus, its answers to J's, its
pieces of snapshots. Clients reach every node all the while, unless their own links are disturbed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from shardnode.client import Client, ShardnodeError, Status
from shardnode.testing.cluster_node import ClusterNode
from shardnode.testing.cluster_ports import Claims, host_of, ports_of, proxy_host
from shardnode.testing.proxy_control import Proxy
from shardnode.testing.proxy_stream import Faults

T = TypeVar("T")

NODES_MAX = 200
"""Numbers of nodes are parts of addresses."""

Settings = Mapping[str, Mapping[str, Any]]


class Digest(NamedTuple):
    """The state of one replica."""

    applied_index: int
    digest: str


class Cluster:
    """Nodes 1 … `nodes`, each with all shards. `settings` are sections of the configuration file;
    without `proxied`, nodes talk to each other directly and links cannot be disturbed."""

    def __init__(
        self,
        nodes: int = 3,
        shards: int = 2,
        directory: Path | str | None = None,
        settings: Settings | None = None,
        *,
        proxied: bool = True,
        seed: int = 0,
    ) -> None:
        assert 1 <= nodes <= NODES_MAX, f"expected 1 to {NODES_MAX} nodes, found {nodes}"
        self.shards = shards
        self.proxied = proxied
        self._settings = settings or {}
        self._is_temporary = directory is None
        # A short name: the paths of sockets inside it are limited to about 100 bytes.
        self.directory = Path(directory or tempfile.mkdtemp(prefix="sn-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._count = nodes
        self._seed = seed
        self._claims: Claims | None = None
        self._proxy: Proxy | None = None
        self.nodes: dict[int, ClusterNode] = {}

    # Beginning and end.

    def __enter__(self) -> Self:
        try:
            self._set_up()
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _set_up(self) -> None:
        self._claims = Claims(self._count, self.shards)
        bases = self._claims.bases
        proxy = self._proxy = Proxy(self._seed)
        for node, base in bases.items():
            address = f"{host_of(node)}:{base}"
            self.nodes[node] = ClusterNode(node, address, self.directory, proxy.guard)
            self._write_config(self.nodes[node], bases)
        for source, target in self._pairs(self.nodes, self.nodes) if self.proxied else ():
            clients, peers = ports_of(bases[target], self.shards)
            for name, ports in (
                (_link(source, target), peers),
                (_clients(source, target), clients),
            ):
                for port in ports:
                    here, there = proxy_host(source, target), host_of(target)
                    proxy.route(name, (here, port), (there, port))

    def _write_config(self, node: ClusterNode, bases: Mapping[int, int]) -> None:
        hosts = {
            other: host_of(other)
            if other == node.id or not self.proxied
            # What a node knows of others are the addresses of the proxy.
            else proxy_host(node.id, other)
            for other in bases
        }
        peers = [f"{other}@{hosts[other]}:{base}" for other, base in bases.items()]
        sections: dict[str, dict[str, Any]] = {
            "sharding": {"enabled": True, "shards": self.shards},
            "cluster": {"name": "test", "peers": peers if len(peers) > 1 else []},
            "node": {"listen": node.address},
        }
        for section, values in self._settings.items():
            sections.setdefault(section, {}).update(values)
        node.config.write_text(_to_toml(sections), encoding="utf-8")

    def _start_all(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_writable()

    def close(self) -> None:
        """Stop everything. Nodes that still run are killed: they owe nobody an answer."""
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            list(pool.map(ClusterNode.erase, self.nodes.values()))
        if self._proxy is not None:
            self._proxy.close()
        if self._claims is not None:
            self._claims.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    # Looking at it.

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [node.address for node in self.nodes.values()]

    def client(self, **options: Any) -> Client:
        """A client that knows all nodes."""
        return Client(self.addresses, **options)

    def status(self, node: int, timeout: float = 2.0) -> Status:
        """How the shards of one node are; raises `Unavailable` while it does not answer."""
        return self.nodes[node].status(timeout)

    def statuses(self, timeout: float = 2.0) -> dict[int, Status]:
        """Of every node that answers."""

        def ask(node: ClusterNode) -> Status | None:
            try:
                return node.status(timeout)
            except ShardnodeError:
                return None

        asked = [n for n in self.nodes.values() if n.is_running and not n.is_paused]
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            found = list(pool.map(ask, asked))
        return {status.node_id: status for status in found if status is not None}

    def leader(self, shard: int = 0) -> int:
        """The node that leads a shard; waits until there is one."""
        return self.wait_until(lambda: self._find_leader(shard), f"a leader of shard {shard}")

    def _find_leader(self, shard: int) -> int | None:
        claims = [
            (each.term, node)
            for node, status in self.statuses().items()
            for each in status.shards
            if each.id == shard and each.role == "leader"
        ]
        return max(claims)[1] if claims else None

    def digests(self, timeout: float = 20.0) -> dict[int, dict[int, Digest]]:
        """Shard → node → state, taken when all replicas of a shard have applied the same index.
        Call it when nobody writes; replicas whose digests differ have diverged."""

        def settled() -> dict[int, dict[int, Digest]] | None:
            found: dict[int, dict[int, Digest]] = {shard: {} for shard in range(self.shards)}
            for node, status in self.statuses().items():
                for each in status.shards:
                    found[each.id][node] = Digest(each.applied_index, each.digest)
            running = [n for n in self.nodes.values() if n.is_running and not n.is_paused]
            complete = all(
                len(replicas) == len(running)
                and len({r.applied_index for r in replicas.values()}) == 1
                for replicas in found.values()
            )
            return found if complete else None

        return self.wait_until(settled, "equal applied indexes on all nodes", timeout)

    def wait_until(
        self, condition: Callable[[], T | None], what: str = "the condition", timeout: float = 30.0
    ) -> T:
        """The first true value of a condition."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected {what} within {timeout} s; {self._describe()}")
            time.sleep(0.05)
        return value

    def _describe(self) -> str:
        lines = ["the nodes say"]
        for node, status in self.statuses().items():
            lines += [f"  {node}: {shard}" for shard in status.shards]
        return "\n".join(lines)

    def wait_writable(self, timeout: float = 30.0) -> None:
        """Until every shard has a leader that reaches a majority: it answers a linearizable read,
        which needs both and leaves nothing behind."""
        with self.client(timeout=timeout) as client:
            table = client.topology().table
            missing = set(range(self.shards))
            for number in range(100_000):
                key = b"shardnode-testing-%d" % number
                shard = table.shard_of_key(key)
                if shard in missing:
                    client.get(key)
                    missing.discard(shard)
                if not missing:
                    return

    # Doing things to it.

    def cut(self, source: int, target: int, *, refuse: bool = False) -> None:
        """Nothing gets from `source` to `target` any more. What is sent meanwhile arrives after
        `heal`, as with TCP; `refuse` resets connections and refuses new ones instead."""
        if refuse:
            self.proxy.refuse(_link(source, target))
        else:
            self.proxy.set(_link(source, target), Faults(cut=True))

    def partition(self, *groups: Collection[int], refuse: bool = False) -> None:
        """Nodes of different groups do not hear of each other, in both directions."""
        for group in groups:
            others = [node for other in groups if other is not group for node in other]
            for source, target in self._pairs(group, others):
                self.cut(source, target, refuse=refuse)

    def isolate(self, node: int, *, refuse: bool = False) -> None:
        """One node against all others."""
        self.partition({node}, set(self.nodes) - {node}, refuse=refuse)

    def disturb(self, faults: Faults, links: Iterable[tuple[int, int]] | None = None) -> None:
        """Delay, drop, duplicate, reorder or corrupt messages on links, or on all."""
        for source, target in links or self._pairs(self.nodes, self.nodes):
            self.proxy.set(_link(source, target), faults)

    def reset_connections(self) -> None:
        """Every connection between nodes breaks, once."""
        for source, target in self._pairs(self.nodes, self.nodes):
            self.proxy.reset(_link(source, target))

    def heal(self) -> None:
        """All links are whole again."""
        self.proxy.heal()

    @property
    def proxy(self) -> Proxy:
        """For what the methods above do not offer."""
        if self._proxy is None or not self.proxied:
            raise RuntimeError("links can be disturbed only inside `with Cluster(proxied=True)`")
        return self._proxy

    def _pairs(self, sources: Iterable[int], targets: Iterable[int]) -> list[tuple[int, int]]:
        ends = list(targets)
        return [(source, target) for source in sources for target in ends if source != target]


def _link(source: int, target: int) -> str:
    return f"{source}>{target}"


def _clients(source: int, target: int) -> str:
    """What clients do with the addresses of `target` that `source` told them."""
    return f"{source}>{target}:clients"


def _to_toml(sections: Settings) -> str:
    """Strings, numbers, booleans and lists of them are in TOML as in JSON."""
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])
