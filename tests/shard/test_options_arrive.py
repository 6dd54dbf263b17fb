"""What a user sets in [raft] and [storage] reaches whoever acts on it, under its own name."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from shardnode.node.config import SETTINGS, Config, Setting
from shardnode.shard.boot import replica_settings
from shardnode.shard.effects import open_effects
from shardnode.shard.settings import WorkerSettings

OTHER: dict[str, Any] = {"engine": "memory"}
"""Values that differ from the default where one more would not do."""

PATHS = [
    path
    for path, each in SETTINGS.items()
    if each.section in ("raft", "storage") and not each.planned
]


def line_of(config: Config) -> WorkerSettings:
    """What a worker reads from its first line: the two sections go there as they are."""
    line = {
        "cluster_id": 1,
        "cluster": "main",
        "node": 1,
        "shard": 0,
        "shards": 1,
        "directory": "shard-0",
        "direct": "tcp://127.0.0.1:7500",
        "ipc": "ipc://s0",
        "engine": config.storage.engine,
        "raft": asdict(config.raft),
        "storage": asdict(config.storage),
    }
    return WorkerSettings.decode(orjson.dumps(line))


def what_acts(config: Config, folder: Path) -> list[object]:
    """Everything in a worker that a setting could change."""
    settings = line_of(config)
    effects = open_effects(str(folder), settings.engine, settings.storage)
    try:
        engine = effects.engine
        return [replica_settings(settings, "shard-0"), vars(engine)["_options"], type(engine)]
    finally:
        effects.close()


def changed(config: Config, each: Setting) -> Config:
    value = OTHER.get(each.key, each.default + 1 if isinstance(each.default, int) else None)
    section = replace(getattr(config, each.section), **{each.attribute: value})
    return replace(config, **{each.section: section})


@pytest.mark.parametrize("path", PATHS)
def test_setting_reaches_whoever_acts_on_it(path: str, tmp_path: Path) -> None:
    plain, other = Config(), changed(Config(), SETTINGS[path])
    assert other != plain
    assert what_acts(other, tmp_path / "other") != what_acts(plain, tmp_path / "plain")


def test_consensus_gets_the_very_values(tmp_path: Path) -> None:
    config = Config()
    for each in SETTINGS.values():
        if each.section == "raft":
            config = changed(config, each)
    replica: Any = what_acts(config, tmp_path)[0]
    assert {name: getattr(replica.raft, name) for name in asdict(config.raft)} == asdict(
        config.raft
    )
