"""Backups of real nodes under load, and nodes started on what was restored from them."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

from shardnode import Client
from shardnode.testing.cluster import Cluster
from shardnode.wire.control import TopicCreate, TopicFound
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import pack_namespace
from tests.cli.kit import error_of, run
from tests.system.backup_kit import (
    SlowBackup,
    Writer,
    backup,
    cut_of,
    restore,
    rows_of,
    rows_restored,
)
from tests.system.kit import NodeProcess, folder, started, until
from tests.system.test_joining import members
from tests.system.test_joining import started as joined
from tests.system.test_three_nodes import free_addresses
from tests.system.test_topics import append, connected, is_there, values_of

LARGE = 90_000_000
"""More than a base may have of log alone, so that a snapshot is built."""


def test_every_backup_under_load_and_ten_moments_between_are_what_they_were() -> None:
    draw = random.Random(8)
    with folder() as place:
        destination = place / "b"
        with started(place / "d", "--shards", "2") as node, Writer(node.address) as writer:
            until(lambda: len(writer.writes) > 3_000)
            told = []
            for _ in range(2):
                before = writer.acknowledged()
                told.append(backup(node.address, destination))
                cut = cut_of(told[-1])
                assert all(cut[shard] >= version for shard, version in before.items())
                more = len(writer.writes) + 1_000
                until(lambda: len(writer.writes) > more)  # noqa: B023 (it is done at once)
        for number, each in enumerate(told):
            data = place / f"r{number}"
            rows = rows_restored(destination, data, 2, "--backup", each["backup"])
            assert rows == writer.rows_at(cut_of(each))
            assert json.loads((data / "node.json").read_text())["cluster_id"] != each["cluster_id"]
        for number in range(10):
            wanted = {shard: draw.randrange(1, last + 1) for shard, last in cut.items()}
            words = ",".join(f"{shard}:{index}" for shard, index in wanted.items())
            rows = rows_restored(destination, place / f"i{number}", 2, "--to-index", words)
            assert rows == writer.rows_at(wanted), wanted


def load(node: NodeProcess, writer: Writer, size: int) -> None:
    """Write so much, in this thread."""
    with Client(node.address, timeout=30) as db:
        while sum(len(write.value) for write in writer.writes) < size:
            writer.step(db)


def test_large_backups_survive_what_dies_in_the_middle_and_bring_streams_along() -> None:
    with folder() as place:
        destination = place / "b"
        writer = Writer("", batch=150, size=8_000, keys=20_000)
        with started(place / "d") as node:
            with connected(node) as raw:
                created = raw.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", 2))
                assert isinstance(created, TopicFound)
                spaces = [pack_namespace(created.stream, created.topic, n) for n in range(2)]
                until(lambda: all(is_there(raw, space) for space in spaces))
                for number in range(500):
                    append(raw, spaces[number % 2], b"%d" % number * 100)
            load(node, writer, LARGE)
            with SlowBackup(node.address, destination, "20MB") as slow:
                until(lambda: slow.copied() > 20_000_000, 60)
                slow.kill()
            again = slow.copied()
            load(node, writer, LARGE + 1_000_000)
            with SlowBackup(node.address, destination, "20MB") as slow:
                until(lambda: slow.copied() > again + 10_000_000, 60)
                pid = node.shards()[0].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                code, told = slow.finish()
            assert code == 0, told
            assert told["lost_cuts"] > 0, "the worker died while it was read"
            assert told["shards"][0]["snapshot_bytes"] > 10_000_000, "it was built beside the loop"
            assert told["fetched_bytes"] + again > told["shards"][0]["snapshot_bytes"]
            load(node, writer, LARGE + 3_000_000)
            small = backup(node.address, destination)
            assert small["fetched_bytes"] < 5_000_000, "only the log since"
        for each in (told, small):
            data = place / each["backup"]
            restore(destination, data, "--backup", each["backup"])
            with started(data) as node:
                assert rows_of(node.address) == writer.rows_at(cut_of(each))
                with connected(node) as raw:
                    for half, space in enumerate(spaces):
                        expected = [b"%d" % n * 100 for n in range(500) if n % 2 == half]
                        found = values_of(raw, space)
                        assert found == expected[: len(found)]
                        assert found
                    assert append(raw, spaces[0], b"more").offset == 250
                with Client(node.address) as db:
                    version = db.put(b"new", b"1")
                    assert version > cut_of(each)[0]
        verified = run("backup", "verify", str(destination), "--json")
        assert (verified.returncode, json.loads(verified.stdout)["problems"]) == (0, [])


def test_a_backup_goes_on_when_another_node_takes_the_lead() -> None:
    with folder() as place, Cluster(3, 1, place / "c", proxied=False) as cluster:
        destination = place / "b"
        # It writes slower than the backup reads, which would follow it for long otherwise.
        writer = Writer(cluster.addresses, batch=50, size=4_000, keys=20_000, pause_s=0.2)
        with cluster.client() as db:
            while len(writer.writes) < 5_000:
                writer.step(db)
        with writer:
            survivors = [node for node in cluster.nodes if node != cluster.leader(0)]
            address = cluster.nodes[survivors[0]].address
            before = writer.acknowledged()
            with SlowBackup(address, destination, "10MB") as slow:
                until(lambda: slow.copied() > 5_000_000, 60)
                cluster.nodes[cluster.leader(0)].kill()
                code, told = slow.finish()
            assert code == 0, told
            assert told["lost_cuts"] > 0
            assert cut_of(told)[0] >= before[0]
            count = len(writer.writes)
            until(lambda: len(writer.writes) > count + 100, 60)
        data = place / "data-1"
        restore(destination, data, "--cluster", "main", "--node-id", "1")
        one, two = free_addresses(2)
        with joined(place, 1, one) as first:
            first.ready()
            assert members(one).keys() == {1}, "the nodes of the old cluster are not wanted"
            assert rows_of(one) == writer.rows_at(cut_of(told))
            with joined(place, 2, two, "--join", one) as second:
                second.ready()
                until(lambda: members(one).get(2, {}).get("follows") == 1, 30)
                with Client(two) as db:
                    assert db.status().shards[0].applied_index > cut_of(told)[0]
                assert rows_of(two) == writer.rows_at(cut_of(told))


def test_a_restore_that_was_interrupted_is_refused_by_start_and_begun_anew() -> None:
    with folder() as place:
        data = place / "r"
        with started(place / "d") as node:
            with Client(node.address) as db:
                version = db.put(b"k", b"v")
            backup(node.address, place / "b")
        restore(place / "b", data)
        (data / "node.json").rename(data / "restoring")  # as if it had not come to its end
        refused = run("start", "--data", str(data), "--listen", "127.0.0.1:0", "--http", "off")
        assert refused.returncode == 2
        assert b"a restore that is not complete" in refused.stderr
        assert rows_restored(place / "b", data, 1) == {b"k": (b"v", version)}
        occupied = run("restore", str(place / "b"), "--data", str(data), "--json")
        assert occupied.returncode == 2
        assert "expected an empty directory" in error_of(occupied)["message"]


def test_what_is_damaged_or_missing_is_refused_by_its_name(tmp_path: Path) -> None:
    with folder() as place:
        with started(place / "d") as node:
            with Client(node.address) as db:
                db.put_many({b"key-%d" % n: b"v" * 100 for n in range(1_000)})
            told = backup(node.address, place / "b")
        chunk = next((place / "b" / "shard-0" / "log").iterdir())
        sound = chunk.read_bytes()
        chunk.write_bytes(sound[:5_000] + bytes([sound[5_000] ^ 1]) + sound[5_001:])
        for words in (("backup", "verify", str(place / "b")), ("restore", str(place / "b"))):
            more = () if "verify" in words else ("--data", str(tmp_path / "r"))
            done = run(*words, *more)
            assert done.returncode == 7
            assert chunk.name.encode() in done.stdout + done.stderr
        chunk.unlink()
        done = run("restore", str(place / "b"), "--data", str(tmp_path / "r"))
        assert (done.returncode, chunk.name.encode() in done.stderr) == (7, True)
        assert not (tmp_path / "r" / "node.json").exists()
        chunk.write_bytes(sound)
        assert run("backup", "verify", str(place / "b")).returncode == 0
        manifest = place / "b" / "backups" / f"{told['backup']}.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"index"', b'"indeX"', 1))
        done = run("restore", str(place / "b"), "--data", str(tmp_path / "r"))
        assert (done.returncode, manifest.name.encode() in done.stderr) == (7, True)
        manifest.unlink()
        done = run("restore", str(place / "b"), "--data", str(tmp_path / "r"))
        assert (done.returncode, b"no manifest" in done.stderr) == (3, True)
