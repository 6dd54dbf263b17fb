"""`verify`, `inspect` and `repair` as commands: exit codes, and what goes where."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.kit import error_of, run, run_on_terminal
from tests.offline.kit import flip, write_node


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_node(tmp_path_factory.mktemp("cli") / "data")


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def test_sound_directory_is_told_with_what_it_holds(sound: Path) -> None:
    done = run("verify", str(sound))
    assert (done.returncode, done.stderr) == (0, b"")
    first, *shards = done.stdout.decode().splitlines()
    assert first.startswith(f"{sound}: sound (")
    assert [line.split()[0] for line in shards] == ["shard-0:", "shard-1:"]
    assert "243 keys as of 55" in shards[0]


def test_damage_is_told_with_file_place_and_meaning(data: Path) -> None:
    flip(data / "shard-1" / "superblock.a", 20)
    done = run("verify", str(data))
    assert (done.returncode, done.stderr) == (7, b"")
    assert b"DAMAGED, 1 finding" in done.stdout
    assert b"damaged: shard-1/superblock.a at byte 0: it does not match its checksum" in done.stdout


def test_verdict_is_one_object_in_json(data: Path) -> None:
    flip(data / "shard-1" / "superblock.a", 20)
    done = run("verify", str(data), "--json")
    assert (done.returncode, done.stderr) == (7, b"")
    verdict = json.loads(done.stdout)
    assert (verdict["sound"], len(verdict["shards"])) == (False, 2)
    assert verdict["damage"][0]["file"] == "shard-1/superblock.a"
    assert verdict["damage"][0]["offset"] == 0
    assert {"what", "means"} < verdict["damage"][0].keys()
    assert verdict["bytes"] > 100_000


def test_bar_is_for_terminals_alone(sound: Path) -> None:
    code, shown = run_on_terminal(["verify", str(sound)], which="stderr")
    assert code == 0
    assert b"reading" in shown


def test_what_is_no_directory_of_a_node_is_not_found(tmp_path: Path) -> None:
    done = run("verify", str(tmp_path), "--json")
    assert done.returncode == 3
    assert error_of(done)["code"] == "not_found"


def test_directory_that_is_in_use_is_refused(data: Path) -> None:
    with (data / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("verify", str(data))
    assert done.returncode == 1
    assert b"in use by another process" in done.stderr
