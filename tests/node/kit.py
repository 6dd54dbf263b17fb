"""Short ways to load a configuration from a text, and to see what is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from shardnode.node.config import Config
from shardnode.node.config_load import ConfigError, Flag, Loaded, load_config


def load_text(
    folder: Path,
    text: str | bytes,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Flag] | None = None,
) -> Loaded:
    """Loads `text` as the file `node.toml` of a folder."""
    file = folder / "node.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(file, environ=environ, flags=flags, folder=folder)


def config_of(folder: Path, text: str) -> Config:
    return load_text(folder, text).config


def problems_of(folder: Path, text: str | bytes) -> list[str]:
    """What is said about a text, one line each, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        load_text(folder, text)
    assert caught.value.code == "invalid_request"
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def problem_of(folder: Path, text: str | bytes) -> str:
    (problem,) = problems_of(folder, text)
    return problem
