"""`shardnode config`: data on stdout, the rest on stderr, and the documented exit codes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardnode import configs
from shardnode.cli.config import command
from shardnode.node.config import SETTINGS
from shardnode.node.config_load import load_config

BAD = '[node]\nidd = 1\n[sharding]\nshards = "four"\n'


def run(*words: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(command, words, env=environ)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for each in SETTINGS.values():
        monkeypatch.delenv(each.variable, raising=False)


def test_show_prints_a_file_that_could_be_started(tmp_path: Path) -> None:
    done = run("show", "--shards", "4", "--http", "off")
    assert (done.exit_code, done.stderr) == (0, "")
    Path("shown.toml").write_text(done.stdout)
    shown = load_config(tmp_path / "shown.toml").config
    assert shown == load_config(flags={"shards": "4", "http": "off"}).config
    assert "#" not in done.stdout


def test_show_origin_says_who_decided() -> None:
    Path("node.toml").write_text('[cluster]\nname = "mine"\n')
    environ = {"SHARDNODE_RAFT_HEARTBEAT": "50ms"}
    done = run("show", "--origin", "--config", "node.toml", "--shards", "4", environ=environ)
    assert 'name = "mine"  # node.toml:2\n' in done.stdout
    assert 'heartbeat = "50ms"  # SHARDNODE_RAFT_HEARTBEAT\n' in done.stdout
    assert "shards = 4  # --shards\n" in done.stdout
    assert "id = 1  # default\n" in done.stdout


@pytest.mark.parametrize("words", [["--json", "show"], ["show", "--json"]])
def test_json_is_one_object_wherever_the_flag_stands(words: list[str]) -> None:
    done = run(*words, "--peer", "1@127.0.0.1:7400")
    tree = json.loads(done.stdout)
    assert tree["cluster"]["peers"] == ["1@127.0.0.1:7400"]
    assert tree == tomllib.loads(run("show", "--peer", "1@127.0.0.1:7400").stdout)


def test_json_with_origin_has_both() -> None:
    tree = json.loads(run("show", "--json", "--origin", "--node-id", "2").stdout)
    assert tree["node"]["id"] == {"value": 2, "origin": "--node-id"}


def test_check_of_a_good_file() -> None:
    Path("good.toml").write_text(configs.example("sharded"))
    done = run("check", "good.toml")
    assert done.exit_code == 0
    assert done.stdout == "good.toml: ok: node 1 of cluster main, shards: 4, on 127.0.0.1:7400\n"
    told = json.loads(run("check", "good.toml", "--json").stdout)
    assert (told["ok"], told["file"], told["shards"]) == (True, "good.toml", 4)


def test_check_of_a_bad_file_tells_everything_and_ends_with_2() -> None:
    Path("bad.toml").write_text(BAD)
    done = run("check", "bad.toml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "Error: bad.toml:2: node.idd: unknown key; did you mean `id`?",
        'bad.toml:4: sharding.shards: expected a whole number from 1 to 100, found "four" (text)',
    ]


def test_error_in_json_is_one_object_on_stderr() -> None:
    Path("bad.toml").write_text(BAD)
    done = run("check", "--json", "bad.toml")
    assert (done.exit_code, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["retryable"]) == ("invalid_request", False)
    assert {*error} == {"code", "message", "retryable"}


def test_check_is_about_the_file_alone() -> None:
    Path("good.toml").write_text("")
    assert run("check", "good.toml", environ={"SHARDNODE_NODE_ID": "x"}).exit_code == 0


@pytest.mark.parametrize("words", [["check", "none.toml"], ["show", "--config", "none.toml"]])
def test_missing_file_ends_with_2(words: list[str]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert "shardnode config init" in done.stderr


def test_bad_flag_is_named() -> None:
    done = run("show", "--shards", "101")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: --shards: sharding.shards: expected a whole number")


@pytest.mark.parametrize("example", configs.EXAMPLES)
def test_init_writes_a_file_that_check_accepts(example: str) -> None:
    done = run("init", "--example", example)
    assert (done.exit_code, done.stdout) == (0, "shardnode.toml\n")
    assert "shardnode start --config shardnode.toml" in done.stderr
    assert Path("shardnode.toml").read_text() == configs.example(example)
    assert run("check", "shardnode.toml").exit_code == 0


def test_init_never_replaces_a_file() -> None:
    Path("mine.toml").write_text("mine")
    done = run("init", "mine.toml")
    assert (done.exit_code, done.stdout) == (6, "")
    assert Path("mine.toml").read_text() == "mine"


def test_init_where_nothing_can_be_written_ends_with_1() -> None:
    done = run("init", "none/mine.toml", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"]["code"] == "shardnode_error"


def test_init_to_stdout() -> None:
    done = run("init", "-", "--example", "three-node")
    assert (done.stdout, done.stderr) == (configs.example("three-node"), "")


@pytest.mark.parametrize("words", [["-h"], ["show", "-h"], ["check", "-h"], ["init", "--version"]])
def test_help_and_version_are_everywhere(words: list[str]) -> None:
    assert run(*words).exit_code == 0
