"""`python -m shardnode.testing.crash_cycles`: a real node is started, loaded and killed, again and
again, at moments that failpoints choose; and nothing acknowledged may be lost or come twice.

    python -m shardnode.testing.crash_cycles --cycles 500 --seed 7

    each cycle     start with one failpoint armed (or none) → all that is stored is compared with
                   the model → load → the failpoint, or a SIGKILL from outside → all are killed

The one rule: everything is judged after every process is gone and the node has started again. A
kill of any kind may cost answers, never data, never the start: a shard that is fenced after it is
as wrong as a lost key.

The seed decides what is armed and when, not what the processes do meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from shardnode.client import AsyncClient, ShardnodeError
from shardnode.storage.failpoints import FAILPOINTS
from shardnode.testing.cluster import Cluster
from shardnode.testing.cluster_node import ClusterNode, NodeFailed
from shardnode.testing.crash_load import TIMEOUT_S, Writer, keys_of, read_all, run_for
from shardnode.testing.crash_model import Model
from shardnode.testing.crash_streams import (
    PARTITIONS,
    Producer,
    StreamModel,
    compare_streams,
    produce,
)

SETTINGS = {
    "storage": {
        "segment_bytes": "1MiB",
        "table_bytes": "1MiB",
        "zero_ahead_bytes": "64KiB",
        "snapshot_entries": 30,
        "keep_entries": 0,
        "keep_bytes": "0B",
    }
}
"""As small as may be: rolls, flushes, truncations and snapshots within a second of load."""

SHARDS = 2
WRITERS = 3
LOAD_S = (0.2, 0.7)
GO_ON_S = 0.9
"""Now and then load goes on after a death: the worker comes back and retries reach it."""

START_S = 30.0
STUCK_S = 0.6
"""How long a start with a failpoint that has sprung may take before it is given up."""

FIRED = re.compile(r"^failpoint ([a-z_.]+)=(\w+)", re.MULTILINE)
TIMES = {
    "log.write": 150,
    "log.sync.": 150,
    "superblock": 8,
    "partition.write": 100,
    "partition.sync.": 10,
    "snapshot.build": 1,
    "snapshot.write": 6,
    "snapshot.sync.": 6,
}
"""Beginning of a name → up to which time it springs; the others are passed once or twice."""

AT_FIRST_BOOT = ("superblock.rename", "superblock.write", "superblock.sync", "other", "log")
AFTER_A_TEAR = "log.truncate"
SELDOM = ("other", "superblock.rename", AFTER_A_TEAR)
"""Passed only at a first boot, or when a torn write is cut off."""


class Plan(NamedTuple):
    """What is done in one cycle."""

    failpoint: str = ""  # as in the variable; empty: none
    kills_worker: bool = False  # at some moment of the load
    load_s: float = 0.0
    goes_on: bool = False
    stops: bool = False  # with SIGTERM at the end, instead of SIGKILL
    begins_anew: bool = False  # with an empty directory


def choose(random: Random, points: Sequence[str], *, torn: bool) -> Plan:
    """`torn`: the cycle before has left half a write in the log."""
    failpoint = ""
    begins_anew = random.random() < 0.06
    if begins_anew:
        likely = [name for name in points if name.startswith(AT_FIRST_BOOT)]
    elif torn:
        likely = [name for name in points if name.startswith(AFTER_A_TEAR)]
    else:
        likely = [name for name in points if not name.startswith(SELDOM)]
    if random.random() < 0.85:
        name = random.choice(likely or points)
        most = next((most for start, most in TIMES.items() if name.startswith(start)), 2)
        most = min(most, 3) if begins_anew else most
        action = random.choices(["kill", "error", "full", "delay:30ms"], weights=[80, 8, 8, 4])[0]
        often = f"+{random.randint(1, 20)}" if action == "full" else ""
        scope = random.choice(["", f"shard{random.randrange(SHARDS)}/"])
        failpoint = f"{scope}{name}={action}@{random.randint(1, most)}{often}"
    return Plan(
        failpoint,
        kills_worker=not failpoint and random.random() < 0.5,
        load_s=random.uniform(*LOAD_S),
        goes_on=random.random() < 0.25,
        stops=random.random() < 0.15,
        begins_anew=begins_anew,
    )


def new_model() -> Model:
    return Model(key for writer in range(WRITERS) for key in keys_of(writer))


@dataclass(slots=True)
class Result:
    """What came of it."""

    seed: int
    cycles: int = 0
    compared: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Cycles:
    """One run; `points` are the failpoints to choose from. `look` is shown the directory that each
    crash has left."""

    def __init__(
        self,
        seed: int,
        points: Sequence[str] = tuple(FAILPOINTS),
        look: Callable[[Path], None] | None = None,
    ) -> None:
        self.result = Result(seed)
        self._look = look
        self._random = Random(seed)
        self._points = list(points)
        self._cluster = Cluster(nodes=1, shards=SHARDS, settings=SETTINGS, proxied=False)
        self._model = new_model()
        self._streams = [StreamModel() for _ in range(PARTITIONS)]
        self._shard_of: Callable[[bytes], int] | None = None
        self._must_compare = False
        self._has_torn = False

    def run(self, cycles: int, keep: Path | None = None) -> Result:
        """So many cycles and a last look, or until something is wrong."""
        begun = time.monotonic()
        result = self.result
        with self._cluster as cluster:
            node = cluster.nodes[1]
            node.stop()
            for _ in range(cycles):
                plan = choose(self._random, self._points, torn=self._has_torn)
                asyncio.run(self._cycle(node, plan))
                if result.problems:
                    break
            else:
                self._must_compare = True
                asyncio.run(self._cycle(node, Plan(stops=True)))
            if result.problems and keep is not None:
                node.erase()
                shutil.copytree(cluster.directory, keep, dirs_exist_ok=True)
        result.seconds = time.monotonic() - begun
        return result

    async def _cycle(self, node: ClusterNode, plan: Plan) -> None:
        if self._must_compare:
            plan = plan._replace(failpoint="", begins_anew=False)
        if plan.begins_anew:
            # Not the same place: a process that builds a snapshot may outlive its worker a little.
            node.data = node.data.with_name(f"n{node.id}-{self.result.cycles}")
            self._model = new_model()
            self._streams = [StreamModel() for _ in range(PARTITIONS)]
        self.result.cycles += 1
        node.failpoints = plan.failpoint
        node.log_file.unlink(missing_ok=True)
        begun = len(self.result.problems)
        node.launch()
        try:
            if await self._is_up(node, plan) and await self._compare(node, plan):
                await self._load(node, plan)
            self._end(node, plan)
        except (NodeFailed, AssertionError) as error:
            self._wrong(f"{type(error).__name__}: {error}")
        self._look_at_log(node, plan)
        if self._look is not None:
            self._look(node.data)
        where = f"seed {self.result.seed}, cycle {self.result.cycles}, {plan}"
        for number, problem in enumerate(self.result.problems[begun:], begun):
            self.result.problems[number] = f"{where}: {problem}"

    async def _is_up(self, node: ClusterNode, plan: Plan) -> bool:
        """Whether it serves; one whose failpoint sprang at the start may never do."""
        deadline, stuck = time.monotonic() + START_S, 0.0
        while not node.is_ready:
            now = time.monotonic()
            if plan.failpoint and not stuck and FIRED.search(node.log):
                stuck = now + STUCK_S
            if (stuck and now > stuck) or (plan.failpoint and not node.is_running):
                self._must_compare = True
                return False
            if now > deadline or not node.is_running:
                self._wrong(f"it does not start; its log ends with\n{node.log[-2_000:]}")
                return False
            await asyncio.sleep(0.01)
        return True

    async def _compare(self, node: ClusterNode, plan: Plan) -> bool:
        """All that is stored against all that may be; False when it could not be read."""
        timeout_s = 3.0 if plan.failpoint else START_S
        async with AsyncClient(node.address, timeout=timeout_s) as client:
            try:
                self._shard_of = (await client.topology()).table.shard_of_key
                found = await read_all(client)
                wrong = await compare_streams(client, self._streams)
            except ShardnodeError as error:
                if not plan.failpoint:
                    self._wrong(f"it cannot be read: {error!r}")
                self._must_compare = True
                return False
        self._must_compare = False
        self.result.compared += 1
        self.result.problems += self._model.compare(found) + wrong
        return not self.result.problems

    async def _load(self, node: ClusterNode, plan: Plan) -> None:
        assert self._shard_of is not None
        tag = f"{self.result.cycles}"
        writers = [
            Writer(self._model, number, tag, Random(self._random.random()))
            for number in range(WRITERS)
        ]
        producers = [
            Producer(model, partition, tag, Random(self._random.random()))
            for partition, model in enumerate(self._streams)
        ]
        work = [writer.run(node.address, self._shard_of) for writer in writers]
        work.append(produce(node.address, producers, TIMEOUT_S))
        over = asyncio.Event()
        watching = asyncio.create_task(self._watch(node, plan, over))
        await run_for(work, over)
        watching.cancel()
        loads: list[Writer | Producer] = [*writers, *producers]
        for each in loads:
            self.result.problems += each.problems
            self.result.outcomes += each.outcomes

    async def _watch(self, node: ClusterNode, plan: Plan, over: asyncio.Event) -> None:
        """Ends the load in time, or soon after the death of a worker."""
        begun = time.monotonic()
        end = begun + plan.load_s
        kill_at = begun + plan.load_s / 2 if plan.kills_worker else float("inf")
        fell = False
        while (now := time.monotonic()) < end:
            await asyncio.sleep(0.02)
            if now > kill_at:
                kill_at = float("inf")
                if self._kill_worker(node):
                    fell, end = True, now + (GO_ON_S if plan.goes_on else 0.05)
            if not fell and FIRED.search(node.log):
                fell, end = True, now + (GO_ON_S if plan.goes_on else 0.05)
        over.set()

    def _kill_worker(self, node: ClusterNode) -> bool:
        shard = self._random.randrange(SHARDS)
        for process in node.processes():
            if f"shard {shard}" in " ".join(process.cmdline()):
                process.kill()
                self.result.kills["SIGKILL to a worker"] += 1
                return True
        return False

    def _end(self, node: ClusterNode, plan: Plan) -> None:
        if not node.is_running:
            return
        if plan.stops:
            code = node.stop()
            if code != 0:
                self._wrong(f"it ended with code {code} after SIGTERM")
            self.result.kills["SIGTERM to the node"] += 1
        else:
            node.kill()
            self.result.kills["SIGKILL to the node"] += 1

    def _look_at_log(self, node: ClusterNode, plan: Plan) -> None:
        log = node.log
        self._has_torn = "failpoint log.write.torn=kill" in log
        self.result.fired.update({f"{name}={action}" for name, action in FIRED.findall(log)})
        if "AssertionError" in log or "ProtocolViolation" in log:
            self._wrong(f"a worker made a mistake; its log ends with\n{log[-3_000:]}")
        may_fence = any(each in plan.failpoint for each in ("=error", "=full"))
        if "FENCED" in log and not may_fence:
            line = next(line for line in log.splitlines() if "FENCED" in line)
            self._wrong(f"a kill fenced a shard: {line}")

    def _wrong(self, what: str) -> None:
        self.result.problems.append(what)


def table(result: Result) -> Iterator[str]:
    """What to print at the end."""
    for name in sorted(result.fired):
        yield f"{name:36}{result.fired[name]:5}"
    reached = {name.partition("=")[0] for name in result.fired}
    yield f"{len(reached)} of {len(FAILPOINTS)} failpoints sprang, {result.fired.total()} times"
    kills = ", ".join(f"{count} × {what}" for what, count in result.kills.most_common())
    yield f"{result.cycles} cycles in {result.seconds:.0f} s: {kills}"
    counts = ", ".join(f"{count} {what}" for what, count in result.outcomes.most_common())
    yield f"{result.compared} times all was compared; {result.outcomes.total()} requests: {counts}"
    if result.problems:
        yield f"{len(result.problems)} problems"
        yield from (f"  {problem}" for problem in result.problems[:20])
    else:
        yield f"seed {result.seed}: nothing lost, nothing twice, no version went back"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="crash_cycles", description="A node killed again and again."
    )
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--points", default="", help="only failpoints with this in their name")
    parser.add_argument("--keep", type=Path, default=None, help="where a failure is kept")
    options = parser.parse_args(arguments)
    points = [name for name in FAILPOINTS if options.points in name]
    keep = options.keep or Path(f"crash-{options.seed}")
    result = Cycles(options.seed, points).run(options.cycles, keep)
    sys.stdout.writelines(f"{line}\n" for line in table(result))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
