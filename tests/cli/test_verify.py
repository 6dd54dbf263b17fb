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


def test_rows_of_inspect_are_lines_of_json(sound: Path) -> None:
    done = run("inspect", str(sound), "--shard", "0", "--key", "key/1/1", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row"] for row in rows] == ["change", "change", "key"]
    assert rows[-1]["value"] == "after the snapshot"
    assert rows[0]["time"].endswith("Z")


def test_inspect_takes_keys_in_an_encoding_and_stops_at_its_limit(sound: Path) -> None:
    key = b"key/1/1".hex()
    done = run("inspect", str(sound), "--key", key, "--encoding", "hex", "--limit", "1")
    assert done.stdout.count(b"\n") == 1
    assert b"value=" + (b"v" * 9).hex().encode() in done.stdout


@pytest.mark.parametrize("partition", ["keys", "0/0/5"])
def test_inspect_knows_partitions_by_name(sound: Path, partition: str) -> None:
    done = run("inspect", str(sound), "--partition", partition, "--limit", "1")
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 1)


def test_inspect_refuses_a_partition_that_is_none(sound: Path) -> None:
    done = run("inspect", str(sound), "--partition", "orders", "--json")
    assert done.returncode == 2
    assert "STREAM/TOPIC/PARTITION" in error_of(done)["message"]


def test_inspect_ends_with_7_where_a_file_is_damaged(data: Path) -> None:
    flip(data / "shard-1" / "superblock.a", 20)
    done = run("inspect", str(data / "shard-1" / "superblock.a"), "--json")
    assert done.returncode == 7
    assert error_of(done)["code"] == "corrupt"


def test_inspect_of_nothing_is_not_found(tmp_path: Path) -> None:
    assert run("inspect", str(tmp_path / "nothing")).returncode == 3


def test_doctor_ends_with_7_when_something_must_be_done(data: Path) -> None:
    words = ("doctor", "--data", str(data), "--shards", "2", "--listen", "127.0.0.1:0", "--json")
    done = run(*words)
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["healthy"] else 7)
    flip(data / "node.json", 30)
    done = run(*words)
    assert done.returncode == 7
    problems = [each for each in json.loads(done.stdout)["findings"] if each["state"] == "problem"]
    assert "directory" in {each["about"] for each in problems}
    assert all(each["do"] for each in problems)


def test_doctor_writes_lines_for_people(data: Path) -> None:
    done = run("doctor", "--data", str(data), "--shards", "3", "--listen", "127.0.0.1:0")
    assert done.returncode == 7
    assert b"PROBLEM  directory" in done.stdout
    assert "→ start with --shards 2".encode() in done.stdout


def test_repair_says_what_it_would_do_and_does_it(data: Path) -> None:
    flip(data / "shard-1" / "superblock.a", 20)
    words = ("repair", str(data), "--quarantine", "shard-1/superblock.a")
    done = run(*words, "--dry-run")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"would set aside: shard-1/superblock.a\n" in done.stdout
    assert run("verify", str(data)).returncode == 7
    done = run(*words, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["done"], told["lost"]) == (0, True, None)
    assert told["set_aside"] == ["shard-1/quarantine/superblock.a"]
    assert run("verify", str(data)).returncode == 0


def test_repair_of_what_is_sound_or_lost_for_good_is_refused(data: Path) -> None:
    words = ("repair", str(data), "--quarantine", "shard-1/log/00000000000000000003.seg")
    assert run(*words).returncode == 2
    flip(data / "shard-1" / "log" / "00000000000000000003.seg", 300)
    done = run(*words)
    assert done.returncode == 2
    assert b"go on without it: --accept-loss" in done.stderr
    assert run(*words, "--accept-loss").returncode == 0
    assert run("verify", str(data)).returncode == 0


def test_repair_tells_what_else_is_damaged(data: Path) -> None:
    flip(data / "shard-1" / "superblock.a", 20)
    flip(data / "shard-0" / "superblock.a", 20)
    done = run("repair", str(data), "--quarantine", "shard-1/superblock.a")
    assert done.returncode == 7
    assert b"still damaged: shard-0/superblock.a" in done.stdout
