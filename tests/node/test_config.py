"""Loading: who decides a setting, what is unknown, and that nothing hostile gets through."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardnode.node.config import SECTIONS, SETTINGS, Config
from shardnode.node.config_kinds import Address, Peer
from shardnode.node.config_load import FILE_BYTES_MAX, FLAGS, ConfigError, Flag, load_config
from shardnode.raft.types import Options
from shardnode.shard.boot import ReplicaSettings
from shardnode.storage.options import LogOptions
from tests.node.kit import config_of, load_text, problem_of, problems_of

SURFACE = """
[node]
id = 1
data = "./data"
listen = "127.0.0.1:7400"

[sharding]
enabled = true
shards = 4
local_shards = [0, 1, 2, 3]

[cluster]
name = "main"
peers = ["1@127.0.0.1:7400", "2@127.0.0.1:8400", "3@127.0.0.1:9400"]
"""


def test_nothing_given_means_one_unsharded_shard_here(tmp_path: Path) -> None:
    config = load_config(folder=tmp_path).config
    assert (config.shard_count, config.local_shard_ids) == (1, (0,))
    assert not config.sharding.enabled
    assert config.node.listen == Address("127.0.0.1", 7400)
    assert config.node.data == tmp_path / "data"
    assert config.http_address == Address("127.0.0.1", 7480)
    assert config.join_address is None


def test_documented_example_is_read_as_it_says(tmp_path: Path) -> None:
    config = config_of(tmp_path, SURFACE)
    assert config.node.data == tmp_path / "data"
    assert (config.shard_count, config.local_shard_ids) == (4, (0, 1, 2, 3))
    assert config.cluster.peers[1] == Peer(2, Address("127.0.0.1", 8400))


def test_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().node.id = 2  # type: ignore[misc]


GIVEN = list(product([False, True], repeat=3))


@pytest.mark.parametrize(("in_file", "in_environment", "in_flags"), GIVEN)
def test_flag_wins_over_environment_over_file_over_default(
    tmp_path: Path, in_file: bool, in_environment: bool, in_flags: bool
) -> None:
    loaded = load_text(
        tmp_path,
        "[node]\nid = 2\n" if in_file else "",
        environ={"SHARDNODE_NODE_ID": "3"} if in_environment else {},
        flags={"node_id": "4" if in_flags else None},
    )
    expected = 4 if in_flags else 3 if in_environment else 2 if in_file else 1
    names = {4: "--node-id", 3: "SHARDNODE_NODE_ID", 2: f"{tmp_path}/node.toml:2", 1: "default"}
    assert loaded.config.node.id == expected
    assert loaded.origins["node.id"].name == names[expected]


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_can_come_from_file_and_environment(path: str, tmp_path: Path) -> None:
    """The default's own text is accepted everywhere, and then no longer counts as the default."""
    from shardnode.node.config_write import toml_value

    each = SETTINGS[path]
    text = toml_value(each.kind.to_toml(each.default))
    loaded = load_text(tmp_path, f"[{each.section}]\n{each.key} = {text}\n")
    assert loaded.origins[path].name == f"{tmp_path}/node.toml:2"
    environ = {each.variable: text.strip('"')}
    assert load_config(environ=environ).origins[path].name == each.variable


def test_every_flag_sets_its_setting() -> None:
    flags: dict[str, Flag] = {
        "shards": 2,
        "data": "d",
        "listen": "127.0.0.1:7500",
        "node_id": "3",
        "http": "off",
    }
    config = load_config(flags={**flags, "peer": ("3@127.0.0.1:7500",)}).config
    assert (config.shard_count, config.node.id, config.http_address) == (2, 3, None)
    assert config.node.data == Path.cwd() / "d"
    assert config.cluster.peers == (Peer(3, Address("127.0.0.1", 7500)),)
    joined = load_config(flags={"join": "127.0.0.1:8400", "peer": ()}).config
    assert joined.join_address == Address("127.0.0.1", 8400)
    assert {*flags, "peer", "join"} == {*FLAGS}


def test_lists_in_the_environment_are_toml() -> None:
    peers = '["1@127.0.0.1:7400", "2@127.0.0.1:8400"]'
    environ = {"SHARDNODE_CLUSTER_PEERS": peers, "SHARDNODE_SHARDING_SHARDS": "2"}
    config = load_config(environ=environ | {"SHARDNODE_SHARDING_LOCAL_SHARDS": "[1]"}).config
    assert [peer.id for peer in config.cluster.peers] == [1, 2]
    assert config.local_shard_ids == (1,)


@pytest.mark.parametrize("text", ["1", "[1", "[1]\nother = 2", "[1] #\n[x]", ""])
def test_bad_list_in_the_environment_names_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^SHARDNODE_CLUSTER_PEERS: cluster.peers: expected"):
        load_config(environ={"SHARDNODE_CLUSTER_PEERS": text})


