"""A sound directory for the tests of this folder, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.offline.kit import write_node


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return write_node(tmp_path_factory.mktemp("offline") / "data")


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "data"))
