"""`scripts/soak`: a real cluster under load, one random fault after another, judged all the while.

    scripts/soak --minutes 10 --faults kill,pause,partition --seed 7
    scripts/soak --minutes 10 --load streams --faults kill,partition

The one rule: a soak ends with 0 only if every answer could be explained, all replicas agreed after
each round, and writes went on in time after every fault. Otherwise what is needed to find out why
(histories, logs, configuration) is kept in a folder.

The seed decides which faults come and how long they last, not what the processes do meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from shardnode.testing.checkers import Finding
from shardnode.testing.cluster import Cluster
from shardnode.testing.load import Load
from shardnode.testing.load_base import BaseLoad
from shardnode.testing.load_judge import judge
from shardnode.testing.soak_faults import ASYMMETRIC, FAULTS, NEVER_S
from shardnode.testing.stream_load import StreamLoad, judge_stream

LOADS: dict[str, tuple[Callable[..., Any], Callable[[Cluster, Any], list[Finding]]]] = {
    "keys": (Load, judge),
    "streams": (StreamLoad, judge_stream),
}
"""What is done to the cluster meanwhile, and who judges it."""

FAULTS_PER_ROUND = 8
"""Then the load stops and all is judged; a new one has new keys."""

CALM_S = 0.5
"""Between faults."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    gaps: dict[str, list[float]] = field(default_factory=dict)
    """Fault → the longest time without an acknowledged write, each time."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Status → operations."""
    rounds: int = 0
    problems: list[str] = field(default_factory=list)


class Soak:
    """One run."""

    def __init__(
        self, names: Sequence[str], seed: int, nodes: int, shards: int, load: str = "keys"
    ) -> None:
        self._names = list(names)
        self._deck: list[str] = []
        self._random = Random(seed)
        self._seed = seed
        self._make, self._judge = LOADS[load]
        self._cluster = Cluster(nodes=nodes, shards=shards, seed=seed)
        self.result = Result()

    def run(self, seconds: float, keep: Path) -> None:
        """Until the time is over or something is wrong."""
        deadline = time.monotonic() + seconds
        with self._cluster as cluster:
            while time.monotonic() < deadline and not self.result.problems:
                load = self._make(
                    cluster.addresses,
                    seed=self._seed + self.result.rounds,
                    prefix=f"r{self.result.rounds}",
                )
                try:
                    self._round(load, deadline)
                except (AssertionError, TimeoutError, RuntimeError) as error:
                    self.result.problems.append(f"{type(error).__name__}: {error}")
                self.result.outcomes.update(operation.status for operation in load.recorded)
                if self.result.problems:
                    self._keep(load, keep)

    def _round(self, load: BaseLoad, deadline: float) -> None:
        cluster, result = self._cluster, self.result
        with load:
            load.wait_acknowledged(20)
            for _ in range(FAULTS_PER_ROUND):
                self._one(load, self._draw())
                if time.monotonic() > deadline:
                    break
            findings = self._judge(cluster, load)
        result.rounds += 1
        result.problems += [f"round {result.rounds}: {finding}" for finding in findings]

    def _draw(self) -> str:
        """In any order, but none comes again before all have come."""
        if not self._deck:
            self._deck = self._random.sample(self._names, len(self._names))
        return self._deck.pop()

    def _one(self, load: BaseLoad, name: str) -> None:
        fault, limit_s = FAULTS[name]
        begin_ns = time.monotonic_ns()
        fault(self._cluster, self._random)
        load.wait_acknowledged(20)
        gaps = load.longest_gap_s(begin_ns)
        longest = max(gaps.values())
        self.result.gaps.setdefault(name, []).append(longest)
        say(f"{name:10} {longest:5.2f} s without an acknowledged write {gaps}")
        if longest > limit_s:
            self.result.problems.append(f"{name}: {longest:.2f} s, at most {limit_s}: {gaps}")
        time.sleep(CALM_S)

    def _keep(self, load: BaseLoad, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        load.save(folder / "history.jsonl")
        for node in self._cluster.nodes.values():
            for file in (node.log_file, node.config):
                shutil.copy(file, folder)
        (folder / "problems.txt").write_text("\n".join(self.result.problems), encoding="utf-8")
        say(f"history, logs and problems are kept in {folder}")


def table(result: Result) -> Iterator[str]:
    """What to print at the end."""
    yield f"{'fault':12}{'times':>6}{'longest gap':>13}{'median':>9}{'allowed':>9}"
    for name, gaps in sorted(result.gaps.items()):
        allowed = "" if FAULTS[name][1] == NEVER_S else f"{FAULTS[name][1]:.1f} s"
        median = sorted(gaps)[len(gaps) // 2]
        yield f"{name:12}{len(gaps):6}{max(gaps):11.2f} s{median:7.2f} s{allowed:>9}"
    counts = ", ".join(f"{count} {status}" for status, count in result.outcomes.most_common())
    yield f"{result.rounds} rounds, {result.outcomes.total()} operations: {counts}"
    if result.problems:
        yield f"{len(result.problems)} problems"
        yield from (f"  {problem}" for problem in result.problems[:20])
    else:
        yield "nothing wrong in what was seen; replicas: equal"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def chosen(words: str) -> list[str]:
    """The faults that were asked for."""
    names: list[str] = []
    for word in words.split(","):
        names += ASYMMETRIC if word == "asymmetric" else [word]
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        known = ", ".join([*FAULTS, "asymmetric"])
        raise argparse.ArgumentTypeError(f"expected some of {known}; found {', '.join(unknown)}")
    return names


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Faults on a real cluster.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--faults", type=chosen, default=list(FAULTS), metavar="A,B…")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=None, help="where a failure is kept")
    parser.add_argument("--load", choices=list(LOADS), default="keys", help="what is judged")
    options = parser.parse_args(arguments)
    say(f"seed {options.seed}, {options.load}: {', '.join(options.faults)}")
    soak = Soak(options.faults, options.seed, options.nodes, options.shards, options.load)
    keep = options.keep or Path(f"soak-{options.seed}")
    soak.run(options.minutes * 60, keep)
    for line in table(soak.result):
        say(line)
    return 1 if soak.result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
