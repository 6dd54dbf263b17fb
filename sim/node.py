"""One simulated process: a production `Replica` on simulated files, with the worker's drain loop.

The one rule: a crash may come between any two disk operations; what the process held in memory is
gone, and what it had not synced is at the mercy of the disk.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardnode.raft import Message, Refused, Role
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.replica import Fate, Replica, Request
from shardnode.shard.transfer import Piece, Pull
from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.sim.machine import KV_PARTITION, SimMachine, pack_command, pack_entry
from shardnode.sim.network import Network
from shardnode.sim.world import World
from shardnode.storage.errors import NoSpace, SyncFailed

if TYPE_CHECKING:
    from shardnode.sim.checks import Checks

TICK_MS = 20


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request: a command to log, or a key to read when `command` is empty."""

    source: int
    number: int
    command: bytes = b""
    key: bytes = b""
    lease: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client hears. `refused` certainly had no effect, `unknown` may have had one."""

    number: int
    status: str
    reply: bytes = b""
    value: bytes | None = None
    index: int = 0
    hint: int = 0


class SimNode:
    """A process that can be started, paused and killed."""

    def __init__(
        self,
        world: World,
        network: Network,
        checks: Checks,
        settings: ReplicaSettings,
        clock_percent: int,
    ) -> None:
        self.world = world
        self.network = network
        self.checks = checks
        self.settings = settings
        self.member = settings.member
        self.name = f"node {self.member & 0xFFFF}"
        self.files = SimFiles(random.Random(world.rng.getrandbits(64)))
        self.machine = SimMachine(self._observe)
        self.replica: Replica | None = None
        self.paused = False
        self.damaged = False
        """Bits were flipped: until it has caught up again this member counts as a lost disk."""
        self.spoiled = ""
        """A snapshot file with a flipped bit: a boot that needs it counts as damaged too."""
        self.boots = 0
        self._clock_percent = clock_percent
        self._inbox: list[Any] = []
        self._wake_due = False
        self._busy_until_ms = 0
        self._asks: dict[int, Ask] = {}
        self._floors: dict[int, int] = {}
        self._token = 0
        network.attach(self.member, self._arrive)

    def clock_ms(self) -> int:
        """This machine's monotonic clock, which runs a little fast or slow."""
        return self.world.now_ms * self._clock_percent // 100

    @property
    def leads(self) -> bool:
        """Whether this process thinks that it leads."""
        return self.replica is not None and self.replica.raft.role is Role.LEADER

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot from what the disk has kept."""
        assert self.replica is None
        self.boots += 1
        try:
            self.replica = Replica(
                self.settings,
                files=self.files,
                machine=self.machine,
                rng=random.Random(self.world.rng.getrandbits(64)),
                now_ms=self.clock_ms(),
                send=self._send,
            )
        except (SimCrash, SyncFailed, NoSpace) as error:
            self.world.say(self.name, f"died while booting: {error!r}")
            self.die()
            return
        self.checks.booted(self)
        self.world.say(self.name, f"booted: {describe(self.replica)}")
        self._tick(self.boots)

    def die(self) -> None:
        """SIGKILL together with a power loss; somebody starts it again later."""
        self.replica = None
        self._inbox.clear()
        self._asks.clear()
        self._floors.clear()
        self.files.crash()
        self.machine.crash(self.world.rng)
        self.checks.died(self)
        self.world.counts["crashes"] += 1
        self.world.say(self.name, "died")
        boots = self.boots
        self.world.after(self.world.rng.randint(50, 1500), lambda: self._start_again(boots))

    def _start_again(self, boots: int) -> None:
        if self.replica is None and self.boots == boots:
            self.start()

    def pause(self, for_ms: int) -> None:
        """SIGSTOP; messages pile up meanwhile."""
        if not self.paused:
            self.paused = True
            self.world.say(self.name, f"paused for {for_ms} ms")
            self.world.after(for_ms, self.resume)

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused = False
            self.world.say(self.name, "resumed")
            self._wake_soon()

    # -- the loop -----------------------------------------------------------------------------

    def _tick(self, boots: int) -> None:
        if self.boots == boots and self.replica is not None:
            self._wake_soon()
            self.world.after(TICK_MS, lambda: self._tick(boots))

    def _arrive(self, message: Any) -> None:
        if self.replica is not None:
            self._inbox.append(message)
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._wake_due and not self.paused and self.replica is not None:
            self._wake_due = True
            self.world.after(max(0, self._busy_until_ms - self.world.now_ms), self._wake)

    def _wake(self) -> None:
        """Drain everything that waits, do it as one batch, answer."""
        self._wake_due = False
        if self.paused or self.replica is None:
            return
        inbox, self._inbox = self._inbox, []
        try:
            self._drain(self.replica, inbox)
        except (SimCrash, SyncFailed, NoSpace) as error:
            # A replica lives on with a full disk where it can; elsewhere the process ends.
            self.world.say(self.name, f"dies of {type(error).__name__}")
            self.die()
            return
        self.checks.after_wake(self)
        slow = self.world.chance(2)
        self._busy_until_ms = self.world.now_ms + self.world.rng.randint(0, 60 if slow else 2)

    def _drain(self, replica: Replica, inbox: Sequence[Any]) -> None:
        replica.tick(self.clock_ms())
        requests: list[Request] = []
        for message in inbox:
            if isinstance(message, Ask):
                self._take(replica, message, requests)
            else:
                replica.receive(message)
        if requests:
            self._propose(replica, requests)
        replica.pump()
        self._answer(replica)

    def _take(self, replica: Replica, ask: Ask, requests: list[Request]) -> None:
        self._token += 1
        self._asks[self._token] = ask
        if ask.command:
            payload = pack_entry(self.world.now_ms, ask.command)
            requests.append(Request(self._token, KV_PARTITION, payload))
            return
        self._floors[self._token] = self.checks.committed_index
        try:
            replica.read(self._token, lease=ask.lease)
        except Refused:
            self._refuse(replica, self._token)

    def _propose(self, replica: Replica, requests: list[Request]) -> None:
        try:
            replica.propose(requests)
        except Refused:
            for request in requests:
                self._refuse(replica, request.token)

    def propose_expiry(self, silent_since: int) -> None:
        """As the leader does by itself: end the sessions that were silent for long."""
        assert self.replica is not None
        payload = pack_entry(self.world.now_ms, pack_command("expire", expected=silent_since))
        self._propose(self.replica, [Request(0, KV_PARTITION, payload)])
        self._wake_soon()

    def _answer(self, replica: Replica) -> None:
        for outcome in replica.outcomes:
            if outcome.fate is Fate.APPLIED:
                self._reply(outcome.token, "done", reply=outcome.reply, index=outcome.index)
            elif outcome.fate is Fate.LOST:
                self._refuse(replica, outcome.token)
            else:
                self._reply(outcome.token, "unknown")
        replica.outcomes.clear()
        for grant in replica.reads:
            ask = self._asks.get(grant.context)
            if ask is not None:
                value, version = self.machine.get(ask.key)
                reply = str(version).encode()
                index = self.machine.applied_index
                self.checks.read(self, self._floors[grant.context], index)
                self._reply(grant.context, "done", reply=reply, value=value, index=index)
        replica.reads.clear()
        for context in replica.refused_reads:
            self._refuse(replica, context)
        replica.refused_reads.clear()

    def _refuse(self, replica: Replica, token: int) -> None:
        self._reply(token, "refused", hint=replica.raft.leader)

    def _reply(self, token: int, status: str, **rest: Any) -> None:
        ask = self._asks.pop(token, None)
        self._floors.pop(token, None)
        if ask is not None:
            answer = Answer(ask.number, status, **rest)
            self.network.send(self.member, ask.source, answer)

    # -- out ----------------------------------------------------------------------------------

    def _send(self, messages: Sequence[Message | Pull | Piece]) -> None:
        for message in messages:
            self.checks.sending(self, message)
            self.network.send(self.member, message.target, message)

    def _observe(self, entry: Any, reply: bytes, digest: int) -> None:
        self.checks.applied(self, entry, reply, digest)


def describe(replica: Replica) -> str:
    """A replica in one line of the trace."""
    raft, log = replica.raft, replica.log
    flags = " recovering" if raft.recovering else ""
    return (
        f"{raft.role.name.lower()} term {raft.term}, log {log.anchor.index}..{log.last_index}, "
        f"commit {raft.commit_index}, applied {replica.machine.applied_index}{flags}"
    )
