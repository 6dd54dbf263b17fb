"""What goes wrong, and when.

The one rule: a fault is something that a correct system survives. At most a minority of the voters
has a damaged disk at a time, and everything else may happen to everybody at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardnode.raft import Refused
from shardnode.raft.messages import Heartbeat
from shardnode.sim.network import Network, Weather
from shardnode.sim.node import SimNode
from shardnode.sim.world import World

SHARD_SHIFT = 48


class Faults:
    """A source of trouble for the nodes of one world."""

    def __init__(
        self,
        world: World,
        network: Network,
        nodes: Sequence[SimNode],
        favour: Sequence[str] = (),
    ) -> None:
        self.world = world
        self.network = network
        self.nodes = nodes
        self.count = 0
        self.stopped = False
        several: list[Callable[[], str | None]] = [
            self._isolate,
            self._one_way,
            self._partial,
            self._split,
            self._clog,
            self._bad_weather,
            self._heal,
            self._transfer,
            self._flip_bit,
            self._flip_copy,
            self._flip_snapshot,
            self._flip_snapshot,
            self._empty_log,
            self._crash_all,
            self._reconfigure,
        ]
        alone: list[Callable[[], str | None]] = [
            self._crash,
            self._crash,
            self._crash_in_disk,
            self._crash_in_disk,
            self._crash_in_disk,
            self._pause,
            self._full_disk,
            self._failing_sync,
            self._expire_sessions,
            self._stranger,
        ]
        self._kinds = alone + several if len(nodes) > 1 else alone
        self._favoured = [kind for kind in self._kinds if kind.__name__[1:] in favour]

    def start(self) -> None:
        """The first trouble comes soon."""
        self.world.after(self.world.rng.randint(100, 1500), self._strike)

    def _strike(self) -> None:
        if self.stopped:
            return
        favoured = bool(self._favoured) and self.world.chance(50)
        kind = self.world.rng.choice(self._favoured if favoured else self._kinds)
        done = kind()
        if done is not None:
            self.count += 1
            self.world.counts["fault " + kind.__name__[1:]] += 1
            self.world.say("faults", done)
            if self.network.troubled:
                # Trouble passes, else a few partitions would keep everybody silent for ever.
                self.world.after(self.world.rng.choice((200, 800, 2500)), self.network.heal)
        self.world.after(self.world.rng.randint(50, 1200), self._strike)

    def _node(self) -> SimNode:
        return self.world.rng.choice(self.nodes)

    def _up(self) -> SimNode | None:
        up = [node for node in self.nodes if node.replica is not None]
        return self.world.rng.choice(up) if up else None

    def _leader(self) -> SimNode | None:
        leaders = [node for node in self.nodes if node.leads]
        return self.world.rng.choice(leaders) if leaders else None

    # -- processes ----------------------------------------------------------------------------

    def _crash(self) -> str | None:
        node = self._up() if self.world.chance(60) else self._leader()
        if node is None:
            return None
        node.die()
        return f"{node.name} killed"

    def _crash_in_disk(self) -> str | None:
        node = self._up()
        if node is None:
            return None
        operations = self.world.rng.randint(1, 40)
        node.files.fail_after(operations, "crash")
        return f"{node.name} will die in {operations} disk operations"

    def _crash_all(self) -> str | None:
        for node in self.nodes:
            if node.replica is not None:
                node.die()
        return "power loss everywhere"

    def _pause(self) -> str | None:
        node = self._leader() if self.world.chance(60) else self._up()
        if node is None or node.paused:
            return None
        node.pause(self.world.rng.choice((50, 250, 400, 1000, 3000)))
        if self.world.chance(40):
            # It wakes up alone, so that only its clock can tell it what has happened.
            self._cut_off(node)
        return f"{node.name} paused"

    # -- disks --------------------------------------------------------------------------------

    def _full_disk(self) -> str | None:
        """Once, or for a while."""
        node = self._up()
        if node is None:
            return None
        node.files.fail_after(self.world.rng.randint(1, 20), "enospc")
        for wait_ms in range(20, self.world.rng.choice((0, 0, 400)), 20):
            self.world.after(wait_ms, lambda: self._fill(node))
        return f"{node.name} will find its disk full"

    def _fill(self, node: SimNode) -> None:
        if node.replica is not None and not self.stopped:
            node.files.fail_after(self.world.rng.randint(1, 4), "enospc")

    def _failing_sync(self) -> str | None:
        node = self._up()
        if node is None:
            return None
        node.files.fail_after(self.world.rng.randint(1, 20), "fsync")
        return f"{node.name} will see a sync fail"

    def _flip_bit(self) -> str | None:
        """Damage below the durable mark on one member at a time, found at its next boot."""
        node = self._spoil()
        if node is None:
            return None
        directory = f"{node.settings.directory}/log"
        # The last segment may end in what was never synced: a flip there is no damage.
        segments = [name for name in node.files.listdir(directory) if name.endswith(".seg")]
        if len(segments) < 2:
            return None
        path = f"{directory}/{self.world.rng.choice(segments[:-1])}"
        node.files.flip_bit(path, None)
        node.damaged = True
        return f"{node.name} has a flipped bit in {path}"

    def _empty_log(self) -> str | None:
        """Somebody removed the log and left the rest."""
        node = self._spoil()
        if node is None:
            return None
        directory = f"{node.settings.directory}/log"
        for name in node.files.listdir(directory):
            node.files.remove(f"{directory}/{name}")
        node.files.sync_dir(directory)
        node.damaged = True
        return f"{node.name} has lost its log"

    def _spoil(self) -> SimNode | None:
        """Kill a node so that its disk can be damaged, unless another is still hurt."""
        node = self._node()
        if any(_is_hurt(other) for other in self.nodes):
            return None
        if node.replica is not None:
            node.die()
        return node if node.files.exists(f"{node.settings.directory}/log") else None

    def _flip_copy(self) -> str | None:
        """One copy of the superblock, or an index: a member mends that by itself."""
        node = self._up()
        if node is None:
            return None
        node.die()  # between two drains, so both copies are whole
        directory = node.settings.directory
        paths = [f"{directory}/superblock.a", f"{directory}/superblock.b"]
        log = f"{directory}/log"
        paths += [f"{log}/{name}" for name in node.files.listdir(log) if name.endswith(".idx")]
        path = self.world.rng.choice(paths)
        return self._flip(node, path)

    def _flip_snapshot(self) -> str | None:
        """A snapshot goes bad while its node runs: whoever fetches it must notice."""
        node = self._leader()
        if node is None or any(_is_hurt(other) for other in self.nodes):
            return None
        directory = f"{node.settings.directory}/snapshots"
        published = [name for name in node.files.listdir(directory) if name.isdigit()]
        if not published:
            return None
        path = f"{directory}/{max(published)}/{self.world.rng.choice(('keys', 'sessions'))}"
        node.spoiled = path
        return self._flip(node, path)

    def _flip(self, node: SimNode, path: str) -> str | None:
        if not node.files.open(path).size():
            return None  # it was never synced
        node.files.flip_bit(path, None)
        return f"{node.name} has a flipped bit in {path}"

    # -- network ------------------------------------------------------------------------------

    def _cut(self, source: int, target: int) -> None:
        self.network.cut.add((source, target))

    def _cut_off(self, node: SimNode) -> None:
        for other in self.nodes:
            self._cut(node.member, other.member)
            self._cut(other.member, node.member)

    def _isolate(self) -> str | None:
        node = self._leader() or self._node()
        self._cut_off(node)
        return f"{node.name} isolated from the others"

    def _one_way(self) -> str | None:
        node = self._leader() or self._node()
        inward = self.world.chance(50)
        for other in self.nodes:
            link = (other.member, node.member) if inward else (node.member, other.member)
            self._cut(*link)
        return f"{node.name} cut off {'inward' if inward else 'outward'}"

    def _partial(self) -> str | None:
        first, second = self.world.rng.sample(self.nodes, 2)
        self._cut(first.member, second.member)
        self._cut(second.member, first.member)
        return f"{first.name} and {second.name} do not hear each other"

    def _split(self) -> str | None:
        side = [node for node in self.nodes if self.world.chance(50)]
        for inner in side:
            for outer in self.nodes:
                if outer not in side:
                    self._cut(inner.member, outer.member)
                    self._cut(outer.member, inner.member)
        return f"{[node.name for node in side]} split off"

    def _clog(self) -> str | None:
        first, second = self.world.rng.sample(self.nodes, 2)
        self.network.clogged[first.member, second.member] = self.world.rng.randint(100, 1500)
        return f"{first.name} → {second.name} clogged"

    def _bad_weather(self) -> str | None:
        rng = self.world.rng
        self.network.weather = Weather(
            rng.choice((1, 5, 50, 200)), rng.choice((0, 2, 20)), rng.choice((0, 5, 30))
        )
        return f"weather: {self.network.weather}"

    def _heal(self) -> str | None:
        self.network.heal()
        return "network healed"

    def _stranger(self) -> str | None:
        """A message of another cluster or shard must be dropped and counted (D5)."""
        node = self._up()
        if node is None or node.replica is None:
            return None
        raft = node.replica.raft
        other_shard = (node.member ^ (1 << SHARD_SHIFT)) + 1
        cluster, source = raft.cluster, node.member + 1
        if self.world.chance(50):
            cluster += 1
        else:
            source = other_shard
        before = (raft.term, raft.counters["stranger"])
        node.replica.receive(
            Heartbeat(cluster, source, node.member, raft.term + 9, 1 << 60, 1 << 40, 1 << 40, 0)
        )
        after = (raft.term, raft.counters["stranger"])
        self.world.require(after == (before[0], before[1] + 1), "a stranger was listened to")
        return f"{node.name} heard a stranger"

    # -- operators ----------------------------------------------------------------------------

    def _transfer(self) -> str | None:
        leader = self._leader()
        if leader is None or leader.replica is None:
            return None
        target = self._node().member
        try:
            leader.replica.transfer(target)
        except Refused:
            return None
        if self.world.chance(50):
            # The order leaves, and then the old leader hears nothing of what comes of it.
            self.world.after(self.world.rng.randint(2, 60), lambda: self._deafen(leader))
        return f"{leader.name} hands over to {target:#x}"

    def _deafen(self, node: SimNode) -> None:
        if not self.stopped:
            for other in self.nodes:
                self._cut(other.member, node.member)
            self.world.after(self.world.rng.choice((200, 800)), self.network.heal)

    def _reconfigure(self) -> str | None:
        """Three voters or more among all nodes; nobody changes members around a damaged disk."""
        leader = self._leader()
        if leader is None or leader.replica is None or len(self.nodes) < 4:
            return None
        if any(_is_hurt(node) for node in self.nodes):
            return None
        members = [node.member for node in self.nodes]
        voters = self.world.rng.sample(members, self.world.rng.randint(3, len(members)))
        learners = [m for m in members if m not in voters and self.world.chance(50)]
        try:
            leader.replica.change_config(voters, learners)
        except Refused:
            return None
        return f"{leader.name} moves to voters {voters}, learners {learners}"

    def _expire_sessions(self) -> str | None:
        leader = self._leader()
        if leader is None:
            return None
        leader.propose_expiry(self.world.now_ms - self.world.rng.choice((500, 3000)))
        return f"{leader.name} ends silent sessions"


def _is_hurt(node: SimNode) -> bool:
    """Whether its disk has lost something that it has not got back."""
    if node.spoiled and not node.files.exists(node.spoiled):
        node.spoiled = ""
    recovers = node.replica is not None and node.replica.raft.recovering
    return node.damaged or bool(node.spoiled) or recovers
