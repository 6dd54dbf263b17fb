"""The simulator finds every known bug: without these, two hundred passing seeds prove little.

The seed that finds each is kept in `sim/kept_seeds.py`; the search for it is `scripts/mutants`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardnode.sim import Plan, hunt, run_seed
from shardnode.sim.__main__ import main
from shardnode.sim.hunt import Found, catch, edit, replay, text_of
from shardnode.sim.kept_seeds import KEPT
from shardnode.sim.mutants import MUTANTS, Mutant
from tests.sim.test_seeds import SEEDS

NAME = MUTANTS[1].name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_known_bug_is_caught(mutant: Mutant) -> None:
    found = replay(mutant)
    assert found is not None, (
        f"seed {KEPT[mutant.name][0] if mutant.name in KEPT else '(none kept)'} does not find "
        f"{mutant.name!r}. If a change made other runs of the seeds, find and keep another: "
        f'scripts/mutants --mutant "{mutant.name}" --write'
    )
    if mutant.favour or found.seed >= SEEDS:  # else `test_seeds` runs it without the mistake
        run_seed(found.seed, Plan(favour=mutant.favour))


def test_no_seeds_catch_nothing() -> None:
    assert catch(MUTANTS[0], range(0)) is None


def test_kept_seeds_are_as_the_command_writes_them() -> None:
    assert [name for name in (m.name for m in MUTANTS) if name in KEPT] == [*KEPT]
    assert hunt.FILE.read_text() == text_of(KEPT)


@pytest.mark.parametrize(
    ("kept", "told"), [({NAME: (5, 9)}, "(the kept seed 5 finds it no more)"), ({}, "seed 7 ")]
)
def test_mutant_without_a_seed_gets_another_when_asked_to_write(
    kept: dict[str, tuple[int, int]],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Hunts are played: of all seeds, only the seventh finds anything."""
    found = Found(7, 300, "SimFailure: it broke")
    monkeypatch.setattr(hunt, "catch", lambda _, seeds: found if 7 in seeds else None)
    monkeypatch.setattr(hunt, "KEPT", kept)
    monkeypatch.setattr(hunt, "FILE", tmp_path / "kept_seeds.py")
    words = ["--mutants", "--mutant", NAME, "--seeds", "10"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert told in said
    assert "seed 7    step 300" in said
    assert "add --write" in said
    assert not hunt.FILE.exists()
    assert main([*words, "--write"]) == 0
    assert hunt.FILE.read_text() == text_of({NAME: (7, 300)})
    assert main(["--mutants", "--mutant", NAME, "--seeds", "5", "--write"]) == 1, "nothing finds it"


@pytest.mark.parametrize("source", ["nothing like it", "twice\ntwice\n"])
def test_edit_without_exactly_one_place_is_an_error_and_not_a_catch(source: str) -> None:
    with pytest.raises(LookupError, match="should find its place once"):
        edit(source, Mutant("example", "raft.core", "twice\n", ""))
