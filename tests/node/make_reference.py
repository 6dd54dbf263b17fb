"""Writes `configs/reference.toml` from the settings: `python -m tests.node.make_reference`."""

from __future__ import annotations

from pathlib import Path

from shardnode.node.config_write import reference_toml

REFERENCE = Path(__file__).resolve().parents[2] / "configs" / "reference.toml"

if __name__ == "__main__":
    REFERENCE.write_text(reference_toml(), encoding="utf-8")
