"""The files that ship, and the text that is written beside the data."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode import configs
from shardnode.cli.config import EXAMPLES
from shardnode.node.config import SECTIONS, SETTINGS, Config
from shardnode.node.config_load import Flag, load_config
from shardnode.node.config_write import effective_toml, reference_toml, show_toml, toml_value
from tests.node.kit import load_text
from tests.node.make_reference import REFERENCE

ROOT = Path(__file__).resolve().parents[2]


def test_reference_is_written_from_the_settings() -> None:
    remedy = "run `.venv/bin/python -m tests.node.make_reference` and read the difference"
    assert REFERENCE.read_text(encoding="utf-8") == reference_toml(), remedy


def test_reference_names_every_setting_with_its_default() -> None:
    tree = tomllib.loads(configs.example("reference"))
    named = {f"{section}.{key}": value for section in tree for key, value in tree[section].items()}
    assert list(named) == list(SETTINGS)
    for path, value in named.items():
        assert SETTINGS[path].kind.from_toml(value) == SETTINGS[path].default


def test_reference_loads_as_the_defaults(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, configs.example("reference"))
    assert loaded.config == load_config(folder=tmp_path).config


def test_every_setting_has_a_reason_above_it() -> None:
    lines = configs.example("reference").splitlines()
    for each in SETTINGS.values():
        assert re.fullmatch(r"[A-Z].*\.|[a-z]+: .*\.", each.reason), each.path
    keys = [n for n, line in enumerate(lines) if re.match(r"[a-z_]+ =", line)]
    assert len(keys) == len(SETTINGS)
    assert all(lines[n - 1].startswith("# ") for n in keys)


def test_sections_are_the_parts_of_a_config() -> None:
    assert [type(getattr(Config(), name)) for name in SECTIONS] == list(SECTIONS.values())


def test_examples_are_the_files_of_the_folder() -> None:
    assert {path.stem for path in (ROOT / "configs").glob("*.toml")} == {*configs.EXAMPLES}
    assert EXAMPLES == configs.EXAMPLES, "the command repeats them to start quickly"


@pytest.mark.parametrize(
    ("name", "nodes", "shards"),
    [("single", 1, 1), ("sharded", 1, 4), ("three-node", 3, 2), ("reference", 1, 1)],
)
def test_example_says_what_its_name_promises(
    name: str, nodes: int, shards: int, tmp_path: Path
) -> None:
    ports = set()
    for node_id in range(1, nodes + 1):
        flags: dict[str, Flag] = {"node_id": node_id, "data": f"data-{node_id}"}
        config = load_text(tmp_path, configs.example(name), flags=flags).config
        assert (config.shard_count, max(1, len(config.cluster.peers))) == (shards, nodes)
        ports.add(config.node.listen.port)
    assert len(ports) == nodes


def test_single_example_is_what_a_start_without_a_file_does(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, configs.example("single"))
    assert loaded.config == load_config(folder=tmp_path).config


FLAGS = {"shards": "3", "node_id": "2", "peer": ("2@127.0.0.1:9000", "5@127.0.0.1:7000")}


def test_effective_configuration_starts_the_same_node(tmp_path: Path) -> None:
    loaded = load_config(flags={**FLAGS, "data": str(tmp_path), "http": "off"})
    text = effective_toml(loaded)
    assert load_text(tmp_path, text).config == loaded.config
    assert "shards = 3  # --shards\n" in text
    assert 'heartbeat = "100ms"  # default\n' in text


def test_effective_configuration_still_works_after_a_move(tmp_path: Path) -> None:
    text = effective_toml(load_config(flags={"data": "somewhere"}))
    assert load_text(tmp_path, text).config.node.data == tmp_path


def test_odd_path_does_not_break_what_is_written(tmp_path: Path) -> None:
    odd = 'a"b\\c\n[node]\x7f\u2028é'
    loaded = load_config(flags={"data": odd}, folder=tmp_path)
    assert load_text(tmp_path, show_toml(loaded, origin=True)).config == loaded.config
    tomllib.loads(effective_toml(loaded))


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans())
def test_any_value_is_read_back_as_written(value: str | int | bool) -> None:
    assert tomllib.loads(f"v = {toml_value(value)}") == {"v": value}
