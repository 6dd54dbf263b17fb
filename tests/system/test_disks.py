"""What users are promised when a disk is full, refuses an fsync or is slow: real nodes, whose disk
fails at named points, or is a real small one where a test may mount it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardnode import Client, ShardnodeError
from shardnode.client import OutcomeUnknown, Unavailable
from shardnode.testing.cluster import Cluster

SMALL = {"storage": {"segment_bytes": "1MiB", "table_bytes": "1MiB", "keep_bytes": "0B"}}


def write_until_refused(db: Client, most: int = 400) -> tuple[dict[bytes, bytes], ShardnodeError]:
    """What was acknowledged, and the first error."""
    kept: dict[bytes, bytes] = {}
    for number in range(most):
        key, value = b"key-%d" % number, b"%d " % number * 4_000
        try:
            db.put(key, value, timeout=1.0)
        except ShardnodeError as error:
            return kept, error
        kept[key] = value
    raise AssertionError(f"{most} writes, and none was refused")


def check_all(db: Client, kept: dict[bytes, bytes]) -> None:
    keys = list(kept)
    assert db.get_many(keys) == [kept[key] for key in keys]


def test_failed_fsync_ends_the_worker_at_once_and_nothing_acknowledged_is_lost() -> None:
    with Cluster(nodes=1, shards=1, proxied=False) as cluster:
        node = cluster.nodes[1]
        node.stop()
        node.failpoints = "log.sync.before=error@12"
        node.start()
        with cluster.client(timeout=10) as db:
            kept = {b"key-%d" % n: b"value-%d" % n for n in range(30)}
            for key, value in kept.items():
                db.put(key, value)
            assert node.log.count("failpoint log.sync.before=error at 12") >= 1
            assert "SyncFailed" in node.log
            assert node.shard(0).restarts >= 1
            check_all(db, kept)
        node.stop()
        node.failpoints = ""
        node.start()
        with cluster.client() as db:
            check_all(db, kept)


@pytest.mark.parametrize("point", ["log.write.before", "log.write.torn", "log.allocate.before"])
def test_full_disk_refuses_writes_with_a_typed_error_serves_reads_and_recovers(point: str) -> None:
    with Cluster(nodes=1, shards=1, settings=SMALL, proxied=False) as cluster:
        node = cluster.nodes[1]
        node.stop()
        node.failpoints = f"{point}=full@{2 if 'allocate' in point else 40}+30"
        node.start()
        with cluster.client(timeout=5) as db:
            kept, error = write_until_refused(db)
            assert kept
            assert isinstance(error, Unavailable | OutcomeUnknown)
            assert "the disk was full" in str(error)
            check_all(db, kept)
            assert node.shard(0).restarts == 0
            for number in range(100):  # each try uses up one refusal of the disk
                with_room = _try_put(db, b"later-%d" % number)
                if with_room:
                    break
            assert with_room
            check_all(db, kept)


def _try_put(db: Client, key: bytes) -> bool:
    try:
        db.put(key, b"x", timeout=0.5)
    except ShardnodeError:
        return False
    return True


@contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="flt-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "shardnode-test", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        folder.rmdir()
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_small_disk_that_fills_up_refuses_writes_serves_reads_and_recovers() -> None:
    with (
        small_disk(24) as folder,
        Cluster(nodes=1, shards=1, directory=folder, settings=SMALL, proxied=False) as cluster,
        cluster.client(timeout=5) as db,
    ):
        node = cluster.nodes[1]
        ballast = folder / "ballast"
        with ballast.open("wb") as file:
            file.write(bytes(8 << 20))
        kept, error = write_until_refused(db, 4_000)
        # Unknown: the deadline came while the last of several copies was under way.
        assert isinstance(error, Unavailable | OutcomeUnknown)
        assert "the disk was full" in str(error)
        check_all(db, kept)
        assert node.shard(0).restarts == 0
        ballast.unlink()
        deadline = time.monotonic() + 20
        while not _try_put(db, b"later"):
            assert time.monotonic() < deadline, node.log[-2_000:]
        check_all(db, kept)
        node.kill()
        node.start()
        with cluster.client() as second:
            check_all(second, kept)


def test_leader_with_a_slow_disk_is_replaced() -> None:
    with Cluster(nodes=3, shards=1, proxied=False) as cluster:
        slow = cluster.nodes[cluster.leader(0)]
        slow.stop()
        slow.failpoints = "log.sync.before=delay:4000ms@20"
        slow.start()
        with cluster.client(timeout=10) as db:
            db.transfer_leader(0, slow.id)
            cluster.wait_until(lambda: cluster.leader(0) == slow.id, "the slow one leads")
            kept = {b"key-%d" % n: b"value-%d" % n for n in range(60)}
            longest = 0.0
            for key, value in kept.items():
                begun = time.monotonic()
                db.put(key, value)
                longest = max(longest, time.monotonic() - begun)
            assert "delay" in slow.log
            assert longest < 3.5, "nobody waits for the slow disk"
            assert cluster.leader(0) != slow.id
            check_all(db, kept)
