"""The faults of a soak: each happens, lasts for a while, and is over when its function returns.

The one rule: whatever a fault breaks, it mends, unless it raises: then the soak is over anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from shardnode.testing.cluster import Cluster
from shardnode.testing.cluster_node import ClusterNode
from shardnode.testing.proxy_stream import Faults

RESUME_S = 3.0
"""Writes go on within this time of any fault that leaves a majority."""

NEVER_S = float("inf")

Fault = Callable[[Cluster, Random], None]


def _victim(cluster: Cluster, random: Random) -> int:
    """A node, more often than not one that leads."""
    if random.random() < 0.7:
        return cluster.leader(random.randrange(cluster.shards))
    return random.choice(list(cluster.nodes))


def kill(cluster: Cluster, random: Random) -> None:
    node = cluster.nodes[_victim(cluster, random)]
    node.kill()
    time.sleep(random.uniform(0.0, 3.0))
    node.start()


def worker(cluster: Cluster, random: Random) -> None:
    """One worker is killed; its supervisor starts another."""
    shard = random.randrange(cluster.shards)
    cluster.nodes[_victim(cluster, random)].kill_worker(shard)
    time.sleep(random.uniform(0.5, 3.0))


def pause(cluster: Cluster, random: Random) -> None:
    node = cluster.nodes[_victim(cluster, random)]
    node.pause()
    time.sleep(random.uniform(0.3, 4.0))
    node.resume()


def partition(cluster: Cluster, random: Random) -> None:
    cluster.isolate(_victim(cluster, random), refuse=random.random() < 0.3)
    time.sleep(random.uniform(0.5, 5.0))
    cluster.heal()


def mute(cluster: Cluster, random: Random) -> None:
    """Nobody hears a node that hears all."""
    victim = _victim(cluster, random)
    for node in set(cluster.nodes) - {victim}:
        cluster.cut(victim, node)
    time.sleep(random.uniform(0.5, 5.0))
    cluster.heal()


def deaf(cluster: Cluster, random: Random) -> None:
    """A node hears nobody, and all hear it."""
    victim = _victim(cluster, random)
    for node in set(cluster.nodes) - {victim}:
        cluster.cut(node, victim)
    time.sleep(random.uniform(0.5, 5.0))
    cluster.heal()


def partial(cluster: Cluster, random: Random) -> None:
    """Two nodes do not hear each other; a third hears both."""
    one = _victim(cluster, random)
    other = random.choice([node for node in cluster.nodes if node != one])
    cluster.cut(one, other)
    cluster.cut(other, one)
    time.sleep(random.uniform(0.5, 5.0))
    cluster.heal()


def restart(cluster: Cluster, random: Random) -> None:
    node = cluster.nodes[_victim(cluster, random)]
    code = node.stop()
    assert code == 0, f"node {node.id} ended with {code} after SIGTERM"
    time.sleep(random.uniform(0.0, 2.0))
    node.start()


def rolling(cluster: Cluster, _: Random) -> None:
    for node in cluster.nodes.values():
        code = node.stop()
        assert code == 0, f"node {node.id} ended with {code} after SIGTERM"
        node.start()
        cluster.wait_writable()
        time.sleep(1.0)  # a node that was just elected may be the next to stop: one gap, not two


def crash(cluster: Cluster, random: Random) -> None:
    """All nodes are killed at once. For so long nobody can answer."""
    nodes = list(cluster.nodes.values())
    random.shuffle(nodes)
    for node in nodes:
        node.kill()
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_ready()


def delay(cluster: Cluster, random: Random) -> None:
    cluster.disturb(Faults(delay_ms=random.uniform(5, 60), jitter_ms=random.uniform(0, 60)))
    time.sleep(random.uniform(0.5, 3.0))
    cluster.heal()


def noise(cluster: Cluster, random: Random) -> None:
    """Messages are lost, doubled, late and in another order."""
    cluster.disturb(
        Faults(
            drop=random.uniform(0, 0.1),
            duplicate=random.uniform(0, 0.2),
            reorder=random.uniform(0, 0.2),
            jitter_ms=random.uniform(0, 20),
        )
    )
    time.sleep(random.uniform(0.5, 3.0))
    cluster.heal()


def corrupt(cluster: Cluster, random: Random) -> None:
    cluster.disturb(Faults(corrupt=random.uniform(0.001, 0.05)))
    time.sleep(random.uniform(0.5, 3.0))
    cluster.heal()


def reset(cluster: Cluster, random: Random) -> None:
    """Connections between nodes break, several times."""
    for _ in range(random.randint(1, 5)):
        cluster.reset_connections()
        time.sleep(random.uniform(0.0, 0.5))


def members(cluster: Cluster, random: Random) -> None:
    """A node leaves the cluster and joins it again; with four nodes or more another one is killed
    at some moment of that."""
    victim = cluster.nodes[_victim(cluster, random)]
    others = [node for node in cluster.nodes.values() if node is not victim]
    dies = random.choice(others) if len(others) > 2 else None
    with cluster.client(timeout=20) as client:
        client.remove_member(victim.id)
        if dies is not None and random.random() < 0.5:
            _bounce(dies, random)
        cluster.wait_until(lambda: _states(cluster, victim.id) == {"removed"}, "it to be out")
        client.add_member(victim.id, victim.address)
        if dies is not None and random.random() < 0.5:
            _bounce(dies, random)
        cluster.wait_until(lambda: _is_whole(cluster, victim.id), "it to be a voter again")


def _bounce(node: ClusterNode, random: Random) -> None:
    time.sleep(random.uniform(0.0, 0.5))
    node.kill()
    time.sleep(random.uniform(0.0, 1.0))
    node.start()


def _states(cluster: Cluster, node: int) -> set[str]:
    status = cluster.statuses().get(node)
    return {shard.state for shard in status.shards} if status is not None else set()


def _is_whole(cluster: Cluster, node: int) -> bool:
    status = cluster.statuses().get(node)
    return status is not None and all(
        shard.state == "serving" and shard.role in ("leader", "follower") and shard.leader
        for shard in status.shards
    )


FAULTS: dict[str, tuple[Fault, float]] = {
    "kill": (kill, RESUME_S),
    "worker": (worker, RESUME_S),
    "pause": (pause, RESUME_S),
    "partition": (partition, RESUME_S),
    "mute": (mute, RESUME_S),
    "deaf": (deaf, RESUME_S),
    "partial": (partial, RESUME_S),
    "restart": (restart, RESUME_S),
    "rolling": (rolling, RESUME_S),
    "crash": (crash, NEVER_S),
    "delay": (delay, RESUME_S),
    "noise": (noise, RESUME_S),
    "corrupt": (corrupt, RESUME_S),
    "reset": (reset, RESUME_S),
    "members": (members, RESUME_S),
}
"""What happens, and how long a shard may acknowledge nothing."""

ASYMMETRIC = ("mute", "deaf")
"""`asymmetric` on the command line."""
