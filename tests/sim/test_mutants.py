"""The simulator finds every known bug: without these, two hundred passing seeds prove little."""

from __future__ import annotations

import pytest

from shardnode.sim import Plan, run_seed
from shardnode.sim.mutants import MUTANTS, Mutant, catch, edit


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_known_bug_is_caught(mutant: Mutant) -> None:
    result = catch(mutant, seeds=200)
    assert result.seed is not None, f"{mutant.name}: 200 seeds found nothing"
    run_seed(result.seed, Plan(favour=mutant.favour))  # the very same run is sound without it


@pytest.mark.parametrize("source", ["nothing like it", "twice\ntwice\n"])
def test_edit_without_exactly_one_place_is_an_error_and_not_a_catch(source: str) -> None:
    with pytest.raises(LookupError, match="should find its place once"):
        edit(source, Mutant("example", "raft.core", "twice\n", ""))
