"""One seed: a world is made, troubled, healed, and judged.

The one rule: a run has two phases. In the safety phase anything may fail and no promise may break.
In the liveness phase nothing fails any more, and the group must answer again and end equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardnode.raft import Membership, Options
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.transfer import TransferOptions
from shardnode.sim.checks import Checks
from shardnode.sim.client import SimClient
from shardnode.sim.faults import SHARD_SHIFT, Faults
from shardnode.sim.history import Operation, check
from shardnode.sim.network import Network
from shardnode.sim.node import SimNode
from shardnode.sim.world import World
from shardnode.storage.options import LogOptions

CLUSTER = 0xC0FFEE
LIVENESS_MS = 60_000
"""Simulated time within which a healed group must answer and agree."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much a run has to contain before it may end."""

    steps_min: int = 2000
    operations_min: int = 200
    faults_min: int = 3
    favour: tuple[str, ...] = ()
    """Kinds of trouble that come half of the time, to look closer at a corner."""
    steps_max: int = 60_000
    """A safety phase that gets nowhere, because faults keep everybody down, ends here."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run contained."""

    seed: int
    nodes: int
    steps: int
    simulated_ms: int
    operations: int
    succeeded: int
    faults: int
    committed: int
    counts: dict[str, int]


class Run:
    """The parts of one world."""

    def __init__(
        self,
        seed: int,
        plan: Plan,
        say: Callable[[str], None] | None = None,
        checks: Callable[[World], Checks] = Checks,
    ) -> None:
        self.plan = plan
        self.world = World(seed, say)
        rng = self.world.rng
        self.network = Network(self.world, as_bytes=rng.random() < 0.5)
        self.checks = checks(self.world)
        voters = rng.choice((1, 3, 3, 3, 3, 5))
        spares = 0 if voters == 1 else rng.choice((0, 0, 1, 2))
        shard = rng.randrange(4)
        members = [shard << SHARD_SHIFT | number for number in range(1, voters + spares + 1)]
        bootstrap = Membership.of(members[:voters])
        self.nodes = [
            SimNode(
                self.world,
                self.network,
                self.checks,
                self._settings(member, bootstrap),
                clock_percent=rng.randint(97, 103),
            )
            for member in members
        ]
        self.clients = [
            SimClient(self.world, self.network, number, members, keys=rng.randint(2, 8))
            for number in range(1, rng.randint(2, 6) + 1)
        ]
        self.faults = Faults(self.world, self.network, self.nodes, plan.favour)

    def _settings(self, member: int, bootstrap: Membership) -> ReplicaSettings:
        """Tiny segments, windows and caches at random, to reach the corners."""
        rng = self.world.rng
        return ReplicaSettings(
            directory=f"shard-{member >> SHARD_SHIFT}",
            cluster=CLUSTER,
            member=member,
            bootstrap=bootstrap,
            repair=len(bootstrap.everyone) > 1,
            raft=Options(
                election_timeout_ms=300,
                heartbeat_ms=50,
                resend_ms=120,
                snapshot_resend_ms=300,
                append_bytes_max=rng.choice((64, 1024, 1 << 20)),
                append_entries_max=rng.choice((1, 3, 16, 1024)),
                inflight_appends_max=rng.choice((1, 2, 8, 32)),
                uncommitted_entries_max=rng.choice((4, 64, 1 << 16)),
                apply_bytes_max=rng.choice((1, 200, 1 << 20)),
                cache_bytes_max=rng.choice((0, 300, 1 << 20)),
            ),
            log=LogOptions(
                segment_bytes=rng.choice((1 << 10, 4 << 10, 64 << 10)),
                index_every_bytes=rng.choice((64, 512, 4096)),
                zero_ahead_bytes=rng.choice((0, 512, 4096)),
            ),
            transfer=TransferOptions(piece_bytes=rng.choice((20, 100, 4096)), retry_ms=100),
            flush_every_entries=rng.choice((1, 5, 40)),
            snapshot_every_entries=rng.choice((0, 10, 40, 150)),
            keep_entries=rng.choice((0, 5, 30)),
            keep_bytes_max=(0, 0, 3 << 10, 1 << 20)[self.world.seed % 4],
        )

    def go(self) -> Report:
        """Both phases, then the verdict."""
        for node in self.nodes:
            node.start()
        for client in self.clients:
            client.start()
        self.faults.start()
        plan, world = self.plan, self.world
        while world.steps < plan.steps_max and (
            world.steps < plan.steps_min
            or self.faults.count < plan.faults_min
            or sum(len(client.operations) for client in self.clients) < plan.operations_min
        ):
            world.step()
        self._heal()
        self._await_progress()
        self._await_agreement()
        return self._judge()

    def _heal(self) -> None:
        self.world.say("runner", "everything heals: from here on the group must make progress")
        self.faults.stopped = True
        self.network.heal()
        for node in self.nodes:
            node.files.calm()
            node.resume()
            if node.replica is None:
                node.start()

    def _await_progress(self) -> None:
        goals = {client.name: client.succeeded + 5 for client in self.clients}
        self._await(
            lambda: all(client.succeeded >= goals[client.name] for client in self.clients),
            "clients are answered again",
        )
        for client in self.clients:
            client.stopped = True
        self._await(lambda: all(client.idle for client in self.clients), "clients come to rest")

    def _await_agreement(self) -> None:
        self._await(self._agree, "all members apply all that is committed")

    def _agree(self) -> bool:
        leaders = [node for node in self.nodes if node.leads]
        if len(leaders) != 1 or leaders[0].replica is None:
            return False
        raft = leaders[0].replica.raft
        if raft.membership.joint or raft.commit_index != raft.log.last_index:
            return False
        members = [node for node in self.nodes if node.member in raft.membership.everyone]
        return all(
            node.replica is not None
            and not node.replica.raft.recovering
            and node.machine.applied_index == raft.commit_index
            for node in members
        )

    def _await(self, done: Callable[[], bool], what: str) -> None:
        deadline = self.world.now_ms + LIVENESS_MS
        while not done():
            self.world.require(self.world.now_ms < deadline, f"once healed, {what}: it does not")
            self.world.step()

    def _judge(self) -> Report:
        operations: list[Operation] = [op for client in self.clients for op in client.operations]
        operations.sort(key=lambda operation: operation.begun)
        model = check(self.world, operations, self.checks.committed)
        leader = next(node for node in self.nodes if node.leads)
        assert leader.replica is not None
        for node in self.nodes:
            if node.member in leader.replica.raft.membership.everyone:
                same = node.machine.state() == leader.machine.state()
                self.world.require(same, f"{node.name} ends in another state than {leader.name}")
        self.world.require(
            leader.machine.data == model.data, "the state differs from a replay of the log"
        )
        sessions = leader.machine.sessions
        self.world.require(
            len(sessions) == len(model.sessions) and all(c in sessions for c in model.sessions),
            "the open sessions differ from a replay of the log",
        )
        return Report(
            seed=self.world.seed,
            nodes=len(self.nodes),
            steps=self.world.steps,
            simulated_ms=self.world.now_ms,
            operations=len(operations),
            succeeded=sum(client.succeeded for client in self.clients),
            faults=self.faults.count,
            committed=model.last,
            counts=dict(self.world.counts),
        )


def run_seed(seed: int, plan: Plan = Plan(), say: Callable[[str], None] | None = None) -> Report:
    """Run one seed; `SimFailure` says which promise broke."""
    return Run(seed, plan, say).go()
