"""A replica whose state is not that of the others notices it, stays out, and is brought back."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb

from shardnode.client import Client
from shardnode.testing.cluster import Cluster

KEY, VICTIM = b"counter", 3


def forget_keys(data: Path) -> int:
    """Take every key out of a stopped shard's storage, as a disk or a bug would; how many."""
    (engine,) = data.glob("shard-0/**/data.mdb")
    with lmdb.open(str(engine.parent), max_dbs=3) as env:
        keys = env.open_db(b"keys")
        with env.begin(write=True) as change:
            count = change.stat(keys)["entries"]
            change.drop(keys, delete=False)
    return int(count)


def state(cluster: Cluster) -> str:
    return cluster.nodes[VICTIM].shard(0).state


def is_fenced(cluster: Cluster, db: Client) -> bool:
    """States are compared after writes: what the others say of one may not reach a replica that
    has just come back, so there has to be another."""
    db.put(b"more", b"x")
    return state(cluster) == "fenced"


def test_replica_that_forgot_something_fences_itself_and_comes_back_from_the_others() -> None:
    with Cluster(nodes=3, shards=1, proxied=False) as cluster, cluster.client(timeout=20) as db:
        version = db.put(KEY, b"1")
        cluster.digests()  # once all have it
        victim = cluster.nodes[VICTIM]
        victim.stop()
        assert forget_keys(victim.data) > 0
        victim.start()
        db.cas(KEY, b"2", version=version)  # at the victim, a conflict
        cluster.wait_until(lambda: is_fenced(cluster, db), "node 3 is fenced", timeout=20)
        assert "state is wrong: stop this node, move the shard's directory away" in victim.log
        victim.stop()
        victim.launch()  # with its only shard fenced it is not ready, and says why
        cluster.wait_until(lambda: victim.log.count("FENCED") == 2, "… for good", timeout=20)
        assert db.get(KEY) == b"2"
        victim.stop()
        shutil.rmtree(victim.data / "shard-0")
        victim.start()
        cluster.wait_until(lambda: state(cluster) == "serving", "node 3 is back", timeout=20)
        (digests,) = {frozenset(each.items()) for each in cluster.digests().values()}
        assert digests


def spoil_keys(data: Path) -> None:
    """Overwrite the beginning of every page but the first ones."""
    (path,) = data.glob("shard-0/kv/*/data.mdb")
    with path.open("r+b") as file:
        for offset in range(4 * 4096, path.stat().st_size, 4096):
            file.seek(offset)
            file.write(b"\xff" * 16)


def test_replica_whose_keys_are_damaged_gets_them_back_from_the_others() -> None:
    with Cluster(nodes=3, shards=1, proxied=False) as cluster, cluster.client(timeout=20) as db:
        db.put_many({b"k%d" % n: b"v" * 100 for n in range(1_000)})
        cluster.digests()  # once all have it
        victim = cluster.nodes[VICTIM]
        victim.stop()
        spoil_keys(victim.data)
        victim.start()
        db.put(KEY, b"1")
        (states,) = cluster.digests().values()
        assert len({each.digest for each in states.values()}) == 1
        assert "starts over from its peers: KeysCorrupt" in victim.log
        assert list(victim.data.glob("shard-0/quarantine/kv/*/data.mdb"))
