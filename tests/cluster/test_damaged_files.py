"""One of three nodes has damaged files: it repairs itself from the others or stays out, nothing
that was acknowledged is lost, and in the end all replicas are equal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from shardnode.client import Client, Do
from shardnode.testing.cluster import Cluster
from shardnode.testing.cluster_node import ClusterNode
from shardnode.testing.damage import DAMAGES, KEY, MARK

SETTINGS = {"storage": {"segment_bytes": "1MiB", "table_bytes": "1MiB", "snapshot_entries": 20}}
PAIRS = {KEY + b"%d" % n: MARK + b"%08d" % n + b"x" * 9_000 for n in range(320)}
VICTIM, SPOILT = 3, 1
NOTICE_S = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(nodes=3, shards=2, settings=SETTINGS, proxied=False) as cluster:
        yield cluster


@pytest.fixture
def victim(running: Cluster) -> ClusterNode:
    """It has several segments, keys in LMDB and a snapshot, as have the others."""
    node = running.nodes[VICTIM]
    with running.client(timeout=20) as db:
        items = list(PAIRS.items())
        for first in range(0, len(items), 10):
            db.put_many(dict(items[first : first + 10]))
    running.digests()
    snapshots = node.data / f"shard-{SPOILT}" / "snapshots"
    running.wait_until(lambda: any(p.name.isdigit() for p in snapshots.iterdir()), "a snapshot")
    return node


def state(node: ClusterNode, shard: int) -> str:
    return node.shard(shard).state


def wait_whole(cluster: Cluster, node: ClusterNode) -> None:
    cluster.wait_until(
        lambda: all(shard.state == "serving" and shard.leader for shard in node.status().shards),
        f"node {node.id} serves",
        NOTICE_S,
    )


def check(cluster: Cluster, node: ClusterNode, number: int) -> None:
    """All is there, more can be written, and all replicas are equal."""
    wait_whole(cluster, node)
    with cluster.client(timeout=20) as db:
        keys = list(PAIRS)
        assert db.get_many(keys) == [PAIRS[key] for key in keys]
        for each in range(20):
            db.put(b"round-%d-%d" % (number, each), b"x")
    for shard, replicas in cluster.digests().items():
        assert len({replica.digest for replica in replicas.values()}) == 1, (shard, replicas)


def bring_back(node: ClusterNode) -> None:
    """As the message says: stop it, move the shard's directory away, start it."""
    node.stop()
    shutil.rmtree(node.data / f"shard-{SPOILT}")
    node.start()


def depend_on_all_values(db: Client) -> None:
    """Requests in the log whose answers hold values: replicas compare what they answered."""
    table = db.topology().table
    keys = [key for key in PAIRS if table.shard_of_key(key) == SPOILT]
    for first in range(0, len(keys), 20):
        db.transact(then=[Do.get(key) for key in keys[first : first + 20]])


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_on_one_of_three_costs_nothing(
    running: Cluster, victim: ClusterNode, name: str
) -> None:
    damage = DAMAGES[name]
    victim.stop()
    log_begins = len(victim.log)
    path = damage.spoil(victim.data, SPOILT)
    if damage.among_three == "refused":
        victim.launch()
        running.wait_until(lambda: not victim.is_running, "the start to be refused")
        assert victim.stop() == 7
        assert str(path) in victim.log
        shutil.rmtree(victim.data)
        victim.start()
    else:
        victim.start()
    with running.client(timeout=20) as db:
        depend_on_all_values(db)
    if damage.among_three == "fenced":
        running.wait_until(lambda: state(victim, SPOILT) == "fenced", "it is fenced", NOTICE_S)
        assert "FENCED" in victim.log[log_begins:]
        assert state(victim, 1 - SPOILT) == "serving"
        with running.client(timeout=20) as db:
            keys = list(PAIRS)
            assert db.get_many(keys) == [PAIRS[key] for key in keys]
        bring_back(victim)
    if damage.among_three == "refetched":
        quarantine = victim.data / f"shard-{SPOILT}" / "quarantine"
        running.wait_until(lambda: list(quarantine.glob("*")), "what was damaged is kept", NOTICE_S)
    check(running, victim, list(DAMAGES).index(name))
