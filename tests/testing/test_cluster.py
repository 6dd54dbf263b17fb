"""The cluster under test itself: its ports, its configuration, and that nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardnode.testing import Cluster
from shardnode.testing.cluster_ports import RANGE, Claims


class Interrupted(BaseException):
    """As an interrupt of the terminal is, but not one that pytest would obey."""


def until_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_of_a_cluster_whose_test_failed() -> None:
    cluster = Cluster(nodes=2, shards=1)
    pids: list[int] = []

    def fail() -> None:
        with cluster:
            cluster.nodes[2].pause()
            pids.extend(process.pid for node in (1, 2) for process in _family(cluster, node))
            pids.append(cluster.proxy.pid)
            raise Interrupted

    with pytest.raises(Interrupted):
        fail()
    assert len(pids) == 7
    until_gone(pids, 0.5)
    assert not cluster.directory.exists()


def _family(cluster: Cluster, node: int) -> list[psutil.Process]:
    return cluster.nodes[node].processes()


WIDOW = """
import os, sys
from shardnode.testing import Cluster
cluster = Cluster(nodes=1, shards=1).__enter__()
for process in cluster.nodes[1].processes():
    sys.stdout.write(f"{process.pid}\\n")
sys.stdout.write(f"{cluster.directory}\\n")
sys.stdout.flush()
os._exit(1)
"""


def test_nothing_is_left_of_a_cluster_whose_test_was_killed() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", WIDOW], capture_output=True, timeout=60)
    *pids, directory = ran.stdout.decode().splitlines()
    assert len(pids) == 3
    until_gone([int(pid) for pid in pids])
    for file in sorted(Path(directory).rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    Path(directory).rmdir()


def test_directory_of_ones_own_is_kept_and_settings_are_used(tmp_path: Path) -> None:
    settings = {"raft": {"election_timeout": "300ms", "heartbeat": "30ms"}}
    with Cluster(
        nodes=1, shards=1, directory=tmp_path, settings=settings, proxied=False
    ) as cluster:
        assert "300ms" in cluster.nodes[1].config.read_text()
        with cluster.client() as db:
            db.put(b"k", b"v")
        with pytest.raises(RuntimeError, match="proxied"):
            cluster.cut(1, 1)
        assert cluster.nodes[1].stop() == 0
        cluster.nodes[1].start()
        with cluster.client() as db:
            assert db.get(b"k") == b"v"
    assert (tmp_path / "n1").is_dir()


def test_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    cluster = Cluster(nodes=1, shards=1, directory=tmp_path, settings={"raft": {"heartbat": "1s"}})
    with pytest.raises(AssertionError, match="heartbeat"):
        cluster.__enter__()


def test_ranges_of_ports_are_never_given_twice() -> None:
    first = Claims(3, 2)
    second = Claims(3, 2)
    try:
        bases = [*first.bases.values(), *second.bases.values()]
        assert len(set(bases)) == 6
        assert all(base % RANGE == bases[0] % RANGE for base in bases)
    finally:
        first.close()
        second.close()
