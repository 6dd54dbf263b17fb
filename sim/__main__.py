"""`scripts/sim 123` replays a seed with its trace; `scripts/sim --seeds 10000 --jobs 2` runs many.

The one rule: the first failure ends everything and its seed is the last thing on the screen.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from rich.progress import Progress

from shardnode.sim.mutants import MUTANTS, catch_all, hunt
from shardnode.sim.runner import Report, run_seed
from shardnode.sim.sweep import results


def main(argv: list[str]) -> int:
    """Run what the words ask for; 0 when every seed kept every promise, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="scripts/sim", description="Run seeds of the deterministic simulator."
    )
    parser.add_argument("seed", nargs="?", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="run N seeds")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="beginning with S")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="in J processes")
    parser.add_argument("--quiet", action="store_true", help="with a seed: only its result")
    parser.add_argument("--mutants", action="store_true", help="put known bugs in, and find each")
    parser.add_argument("--mutant", choices=[m.name for m in MUTANTS], help="put in this one only")
    words = parser.parse_args(argv)
    seeds = range(words.start, words.start + words.seeds)
    if words.seed is not None:
        return _replay(words.seed, quiet=words.quiet)
    if words.mutant is not None:
        return _hunt(words.mutant, seeds)
    if words.mutants:
        return _hunt_all(words.seeds, words.jobs)
    return _many(seeds, words.jobs)


def _replay(seed: int, *, quiet: bool) -> int:
    try:
        report = run_seed(seed, say=None if quiet else print)
    except Exception:
        traceback.print_exc()
        print(f"seed {seed} FAILED")
        return 1
    print(_summary(seed, report))
    return 0


def _summary(seed: int, report: Report) -> str:
    return (
        f"seed {seed} passed: {report.nodes} nodes, {report.steps} steps, "
        f"{report.simulated_ms / 1000:.1f} simulated seconds, {report.operations} operations "
        f"({report.succeeded} answered), {report.faults} faults, {report.committed} entries"
    )


def _many(seeds: range, jobs: int) -> int:
    totals: Counter[str] = Counter()
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for seed, report, failure in results(seeds, jobs):
            progress.advance(task)
            if report is None:
                print(f"{failure}\nseed {seed} FAILED after {totals['seeds']} that passed")
                return 1
            totals["seeds"] += 1
            totals.update(
                {
                    "steps": report.steps,
                    "operations": report.operations,
                    "answered": report.succeeded,
                    "faults": report.faults,
                }
            )
    print(
        f"{totals['seeds']} seeds passed: {totals['steps']:,} steps, "
        f"{totals['operations']:,} operations ({totals['answered']:,} answered), "
        f"{totals['faults']:,} faults"
    )
    return 0


def _hunt(name: str, seeds: range) -> int:
    found = hunt(next(mutant for mutant in MUTANTS if mutant.name == name), seeds)
    print(*found or ("not found",))
    return 0 if found else 1


def _hunt_all(seeds: int, jobs: int) -> int:
    caught = 0
    for number, result in enumerate(catch_all(seeds, jobs), 1):
        caught += result.seed is not None
        verdict = "NOT CAUGHT" if result.seed is None else f"seed {result.seed:<4}"
        print(f"{number:2} {verdict} {result.mutant.name}: {result.broken}", flush=True)
    print(f"{caught} of {len(MUTANTS)} mutants caught")
    return 0 if caught == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
