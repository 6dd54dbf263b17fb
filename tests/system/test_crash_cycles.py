"""A node that is killed again and again, at points that are drawn at random: a short version of
`python -m shardnode.testing.crash_cycles`, and the proof that its model notices what it must."""

from __future__ import annotations

import shutil

import pytest

from shardnode.testing.cluster_node import ClusterNode
from shardnode.testing.crash_cycles import Cycles, Plan
from shardnode.testing.crash_model import Cell, Model


def test_nothing_is_lost_or_done_twice_over_crashes_at_any_point() -> None:
    result = Cycles(seed=11).run(8)
    assert result.problems == []
    assert result.compared >= 5
    assert result.outcomes["ok"] > 50  # as many as there is time for
    assert result.fired.total() >= 1


class Forgetful(Cycles):
    """Between two cycles the files of the one before come back, as if nothing had been since."""

    def _end(self, node: ClusterNode, plan: Plan) -> None:
        super()._end(node, plan)
        copy = node.data.with_name("copy")
        if self.result.cycles == 1:
            shutil.copytree(node.data, copy)
        elif self.result.cycles == 2:
            shutil.rmtree(node.data)
            copy.rename(node.data)


def test_lost_writes_are_found_and_the_seed_is_told() -> None:
    result = Forgetful(seed=1, points=["log.truncate.before"]).run(3)
    assert result.cycles == 3
    assert "seed 1, cycle 3, Plan(" in result.problems[0]
    assert "lost or brought back" in result.problems[0]


def written(value: bytes | None, version: int) -> Cell:
    cell = Cell()
    cell.trying(value)
    cell.done(value, version)
    return cell


@pytest.mark.parametrize(
    ("value", "version", "wrong"),
    [
        (b"old", 5, ""),
        (b"new", 9, ""),
        (b"old", 9, "applied twice"),
        (None, 0, "lost or brought back"),
        (b"strange", 9, "lost or brought back"),
        (b"new", 5, "a version went back"),
    ],
)
def test_model_allows_the_acknowledged_value_or_the_one_asked_for(
    value: bytes | None, version: int, wrong: str
) -> None:
    cell = written(b"old", 5)
    cell.trying(b"new")
    said = cell.found(value, version)
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)


def test_delete_that_was_not_answered_may_have_been_done_or_not() -> None:
    for found in ((None, 0), (b"old", 5)):
        cell = written(b"old", 5)
        cell.trying(None)
        assert cell.found(*found) == ""
        assert not cell.in_doubt


def test_what_was_refused_for_certain_must_not_be_there() -> None:
    cell = written(b"old", 5)
    cell.trying(b"new")
    cell.refused()
    assert cell.found(b"new", 9).startswith("lost or brought back")


def test_deleted_key_does_not_come_back() -> None:
    cell = written(b"old", 5)
    cell.trying(None)
    cell.done(None, 0)
    assert cell.found(b"old", 5).startswith("lost or brought back")


def test_model_names_keys_that_nobody_wrote_and_versions_that_fall() -> None:
    model = Model([b"a"])
    assert model.compare({b"b": (b"x", 1)}) == ["b'b' is there, and nobody wrote it"]
    assert model.acknowledged(0, before=0, version=7) == ""
    assert "gave version 7 after 7" in model.acknowledged(0, before=7, version=7)
