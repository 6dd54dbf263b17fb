"""`scripts/faults`: injects every failure of `faults_list.py` and writes down what came of it.

    scripts/faults --quick              a little of each, some minutes
    scripts/faults                      500 crash cycles, 30 minutes of soak, many seeds
    scripts/faults --quick --only 5,9   those lines; the others stay as an earlier run left them

The one rule: a line says what a run of this command has seen, and when. A failure that was not
injected is "not reached" and never "survived".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from shardnode.sim import Plan, run_seed
from shardnode.storage.failpoints import FAILPOINTS
from shardnode.testing.crash_cycles import Cycles
from shardnode.testing.crash_cycles import Result as CyclesResult
from shardnode.testing.faults_kinds import Cases, Failure, Kills, Seeds, Soak, Source
from shardnode.testing.faults_list import FAILURES
from shardnode.testing.soak import Result as SoakResult
from shardnode.testing.soak import Soak as SoakRun
from shardnode.testing.soak import say

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "RELIABILITY.md"
BEGIN = "<!-- written by scripts/faults: begin -->"
END = "<!-- written by scripts/faults: end -->"
HEAD = (
    "| # | failure | how it was injected | how often | result | run |",
    "|---|---|---|---|---|---|",
)


class Size(NamedTuple):
    """How much of everything."""

    name: str
    seeds: int
    cycles: int
    minutes: float


FULL = Size("full", seeds=400, cycles=500, minutes=30.0)
QUICK = Size("quick", seeds=12, cycles=30, minutes=1.0)


class Seen(NamedTuple):
    """What one source had to say about one failure."""

    often: str = ""  # how often it was injected, in words; empty: never
    problems: tuple[str, ...] = ()
    remark: str = ""


class Runs:
    """The runs of one command. What several failures share is run once, when it is first needed."""

    def __init__(self, size: Size, seed: int, failures: Sequence[Failure]) -> None:
        self._size = size
        self._seed = seed
        self._failures = failures
        self._tests: dict[str, Counter[str]] | None = None
        self._cycles: CyclesResult | None = None
        self._soak: SoakResult | None = None

    def look(self, source: Source) -> Seen:
        if isinstance(source, Cases):
            return self._look_at_tests(source.names)
        if isinstance(source, Seeds):
            return self._look_at_seeds(source.kinds)
        if isinstance(source, Kills):
            return self._look_at_cycles(source.points)
        return self._look_at_soak(source.faults)

    def _of(self, kind: type[Source]) -> Iterable[str]:
        """All that the chosen failures want of one kind of source."""
        found = [s[0] for f in self._failures for s in f.sources if isinstance(s, kind)]
        return dict.fromkeys(name for names in found for name in names)

    # Cases.

    def _look_at_tests(self, names: Sequence[str]) -> Seen:
        if self._tests is None:
            self._tests = run_tests([f"tests/{name}" for name in self._of(Cases)])
        total: Counter[str] = Counter()
        problems = []
        for name in names:
            outcomes = self._tests.get(name, Counter())
            total += outcomes
            if outcomes["failed"] or not outcomes:
                problems.append(f"{name} {'failed' if outcomes else 'did not run'}")
        count = total["passed"] + total["failed"]
        remark = f"{total['skipped']} tests were skipped" if total["skipped"] else ""
        return Seen(f"{count} tests" if count else "", tuple(problems), remark)

    # The simulator.

    def _look_at_seeds(self, kinds: tuple[str, ...]) -> Seen:
        counts: Counter[str] = Counter()
        for seed in range(self._seed, self._seed + self._size.seeds):
            try:
                counts.update(run_seed(seed, Plan(favour=kinds)).counts)
            except Exception as error:
                return Seen("simulated", (f"seed {seed} with {kinds}: {error}",))
        count = sum(counts[f"fault {kind}"] for kind in kinds)
        return Seen(f"{count} × simulated" if count else "")

    # Crash cycles.

    def _look_at_cycles(self, points: Sequence[str]) -> Seen:
        if self._cycles is None:
            wanted = tuple(self._of(Kills))
            names = [name for name in FAILPOINTS if name.startswith(wanted)]
            say(f"{self._size.cycles} crash cycles, seed {self._seed}")
            every = tuple(FAILPOINTS) if len(self._failures) == len(FAILURES) else tuple(names)
            self._cycles = Cycles(self._seed, every or tuple(FAILPOINTS)).run(self._size.cycles)
        result = self._cycles
        seen = result.fired + result.kills
        count = sum(seen[name] for name in seen if name.startswith(tuple(points)))
        return Seen(f"{count} × in crash cycles" if count else "", tuple(result.problems[:3]))

    # The soak.

    def _look_at_soak(self, faults: Sequence[str]) -> Seen:
        if self._soak is None:
            names = list(self._of(Soak))
            say(f"{self._size.minutes:g} minutes of soak, seed {self._seed}: {', '.join(names)}")
            soak = SoakRun(names, self._seed, nodes=3, shards=2)
            soak.run(self._size.minutes * 60, Path(f"soak-{self._seed}"))
            self._soak = soak.result
        count = sum(len(self._soak.gaps.get(name, ())) for name in faults)
        return Seen(f"{count} × in a soak" if count else "", tuple(self._soak.problems[:3]))


def together(sources: Sequence[Source]) -> list[Source]:
    """The same, with all tests in one."""
    tests = [name for source in sources if isinstance(source, Cases) for name in source.names]
    others: list[Source] = [source for source in sources if not isinstance(source, Cases)]
    return [Cases(tuple(tests)), *others] if tests else others


def run_tests(names: Sequence[str]) -> dict[str, Counter[str]]:
    """`file`, `file::test` and `file::test[case]` → outcome → how many."""
    say(f"{len(names)} tests")
    with tempfile.TemporaryDirectory(prefix="flt-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *names],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        say(done.stdout.strip().rpartition("\n")[2])
        if done.returncode > 1 or not report.exists():
            raise RuntimeError(f"pytest could not run these tests:\n{done.stdout}{done.stderr}")
        return read_report(report)


def read_report(report: Path) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/") + ".py"
        case_name = case.get("name", "")
        test = case_name.partition("[")[0]
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                outcome = "skipped"
        for name in {file, f"{file}::{test}", f"{file}::{case_name}"}:
            found.setdefault(name, Counter())[outcome] += 1
    return found


def line_of(failure: Failure, seen: Sequence[Seen], run: str) -> str:
    """One line of the table."""
    problems = [problem for each in seen for problem in each.problems]
    often = [each.often for each in seen if each.often]
    remarks = [each.remark for each in seen if each.remark]
    if problems:
        result = f"**FAILED**: {'; '.join(problems)}"
    elif not often:
        result = "not reached"
    else:
        result = "; ".join(["survived", *remarks])
    cells = (str(failure.number), failure.what, failure.how, ", ".join(often) or "0", result, run)
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(cell: str) -> str:
    first = cell.partition("\n")[0]
    return first.replace("|", "\\|")[:300]


def merge(document: str, fresh: dict[int, str]) -> str:
    """The document with these lines of its table made new."""
    before, begin, rest = document.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert end, f"expected the two marks of the table in {DOCUMENT.name}, found less"
    lines = {_number(line): line for line in table.splitlines() if _number(line)}
    lines.update(fresh)
    known = {failure.number for failure in FAILURES}
    body = [lines[number] for number in sorted(lines) if number in known]
    return f"{before}{begin}\n" + "\n".join([*HEAD, *body]) + f"\n{end}{after}"


def _number(line: str) -> int:
    first = line.strip("| ").partition(" ")[0]
    return int(first) if first.isdigit() else 0


def chosen(words: str) -> list[int]:
    known = {failure.number for failure in FAILURES}
    numbers = [int(word) for word in words.split(",") if word.strip().isdigit()]
    if not numbers or not set(numbers) <= known:
        raise argparse.ArgumentTypeError(
            f"expected numbers from {min(known)} to {max(known)} with commas, found {words}"
        )
    return numbers


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description="Every failure, injected.")
    parser.add_argument("--quick", action="store_true", help="a little of each")
    parser.add_argument("--only", type=chosen, default=None, metavar="N,N…")
    parser.add_argument("--cycles", type=int, default=None, help="crash cycles")
    parser.add_argument("--minutes", type=float, default=None, help="of soak")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else FULL
    size = size._replace(
        cycles=size.cycles if options.cycles is None else options.cycles,
        minutes=size.minutes if options.minutes is None else options.minutes,
    )
    failures = [f for f in FAILURES if options.only is None or f.number in options.only]
    run = f"{datetime.now(UTC):%Y-%m-%d}, {size.name}, seed {options.seed}"
    runs = Runs(size, options.seed, failures)
    fresh: dict[int, str] = {}
    for failure in failures:
        seen = [runs.look(source) for source in together(failure.sources)]
        fresh[failure.number] = line_of(failure, seen, run)
        say(fresh[failure.number])
    DOCUMENT.write_text(merge(DOCUMENT.read_text(encoding="utf-8"), fresh), encoding="utf-8")
    bad = [number for number, line in fresh.items() if "| survived" not in line]
    say(f"{len(fresh) - len(bad)} of {len(fresh)} survived" + (f"; look at {bad}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
