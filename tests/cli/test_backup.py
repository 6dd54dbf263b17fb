"""`shardnode backup` and `restore` as people type them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from shardnode.cli.moments import Moment, Rate
from tests.cli.conftest import Kv
from tests.cli.kit import error_of, run

ID = re.compile(rb"\d{8}T\d{6}Z-[0-9a-f]{4}")


def test_a_backup_prints_its_id_and_can_be_listed_verified_and_restored(
    shardnode: Kv, prefix: str, tmp_path: Path
) -> None:
    shardnode("kv", "put", f"{prefix}k", "v")
    place = str(tmp_path / "b")
    done = shardnode("backup", place)
    assert done.returncode == 0
    assert ID.fullmatch(done.stdout.strip())
    assert b"2 shards of cluster main are in" in done.stderr
    first = done.stdout.strip().decode()
    told = json.loads(shardnode("backup", "--rate", "50MB", place, "--full", "--json").stdout)
    assert [shard["id"] for shard in told["shards"]] == [0, 1]
    listed = shardnode("backup", "list", place)
    assert [line.split()[0].decode() for line in listed.stdout.splitlines()] == [
        "backup",
        first,
        told["backup"],
    ]
    both = json.loads(shardnode("backup", "--json", "list", place).stdout)
    assert [each["backup"] for each in both["backups"]] == [first, told["backup"]]
    checked = shardnode("backup", "verify", place)
    assert (checked.returncode, checked.stdout) == (0, b"")
    assert b"2 backups in" in checked.stderr
    assert b"sound" in checked.stderr
    data = str(tmp_path / "r")
    restored = shardnode("restore", place, "--data", data, "--cluster", "drill", "--node-id", "3")
    assert restored.returncode == 0
    assert re.fullmatch(rb"(shard \d as of index \d+\n){2}", restored.stdout)
    assert b"shardnode start --data" in restored.stderr
    assert b"--shards 2 --node-id 3 (cluster.name = 'drill')" in restored.stderr
    again = shardnode("restore", place, "--data", data, "--json")
    assert error_of(again)["code"] == "invalid_request"


def test_a_destination_may_be_called_like_a_verb(shardnode: Kv, tmp_path: Path) -> None:
    place = tmp_path / "list"
    done = run("backup", "--connect", "127.0.0.1:1", "./list", cwd=tmp_path)
    assert done.returncode == 4, "it is a destination, and nobody answers"
    assert b"nothing listens" in done.stderr
    assert b"the same command goes on where this one stopped" in done.stderr
    assert shardnode("backup", str(place)).returncode == 0
    assert shardnode("backup", "list", str(place)).returncode == 0
    assert run("backup", "-h").returncode == 0
    assert b"Show the complete backups" in run("backup", "list", "-h").stdout
    assert run("backup").returncode == 2


def test_an_empty_place_has_nothing_to_restore(tmp_path: Path) -> None:
    for words in (("restore", str(tmp_path / "b"), "--data", str(tmp_path / "r")),):
        done = run(*words, "--json")
        assert done.returncode == 3
        assert "found no manifest" in error_of(done)["message"]
    assert run("backup", "verify", str(tmp_path / "b")).returncode == 3
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to-time", "yesterday"), b"expected a time such as"),
        (("--to-time", "2030-01-01T00:00:00"), b"with its zone"),
        (("--to-time", "-10"), b"expected a time such as"),
        (("--to-index", "0"), b"expected SHARD:INDEX"),
        (("--to-index", "0:1,x:2"), b"expected SHARD:INDEX, such as 0:1200, found x:2"),
        (("--node-id", "0"), b"Invalid value"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: bytes
) -> None:
    done = run("restore", str(tmp_path / "b"), "--data", str(tmp_path / "r"), *words)
    assert done.returncode == 2
    assert said in b" ".join(done.stderr.split())


def test_moments_and_rates() -> None:
    moment, rate = Moment(), Rate()
    exact = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert moment.convert("2030-01-02T03:04:05Z", None, None) == exact
    assert moment.convert("2030-01-02T05:04:05+02:00", None, None) == exact
    moment_ago = moment.convert("-10m", None, None)
    assert timedelta(minutes=10) <= datetime.now(UTC) - moment_ago < timedelta(minutes=11)
    assert rate.convert("50MB", None, None) == 50_000_000
    assert rate.convert("max", None, None) == 0
    for wrong in ("0", "fast", "-5MB"):
        with pytest.raises(click.BadParameter):
            rate.convert(wrong, None, None)
