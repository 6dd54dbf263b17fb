"""`scripts/sim 123` replays a seed with its trace; `scripts/sim --seeds 10000 --jobs 2` runs many.

The one rule: the first failure ends everything and its seed is the last thing on the screen.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Sequence

from rich.progress import Progress

from shardnode.sim.hunt import Verdict, hunt, judge, keep
from shardnode.sim.mutants import MUTANTS, Mutant
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
    names = {mutant.name: mutant for mutant in MUTANTS}
    parser.add_argument("--mutants", action="store_true", help="put known bugs in, and find each")
    parser.add_argument("--mutant", choices=names, metavar="NAME", help="put in this one only")
    parser.add_argument("--write", action="store_true", help="keep the seeds that find it soonest")
    parser.add_argument("--hunt", choices=names, metavar="NAME", help=argparse.SUPPRESS)
    words = parser.parse_args(argv)
    seeds = range(words.start, words.start + words.seeds)
    if words.seed is not None:
        return _replay(words.seed, quiet=words.quiet)
    if words.hunt is not None:
        return _hunt(names[words.hunt], seeds)
    if words.mutants or words.mutant is not None:
        mutants = MUTANTS if words.mutant is None else (names[words.mutant],)
        return _judge(mutants, seeds, words.jobs, write=words.write)
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


def _hunt(mutant: Mutant, seeds: range) -> int:
    """What a process made for one mutant does; `catch` starts it and reads the line."""
    found = hunt(mutant, seeds)
    if found is None:
        return 1
    print(found.seed, found.step, found.broken)
    return 0


def _judge(mutants: Sequence[Mutant], seeds: range, jobs: int, *, write: bool) -> int:
    verdicts = []
    for number, verdict in enumerate(judge(mutants, seeds, jobs, afresh=write), 1):
        print(f"{number:2} {_line(verdict)}", flush=True)
        verdicts.append(verdict)
    caught = sum(verdict.found is not None for verdict in verdicts)
    print(f"{caught} of {len(mutants)} mutants caught")
    if write:
        keep(verdicts, MUTANTS)
    elif any(verdict.stale for verdict in verdicts):
        print("sim/kept_seeds.py is out of date: add --write, and the quickest seeds are kept")
        return 1
    return 0 if caught == len(mutants) else 1


def _line(verdict: Verdict) -> str:
    name, found = verdict.mutant.name, verdict.found
    lost = f" (the kept seed {verdict.lost} finds it no more)" if verdict.lost is not None else ""
    if found is None:
        return f"NOT CAUGHT {name}{lost}"
    return f"seed {found.seed:<4} step {found.step:<5} {name}{lost}: {found.broken}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
