"""`verify` on what real nodes have written: every flip is found, and nothing that a crash left."""

from __future__ import annotations

from pathlib import Path
from random import Random

from shardnode.testing.verify_crashes import crashed_nodes, crashed_worlds
from shardnode.testing.verify_flips import KINDS, Result, flip_everywhere
from shardnode.testing.verify_source import write_directory


def test_flips_in_each_kind_of_file_of_a_real_node_are_found(tmp_path: Path) -> None:
    """`python -m shardnode.testing.verify_flips` does it 50 times."""
    result = Result()
    flip_everywhere(write_directory(tmp_path / "data"), 10, Random(11), result)
    assert result.problems == []
    assert set(result.found) == set(KINDS)


def test_what_crashes_of_a_real_node_leave_is_sound() -> None:
    """… and this 100 times."""
    found = list(crashed_nodes(6, 21))
    assert found == [""] * len(found)
    assert len(found) >= 5


def test_what_simulated_power_losses_leave_is_sound() -> None:
    found = list(crashed_worlds(3, 31))
    assert found == [""] * len(found)
    assert len(found) >= 10
