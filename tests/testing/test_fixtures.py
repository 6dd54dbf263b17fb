"""The fixtures as users have them: in a folder of their own, found by pytest, leaving nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shardnode import Unavailable
from shardnode.node.config import Config, Http
from shardnode.testing import NodeUnderTest

USERS_TEST = """
import pytest
from pathlib import Path


def test_node_serves(shardnode_node):
    with shardnode_node.client() as db:
        db.put(b"user:1", b"Ada")
        assert db.get(b"user:1") == b"Ada"


@pytest.mark.shardnode(shards=2)
def test_shards_are_asked_for_by_a_mark(shardnode_node):
    assert [row["id"] for row in shardnode_node.status()["shards"]] == [0, 1]
    Path("pids").write_text(" ".join(str(shardnode_node.pid(shard)) for shard in (0, 1)))


@pytest.mark.shardnode(nodes=3, shards=1)
def test_cluster_survives_one_of_three(shardnode_cluster):
    with shardnode_cluster.client(timeout=20) as db:
        db.put(b"k", b"v")
        shardnode_cluster.nodes[shardnode_cluster.leader()].kill()
        assert db.get(b"k") == b"v"


def test_simulator_runs_a_seed(shardnode_sim):
    report = shardnode_sim(3, steps_min=200, operations_min=5, faults_min=0)
    assert report.seed == 3
    assert report.operations >= 5


def test_failure_takes_the_node_down_all_the_same(shardnode_node):
    Path("pids").write_text(Path("pids").read_text() + f" {shardnode_node.pid(0)}")
    raise RuntimeError("the user's own")
"""


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run of its own. The plugin is named, because the environment of these tests may be older
    than its entry point; `tests/test_packaging.py` shows that a wheel needs no naming."""
    command = [sys.executable, "-P", "-m", "pytest", "-p", "shardnode.testing.fixtures"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--strict-markers", *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_fixtures_work_in_a_foreign_folder_and_leave_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    done = pytest_in(tmp_path, "-q")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "the user's own" in done.stdout
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_plugin_shows_its_fixtures_and_its_mark(tmp_path: Path) -> None:
    shown = pytest_in(tmp_path, "--fixtures").stdout + pytest_in(tmp_path, "--markers").stdout
    for name in ("shardnode_node", "shardnode_cluster", "shardnode_sim", "@pytest.mark.shardnode("):
        assert name in shown


def test_plugin_costs_a_run_that_does_not_use_it_nothing() -> None:
    code = "import sys, shardnode.testing.fixtures; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "shardnode.testing.fixtures" in loaded
    ours = {name for name in loaded if name.startswith("shardnode.")}
    assert ours == {"shardnode.testing", "shardnode.testing.fixtures"}
    assert not loaded & {"zmq", "msgpack", "lmdb"}


def test_killed_worker_comes_back_with_everything() -> None:
    with NodeUnderTest(shards=2) as node, node.client() as db:
        db.put_many({b"%d" % n: b"v" for n in range(50)})
        before = node.pid(1)
        node.kill(1)
        node.wait_ready()
        assert node.pid(1) not in (before, None)
        assert db.get_many([b"%d" % n for n in range(50)]) == [b"v"] * 50


def test_node_starts_again_on_its_files_and_its_port() -> None:
    with NodeUnderTest() as node:
        address = node.address
        with node.client() as db:
            db.put(b"kept", b"yes")
        node.stop()
        node.stop()
        node.start()
        assert node.address == address
        with node.client() as db:
            assert db.get(b"kept") == b"yes"
        folder = node.folder
        assert "router" in node.log
    assert not folder.exists()


def test_given_folder_stays_and_settings_are_followed(tmp_path: Path) -> None:
    config = Config(http=Http(listen="off"))
    with NodeUnderTest(folder=tmp_path / "mine", config=config) as node:
        assert node.http == ""
        assert node.data == tmp_path / "mine" / "data"
    assert (tmp_path / "mine" / "data" / "node.json").exists()


def test_node_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with NodeUnderTest(folder=tmp_path) as first:
        second = NodeUnderTest(folder=tmp_path)
        with pytest.raises(Exception, match="in use"):
            second.start()
        second.stop()
        first.wait_ready()
    with pytest.raises(Unavailable), first.client(timeout=0.3) as db:
        db.get(b"a")