def test_unknown_variables_are_ignored() -> None:
    environ = {"SHARDNODE_CONNECT": "x", "SHARDNODE_NODE_NONSENSE": "x", "SHARDNODE_PYTHON": "x"}
    assert load_config(environ=environ).config == load_config().config


def test_paths_are_relative_to_where_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "node.toml"
    file.write_text('[node]\ndata = "../var"\n')
    assert load_config(file, folder=tmp_path / "x").config.node.data == tmp_path / "var"
    by_flag = load_config(file, flags={"data": "d"}, folder=tmp_path / "x")
    assert by_flag.config.node.data == tmp_path / "x" / "d"


def test_home_directory_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config(flags={"data": "~/d"}).config.node.data == tmp_path / "d"


@pytest.mark.parametrize(
    ("text", "environ", "flag", "shards"),
    [
        ("", {}, "4", 4),
        ("enabled = false\nshards = 2", {}, "4", 4),
        ("enabled = false\nshards = 2", {}, None, 1),
        ("shards = 2", {}, None, 2),
        ("enabled = false", {"SHARDNODE_SHARDING_SHARDS": "3"}, None, 3),
        ("shards = 2", {"SHARDNODE_SHARDING_ENABLED": "false"}, None, 1),
        ("enabled = true", {}, None, 1),
        ("enabled = false\nshards = 4\nlocal_shards = [0, 1, 2, 3]", {}, None, 1),
    ],
)
def test_asking_for_shards_turns_sharding_on_unless_it_is_off_beside_it(
    tmp_path: Path, text: str, environ: dict[str, str], flag: str | None, shards: int
) -> None:
    toml = f"[sharding]\n{text}\n"
    config = load_text(tmp_path, toml, environ=environ, flags={"shards": flag}).config
    assert config.shard_count == shards


def test_node_finds_its_address_among_the_peers(tmp_path: Path) -> None:
    text = '[cluster]\npeers = ["1@127.0.0.1:7400", "2@127.0.0.1:8400"]\n'
    config = load_text(tmp_path, text, flags={"node_id": "2"}).config
    assert config.node.listen == config.advertised == Address("127.0.0.1", 8400)
    assert config.http_address == Address("127.0.0.1", 8480)


