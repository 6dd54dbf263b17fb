"""Every test of this folder runs over files and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardnode.shard.effects import Effects
from shardnode.storage.engine import Engine, EngineOptions
from tests.engine.kit import SMALL, Log, make_engine


@pytest.fixture(params=["memory", "lmdb"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def new_engine(kind: str, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(options: EngineOptions = SMALL) -> Engine:
        made.append(make_engine(kind, tmp_path / f"kv{len(made)}", options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def log(new_engine: Callable[..., Engine]) -> Log:
    return Log(Effects(new_engine()))
