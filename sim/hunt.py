"""Runs seeds against a known bug: does this one find it, and which of many finds it soonest?

The one rule: a mutant counts as caught only when a promise breaks. One that cannot even be run
(a name that is gone, a wrong type) is an error of the list.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from shardnode.sim.kept_seeds import KEPT
from shardnode.sim.mutants import Mutant

SOON = 500
"""A seed that fails within so many steps is as good as any: the hunt for a better one ends."""

FILE = Path(__file__).with_name("kept_seeds.py")

HEAD = '''\
"""The seed that finds each known bug soonest, and the step at which it does.

The one rule: `scripts/mutants --jobs 2 --write` writes this file, nobody else. What changes the
runs of seeds may make one of them find nothing; the same command finds another.
"""

from __future__ import annotations

'''


@dataclass(frozen=True, slots=True)
class Found:
    """A seed that finds the mistake, the step at which it does, and what broke."""

    seed: int
    step: int
    broken: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    found: Found | None
    stale: bool = False
    """Whether another seed should be kept, because the kept one finds nothing or there is none."""
    lost: int | None = None
    """The kept seed, if it finds nothing any more."""


def edit(source: str, mutant: Mutant) -> str:
    """The source with the mistake in it."""
    found = source.count(mutant.before)
    if found != 1:
        raise LookupError(
            f"the mutant {mutant.name!r} should find its place once in {mutant.module}, "
            f"found it {found} times: edit the list in sim/mutants.py"
        )
    return source.replace(mutant.before, mutant.after)


class _Loader(SourceFileLoader):
    """Compiles a module from its edited source; no cache of compiled code is read or written."""

    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = importlib.util.decode_source(self.get_data(path))
        edited = edit(source, self.mutant)
        code: CodeType = self.source_to_code(edited.encode(), path)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"shardnode.{mutant.module}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        loader = _Loader(fullname, spec.loader.path)
        loader.mutant = self._mutant
        spec.loader = loader
        return spec


def infect(mutant: Mutant) -> None:
    """From here on this process runs with the mistake; for a process made for that alone."""
    for name in [name for name in sys.modules if name.startswith("shardnode.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(mutant))


def hunt(mutant: Mutant, seeds: range) -> Found | None:
    """The seed that finds the mistake in the fewest steps; None: no seed does."""
    infect(mutant)
    runner = importlib.import_module("shardnode.sim.runner")
    patience = importlib.import_module("shardnode.sim.world").PatienceLost
    plan = runner.Plan(favour=mutant.favour)
    best: Found | None = None
    for seed in seeds:
        run = runner.Run(seed, plan)
        if best is not None:
            run.world.patience = best.step
        try:
            run.go()
        except patience:
            continue  # others are sooner
        except (ImportError, LookupError, NameError, TypeError, AttributeError):
            if best is None:
                raise
        except Exception as error:
            lines = str(error).splitlines() or [""]
            best = Found(seed, run.world.steps, f"{type(error).__name__}: {lines[0]}")
            if best.step <= SOON:
                break
    return best


def catch(mutant: Mutant, seeds: range) -> Found | None:
    """`hunt` in a process of its own."""
    command = [sys.executable, "-P", "-m", "shardnode.sim", "--hunt", mutant.name]
    command += ["--start", str(seeds.start), "--seeds", str(len(seeds))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the mutant {mutant.name!r} cannot be run:\n{done.stderr}")
    if done.returncode == 1:
        return None
    seed, step, broken = done.stdout.strip().split(" ", 2)
    return Found(int(seed), int(step), broken)


def replay(mutant: Mutant) -> Found | None:
    """What the kept seed of a mutant finds."""
    kept = KEPT.get(mutant.name)
    return None if kept is None else catch(mutant, range(kept[0], kept[0] + 1))


def check(mutant: Mutant, seeds: range) -> Verdict:
    """Try the kept seed, and hunt for another if it finds the mistake no more."""
    found = replay(mutant)
    if found is not None:
        return Verdict(mutant, found)
    lost = KEPT.get(mutant.name, (None,))[0]
    return Verdict(mutant, catch(mutant, seeds), stale=True, lost=lost)


def refresh(mutant: Mutant, seeds: range) -> Verdict:
    """Hunt for the quickest seed, whatever is kept."""
    return Verdict(mutant, catch(mutant, seeds))


def judge(mutants: Sequence[Mutant], seeds: range, jobs: int, *, afresh: bool) -> Iterator[Verdict]:
    """What becomes of each, in the order of the list."""
    one = refresh if afresh else check
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda mutant: one(mutant, seeds), mutants)


def keep(verdicts: Sequence[Verdict], mutants: Sequence[Mutant]) -> None:
    """Write down what was found; the kept seeds of other mutants stay."""
    seeds = KEPT | {
        verdict.mutant.name: (verdict.found.seed, verdict.found.step)
        for verdict in verdicts
        if verdict.found is not None
    }
    names = [mutant.name for mutant in mutants]
    FILE.write_text(text_of({name: seeds[name] for name in names if name in seeds}))


def text_of(kept: Mapping[str, tuple[int, int]]) -> str:
    """The source of `kept_seeds.py`."""
    lines = "".join(
        f"    {json.dumps(name)}: ({seed}, {step}),\n" for name, (seed, step) in kept.items()
    )
    return f"{HEAD}KEPT: dict[str, tuple[int, int]] = {{\n{lines}}}\n"
