"""`shardnode repair` on real nodes: what was set aside is made again or fetched, and where nobody
has it any more, the node goes on without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode.client import Client
from shardnode.testing.cluster import Cluster
from shardnode.testing.damage import DAMAGES, KEY, MARK
from tests.cli.kit import run

SETTINGS = {"storage": {"segment_bytes": "1MiB", "table_bytes": "1MiB", "snapshot_entries": 20}}
PAIRS = {KEY + b"%d" % n: MARK + b"%08d" % n + b"x" * 9_000 for n in range(300)}
SPOILT = 1


def fill(db: Client) -> None:
    items = list(PAIRS.items())
    for first in range(0, len(items), 10):
        db.put_many(dict(items[first : first + 10]))


def all_is_there(db: Client) -> bool:
    return db.get_many(list(PAIRS)) == list(PAIRS.values())


def repair(data: Path, *words: str) -> dict[str, object]:
    """Of the first file that verify names."""
    verdict = json.loads(run("verify", str(data), "--json").stdout)
    file = verdict["damage"][0]["file"]
    done = run("repair", str(data), "--quarantine", file, "--json", *words)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


# -- one node -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    """`sound` has the files of a node that was stopped."""
    with Cluster(nodes=1, shards=2, settings=SETTINGS, proxied=False) as cluster:
        node = cluster.nodes[1]
        with cluster.client(timeout=20) as db:
            fill(db)
        snapshots = node.data / f"shard-{SPOILT}" / "snapshots"
        cluster.wait_until(lambda: list(snapshots.glob("*[0-9]")) != [], "a snapshot")
        node.stop()
        shutil.copytree(node.data, cluster.directory / "sound")
        yield cluster


@pytest.fixture
def data(alone: Cluster) -> Iterator[Path]:
    node = alone.nodes[1]
    shutil.rmtree(node.data)
    shutil.copytree(alone.directory / "sound", node.data)
    yield node.data
    node.erase()


@pytest.mark.parametrize("name", ["LMDB, inside a value", "LMDB, its pages"])
def test_keys_of_a_single_node_are_made_again(alone: Cluster, data: Path, name: str) -> None:
    DAMAGES[name].spoil(data, SPOILT)
    answer = repair(data)
    assert (answer["remedy"], answer["lost"]) == ("remake", None)
    alone.nodes[1].start()
    with alone.client(timeout=20) as db:
        assert all_is_there(db)
    alone.nodes[1].stop()
    assert run("verify", str(data)).returncode == 0


def test_history_that_nobody_has_is_given_up_only_when_asked_to(alone: Cluster, data: Path) -> None:
    path = DAMAGES["sealed segment"].spoil(data, SPOILT)
    refused = run("repair", str(data), "--quarantine", str(path))
    assert refused.returncode == 2
    assert b"--accept-loss" in refused.stderr
    assert path.exists()
    assert repair(data, "--accept-loss")["remedy"] == "after keys"
    node = alone.nodes[1]
    node.start()
    with alone.client(timeout=20) as db:
        assert all_is_there(db), "the keys hold everything"
        db.put_many(dict.fromkeys(PAIRS, b"again"))
    node.kill()
    node.start()
    with alone.client(timeout=20) as db:
        assert set(db.get_many(list(PAIRS))) == {b"again"}
    node.stop()
    assert run("verify", str(data)).returncode == 0


# -- one of three ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(nodes=3, shards=2, settings=SETTINGS, proxied=False) as cluster:
        with cluster.client(timeout=20) as db:
            fill(db)
        cluster.digests()
        yield cluster


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sealed segment", "salvage"),
        ("LMDB, inside a value", "remake"),
        ("superblock, one copy", "spare"),
        ("superblock, both copies", "spare"),
    ],
)
def test_one_of_three_gets_back_what_it_has_lost(three: Cluster, name: str, remedy: str) -> None:
    victim = three.nodes[3]
    victim.stop()
    DAMAGES[name].spoil(victim.data, SPOILT)
    answer = repair(victim.data)
    assert (answer["remedy"], answer["lost"]) == (remedy, None)
    victim.start()
    three.wait_until(
        lambda: all(shard.state == "serving" for shard in victim.status().shards), "it serves"
    )
    with three.client(timeout=20) as db:
        assert all_is_there(db)
        db.put(b"after " + name.encode(), b"x")
    for shard, replicas in three.digests().items():
        assert len({replica.digest for replica in replicas.values()}) == 1, (shard, replicas)


def test_everything_is_fetched_when_nothing_here_covers_it(three: Cluster) -> None:
    victim = three.nodes[3]
    victim.stop()
    shard = victim.data / f"shard-{SPOILT}"
    DAMAGES["LMDB, inside a value"].spoil(victim.data, SPOILT)
    shutil.rmtree(shard / "snapshots")
    segments = sorted((shard / "log").glob("*.seg"))
    if segments[0].name == "00000000000000000001.seg":
        for path in segments[:2]:
            path.unlink()
            path.with_suffix(".idx").unlink(missing_ok=True)
    assert repair(victim.data)["remedy"] == "refetch"
    assert (shard / "quarantine" / "kv").exists()
    victim.start()
    three.wait_until(
        lambda: all(each.state == "serving" for each in victim.status().shards), "it serves"
    )
    for number, replicas in three.digests().items():
        assert len({replica.digest for replica in replicas.values()}) == 1, (number, replicas)