def test_free_ports_are_asked_for_together() -> None:
    config = load_config(flags={"listen": "127.0.0.1:0"}).config
    assert config.http_address == Address("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[node]\nidd = 1", "node.toml:2: node.idd: unknown key; did you mean `id`?"),
        ("[sharding]\nshard = 1", "did you mean `shards`?"),
        ("[raft]\nelection_timeout_ms = 1", "did you mean `election_timeout`?"),
        ("[raft]\nzzz = 1", "section [raft] has election_timeout, heartbeat"),
        ("[node]\nshards = 4", "did you mean `shards` in section [sharding]?"),
        ("shards = 4", "node.toml:1: shards: unknown key; did you mean `shards` in section"),
        ("[shardin]\nshards = 4", "node.toml:1: shardin: unknown section; did you mean [sharding]"),
        ("[zzz]\nx = 1", "the sections are node, sharding, cluster"),
        ("node = 4", "node.toml:1: node: expected a section [node], found 4"),
        ("[[node]]\nid = 4", "node.toml:1: node: expected a section [node]"),
        ("node.idd = 4", "node.toml:1: node.idd: unknown key"),
        ("[node]\nid.x = 4", "node.id: expected a whole number from 1 to"),
        ('[node]\n"idd" = 4', "node.toml:2: node.idd"),
    ],
)
def test_unknown_name_is_refused_with_its_line_and_the_nearest_one(
    text: str, said: str, tmp_path: Path
) -> None:
    assert said in problem_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[node]\nid = "1"', "node.toml:2: node.id: expected a whole number from 1 to 28147497"),
        ('[node]\nid = "1"', 'found "1" (text); write it without quotes'),
        ("[node]\nid = 0", "found 0"),
        ("[node]\nid = true", "found true (true or false)"),
        ("[node]\nid = 1.0", "found 1.0 (a fraction)"),
        ("[node]\nid = 2001-01-01", "(a date or time)"),
        ("[node]\nid = 99999999999999999999999999999999999999999999", "found a number of more"),
        ("[sharding]\nshards = 0", "expected a whole number from 1 to 100, found 0"),
        ("[sharding]\nshards = 101", "expected a whole number from 1 to 100, found 101"),
        ("[sharding]\nenabled = 1", "expected true or false, found 1 (a number)"),
        ("[sharding]\nlocal_shards = 0", "write it as [0, 1, 2]"),
        ("[sharding]\nlocal_shards = [0, true]", "found true in it"),
        ("[sharding]\nlocal_shards = [0, 0]", "found 0 twice"),
        ("[raft]\nheartbeat = 100", "found 100 (a number); write a number and a unit, in quotes"),
        ('[raft]\nheartbeat = "1h"', 'expected a duration from 5ms to 10s, found "1h"'),
        ('[storage]\nsegment_bytes = "64M"', 'did you mean "64MiB" or "64MB"?'),
        ("[storage]\nsegment_bytes = -1", "expected a size from 1MiB to 4GiB, found -1"),
        ('[storage]\nengine = "rocks"', 'expected "lmdb" or "memory", found "rocks"'),
        ('[limits]\nvalue_bytes = "5MiB"', "expected a size from 1B to 4MiB"),
        ('[node]\ncpus = "0-x"', 'expected "all" or "none" or CPUs such as "0-3,6"'),
        ('[node]\nlisten = "7400"', "add a port, as in 127.0.0.1:7400"),
        ('[http]\nlisten = "on"', 'expected "auto" or "off" or HOST:PORT, found "on"'),
        ('[node]\ndata = ""', "expected a path"),
        ('[node]\ndata = "a\\u0000b"', "expected a path"),
        ('[cluster]\nname = "a b"', "expected a name of letters"),
        ('[cluster]\npeers = ["1@h:1", "1@i:1"]', "every node id once, found 1@h:1 and 1@i:1"),
        ('[cluster]\npeers = ["1@h:1", "2@h:1"]', "every address once"),
        ("[cluster]\npeers = [1]", "found 1 in it"),
    ],
)
def test_wrong_value_is_refused_with_what_was_expected(
    text: str, said: str, tmp_path: Path
) -> None:
    assert said in problem_of(tmp_path, text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = '[node]\nid = 0\nlisten = "x"\n[stroage]\n'
    lines = [problem.split(": ")[0] for problem in problems_of(tmp_path, text)]
    assert lines == ["node.toml:2", "node.toml:3", "node.toml:4"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[node]\n\xff\xfe = 1\n", "node.toml:2: expected UTF-8, found byte 0xff"),
        (b"[node\nid = 1", "node.toml:1: expected TOML"),
        (b"[node]\nid = \n", "node.toml:2: expected TOML"),
        (b"[node]\nid = 1\nid = 2\n", "expected TOML"),
        (b"\0", "expected TOML"),
        (b"[node]\nid = " + b"9" * 5000, "expected TOML within reason"),
        (b"x = " + b"[" * 100_000, "expected TOML"),
        (b"x = " + b"{a=" * 20_000, "expected TOML"),
        (b"#" * (FILE_BYTES_MAX + 1), "at most 1048576 bytes"),
        ("[node]\nid = 1".encode("utf-16"), "expected UTF-8"),
    ],
    ids=range(10),
)
def test_hostile_file_is_a_typed_error(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in problem_of(tmp_path, data)


WORDS = st.sampled_from([*SECTIONS, *(each.key for each in SETTINGS.values()), "x", "\0", "é"])
SOUP = st.lists(WORDS | st.sampled_from(["[", "]", "=", "\n", '"', "'", "1", ".", "{", "}", ","]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | SOUP.map(lambda words: "".join(words).encode()))
def test_any_bytes_are_a_configuration_or_a_typed_error(tmp_path: Path, data: bytes) -> None:
    with suppress(ConfigError):
        load_text(tmp_path, data)


def test_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert load_text(tmp_path, b"\xef\xbb\xbf[node]\nid = 7\n").config.node.id == 7


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shardnode config init"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("name", [".", "a\0b", "x" * 5000])
def test_unreadable_file_is_a_typed_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a"):
        load_config(tmp_path / name)


def test_bytes_that_are_no_text_in_the_environment_are_a_typed_error() -> None:
    for each in SETTINGS.values():
        with pytest.raises(ConfigError, match=each.variable):
            load_config(environ={each.variable: os.fsdecode(b"\xff\xfe")})


def test_defaults_are_those_of_the_rooms_that_use_them() -> None:
    """node/ may not import them, so this is what keeps them equal."""
    config, raft, log = Config(), Options(), LogOptions()
    for part in fields(config.raft):  # the same names, so that a worker can pass them on
        assert getattr(config.raft, part.name) == getattr(raft, part.name)
    for name in ("segment_bytes", "index_every_bytes", "zero_ahead_bytes"):
        assert getattr(config.storage, name) == getattr(log, name)
    replica = ReplicaSettings.__dataclass_fields__
    assert config.storage.snapshot_entries == replica["snapshot_every_entries"].default
    assert config.storage.keep_entries == replica["keep_entries"].default


def test_loading_needs_nothing_slow() -> None:
    code = "import sys, shardnode.node.config_load; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"asyncio", "difflib", "lmdb", "msgpack", "psutil", "rich", "zmq"}
    assert not slow & {*done.stdout.split()}
