"""A node without peers whose files are damaged: the shard is fenced and named, or the file is made
again, and the other shard serves all the while (C8)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode.client import Client, Corrupt
from shardnode.testing.cluster import Cluster
from shardnode.testing.cluster_node import ClusterNode
from shardnode.testing.damage import DAMAGES, KEY, MARK, undo_last_commit

SETTINGS = {"storage": {"segment_bytes": "1MiB", "table_bytes": "1MiB", "snapshot_entries": 20}}
PAIRS = {KEY + b"%d" % n: MARK + b"%08d" % n + b"x" * 9_000 for n in range(600)}


def fill(db: Client) -> None:
    items = list(PAIRS.items())
    for first in range(0, len(items), 10):
        db.put_many(dict(items[first : first + 10]))


def keys_of(db: Client, shard: int) -> list[bytes]:
    table = db.topology().table
    return [key for key in PAIRS if table.shard_of_key(key) == shard]


def wrong(db: Client, keys: list[bytes]) -> int:
    """How many keys do not have their value."""
    found = db.get_many(keys)
    return sum(value != PAIRS[key] for key, value in zip(keys, found, strict=True))


def wait_for_snapshots(data: Path) -> None:
    deadline = time.monotonic() + 20
    while not all(list(data.glob(f"shard-{shard}/snapshots/*[0-9]")) for shard in (0, 1)):
        assert time.monotonic() < deadline, "no snapshots were built"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node that was filled and stopped; `sound` has its files."""
    with Cluster(nodes=1, shards=2, settings=SETTINGS, proxied=False) as cluster:
        node = cluster.nodes[1]
        with cluster.client(timeout=20) as db:
            fill(db)
        wait_for_snapshots(node.data)
        node.stop()
        shutil.copytree(node.data, cluster.directory / "sound")
        yield cluster


@pytest.fixture
def node(cluster: Cluster) -> Iterator[ClusterNode]:
    node = cluster.nodes[1]
    shutil.rmtree(node.data)
    shutil.copytree(cluster.directory / "sound", node.data)
    node.log_file.unlink(missing_ok=True)
    yield node
    node.erase()


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [(name, 1) for name in DAMAGES if name != "node.json"] + [("sealed segment", 0)],
)
def test_damaged_shard_is_fenced_or_mended_and_the_other_serves(
    cluster: Cluster, node: ClusterNode, name: str, spoilt: int
) -> None:
    damage = DAMAGES[name]
    path = damage.spoil(node.data, spoilt)
    spoilt_bytes = path.read_bytes()
    node.start()
    with cluster.client(timeout=5) as db:
        assert wrong(db, keys_of(db, 1 - spoilt)) == 0
        mine = keys_of(db, spoilt)
        if damage.alone == "fenced":
            with pytest.raises(Corrupt, match=f"shard-{spoilt}/") as refused:
                db.get_many(mine)
            assert {path.name, path.parent.name, path.parent.parent.name} & set(
                str(refused.value).replace(":", "/").replace(" ", "/").split("/")
            )
            assert node.shard(spoilt).state == "fenced"
            assert "FENCED" in node.log
            assert path.exists()
            db.put(keys_of(db, 1 - spoilt)[0], b"still written")
        else:
            assert wrong(db, mine) == 0
            assert node.shard(spoilt).state == "serving"
    if name == "snapshot manifest":  # never taken for a leftover
        assert path.read_bytes() == spoilt_bytes
    if damage.alone == "mended":
        assert path.read_bytes() != spoilt_bytes


def test_fenced_shard_is_named_in_the_ready_line(node: ClusterNode) -> None:
    DAMAGES["sealed segment"].spoil(node.data, 1)
    node.start()
    assert "ready: 1 of 2 shards (shard 1 is fenced) on " in node.log


def test_damaged_identity_refuses_the_start_and_is_named(node: ClusterNode) -> None:
    path = DAMAGES["node.json"].spoil(node.data, 0)
    node.launch()
    deadline = time.monotonic() + 20
    while node.is_running:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert node.stop() == 7
    assert str(path) in node.log


def test_commit_that_a_power_failure_undid_is_redone_from_the_log(
    cluster: Cluster, node: ClusterNode
) -> None:
    node.start()
    with cluster.client(timeout=10) as db:
        for key in PAIRS:
            db.put(key, PAIRS[key][::-1])  # some flushes, and something that was not flushed
    node.kill()
    for shard in (0, 1):
        undo_last_commit(node.data / f"shard-{shard}")
    node.start()
    with cluster.client(timeout=10) as db:
        keys = list(PAIRS)
        assert db.get_many(keys) == [PAIRS[key][::-1] for key in keys]
