"""The loop of one worker process: drain, batch, one fsync, send, apply, reply.

The one rule: one thread, one loop, no waiting inside it except for the disk. What takes long is
cut into slices (a flush) or happens before the loop begins (recovery).

    starting → recovering → serving
                   └──────→ fenced      the files are damaged: every request hears why
"""

from __future__ import annotations

import base64
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shardnode.raft import Membership, Message, Options, ProtocolViolation, Raft, Role
from shardnode.raft.messages import TimeoutNow
from shardnode.shard.boot import KEEP_ENTRIES, ReplicaSettings
from shardnode.shard.builder import ProcessBuilder
from shardnode.shard.channel import Channel
from shardnode.shard.comparing import Comparing
from shardnode.shard.control import NOTHING, Wish
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.greeting import ASK_EVERY_MS, Greeting
from shardnode.shard.lanes import Incoming, Lanes
from shardnode.shard.letters import Carry, Check, Hello
from shardnode.shard.peers import Peers
from shardnode.shard.replica import Replica
from shardnode.shard.reports import report, status_found
from shardnode.shard.service import Service
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.steward import Steward
from shardnode.shard.transfer import Piece, Pull
from shardnode.shard.waiting import Desk
from shardnode.storage.errors import Corrupt as Corrupted
from shardnode.storage.errors import NoSpace, StorageError
from shardnode.storage.files import RealFiles
from shardnode.storage.options import LogOptions
from shardnode.storage.superblock import COPIES
from shardnode.wire.errors import Corrupt, ShardnodeError, Unavailable
from shardnode.wire.frames import Frame, return_address
from shardnode.wire.placement import PlacementTable, split_member_id
from shardnode.wire.routing import LEGACY_SHARD

TELL_EVERY_MS = 250
IDLE_MS = 50
"""How long the loop sleeps when nothing happens: a fraction of a heartbeat between members."""

COMMITTING_MS = 2
"""… and while a flush is on its way to the disk in another thread."""

FLUSH_SLICE_KEYS = 2_000
"""Keys moved to the engine between two drains: about four milliseconds."""

FENCED_FILE = "fenced"
"""In the directory of a shard whose state was found to be wrong: it stays out after a restart."""

Clock = Callable[[], int]
Plain = Message | Pull | Piece | Hello | Check

log = logging.getLogger("shardnode.shard")


class Worker:
    """One shard of one node."""

    def __init__(
        self, settings: WorkerSettings, channel: Channel, *, now_ms: Clock, wall_ms: Clock
    ) -> None:
        self.settings = settings
        self.channel = channel
        self.state = "starting"
        self.error = ""
        self.replica: Replica | None = None
        self.effects: Effects | None = None
        self.service: Service | None = None
        self.stopping = False
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        others = {shard: ipc for shard, ipc in settings.siblings.items() if shard != LEGACY_SHARD}
        is_front = settings.shard == LEGACY_SHARD  # the only one that passes requests on
        self._lanes = Lanes(settings.direct, settings.ipc, others if is_front else {})
        self._lanes.poller.register(channel.source)
        self._wish = Wish(settings.nodes_version, dict(settings.nodes))
        self._routers = dict(settings.nodes)
        self._peers = self._open_peers()
        self._comparing = Comparing(settings.cluster_id, settings.member)
        self._steward: Steward | None = None
        self._blank = settings.joins
        self._told_wish = 0
        self._told: tuple[Any, ...] = ()
        self._told_ms = 0
        self._told_epoch = 0

    def run(self) -> None:
        """Recover, then serve until told to stop."""
        self._greet()
        self.state = "recovering"
        try:
            self._look_for_fence()
            self._recover()
        except StorageError as error:
            self._fence(f"{type(error).__name__}: {error}")
        self._listen()
        while not self.stopping:
            events = self._lanes.poller.poll(self._patience_ms())
            if self.service is not None and self.state != "fenced":
                self._serve(self.service)
            else:
                self._turn_away(Corrupt(f"shard {self.settings.shard} is fenced: {self.error}"))
            if any(source == self.channel.source for source, _ in events):
                self._listen()
            self._tell()
        self.close()

    def close(self) -> None:
        """A clean stop: everything applied is durable, so the next start has nothing to redo."""
        if self.replica is not None and self.state != "fenced":
            self.replica.close()
        if self.effects is not None:
            self.effects.close()
        self._lanes.close()

    # -- boot ---------------------------------------------------------------------------------

    def _open_peers(self) -> Peers | None:
        settings = self.settings
        if not settings.peer_listen:
            return None
        lanes = self._lanes
        peers = Peers(
            lanes.context,
            lanes.poller,
            settings.peer_listen,
            shard=settings.shard,
            cluster=settings.cluster_id,
        )
        peers.use(settings.peers(self._wish.members))
        return peers

    def _greet(self) -> None:
        """At first boot among others, find out whether the group is new."""
        settings, peers = self.settings, self._peers
        others = [member for member in settings.voters if member != settings.member]
        if peers is None or not others or superblock_exists(settings.directory):
            return
        greeting = Greeting(settings.cluster_id, settings.member, others)
        while not greeting.done and not self.stopping:
            peers.send(greeting.ask(self._now_ms()))
            self._lanes.poller.poll(ASK_EVERY_MS)
            for letter in peers.drain():
                if isinstance(letter, Hello):
                    peers.send(greeting.take(letter))
            nodes = ", ".join(str(split_member_id(member)[1]) for member in greeting.silent)
            self.error = f"first boot: waiting for node {nodes}" if nodes else ""
            self._turn_away(Unavailable(f"shard {settings.shard} starts: {self.error}"))
            self._listen()
            self._tell()
        self.error = ""
        self._blank |= greeting.found_data

    def _recover(self) -> None:
        """Open everything; lines go out meanwhile, because this may take long."""
        with self._busy():
            self._open()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """While this takes, another thread says that we are alive."""
        done = threading.Event()
        beat = threading.Thread(target=self._beat, args=(done,), daemon=True)
        beat.start()
        try:
            yield
        finally:
            done.set()
            beat.join()

    def _beat(self, done: threading.Event) -> None:
        while True:
            self.channel.tell(report(self))
            if done.wait(TELL_EVERY_MS / 1000):
                return

    def _look_for_fence(self) -> None:
        """A shard that was found to be wrong stays out until its directory is replaced."""
        path = os.path.join(self.settings.directory, FENCED_FILE)
        if os.path.exists(path):
            with open(path) as file:
                raise Corrupted(file.read().strip(), path=path)

    def _open(self) -> None:
        settings = self.settings
        root, name = os.path.split(settings.directory)
        files = RealFiles(root)
        self.effects = open_effects(settings.directory, settings.engine, settings.storage)
        self.replica = Replica(
            replace(replica_settings(settings, name), blank=self._blank),
            files=files,
            machine=self.effects,
            rng=random.Random(),
            now_ms=self._now_ms(),
            send=self._peers.send if self._peers is not None else _nobody,
            builder=ProcessBuilder(root, self.effects.path) if self.effects.path else None,
            busy=self._busy,
        )
        self.service = Service(
            settings,
            self.replica,
            self.effects,
            wall_ms=self._wall_ms,
            send=self._send,
            forward=self._lanes.forward,
            carry=self._carry,
            status=lambda: status_found(self),
        )
        self.service.wish = self._wish
        self._steward = Steward(self.replica, settings.shard)
        if self.effects.table is not None:
            self.service.use_table(self.effects.table)

    def _send(self, to: Incoming, frames: Sequence[Frame]) -> None:
        """Answer a message, by the way it came."""
        if to.lane is not None:
            self._lanes.send(to, frames)
        elif self._peers is not None:
            source, token = (int.from_bytes(part, "big") for part in to.envelope)
            settings = self.settings
            letter = Carry(settings.cluster_id, settings.member, source, token, True, frames)
            self._peers.post(letter)

    def _carry(self, token: int, frames: Sequence[Frame]) -> bool:
        """Send a request to the member that leads."""
        settings, replica = self.settings, self.replica
        if self._peers is None or replica is None or not replica.raft.leader:
            return False
        leader = replica.raft.leader
        letter = Carry(settings.cluster_id, settings.member, leader, token, False, frames)
        return leader != settings.member and self._peers.post(letter)

    def _fence(self, why: str) -> None:
        self.state, self.error = "fenced", why
        log.error("shard %d is FENCED: %s", self.settings.shard, why)

    # -- the loop -----------------------------------------------------------------------------

    def _patience_ms(self) -> int:
        effects = self.effects
        if effects is None or not effects.flushing:
            return IDLE_MS
        return COMMITTING_MS if effects.committing else 0

    def _serve(self, service: Service) -> None:
        replica, effects = service.replica, service.effects
        letters = self._peers.drain() if self._peers is not None else ()
        messages = self._lanes.drain()
        # The clock is read after the requests came in: a lease must cover all of them.
        now_ms = self._now_ms()
        try:
            replica.tick(now_ms)
            for letter in letters:
                if isinstance(letter, Carry):
                    self._take_carried(letter, service, messages)
                else:
                    self._take_letter(letter, replica)
            service.take(messages, now_ms)
            if self._steward is not None:
                self._steward.tend(self._wish, now_ms)
            replica.pump()
            if len(service.legacy):
                for frames in self._lanes.forwarded():
                    service.legacy.arrived(frames)
            service.finish()
            self._flush_some(replica, effects)
        except (StorageError, ProtocolViolation) as error:
            # Nobody knows what is on the disk now: the supervisor starts us again, and recovery
            # decides. What was not answered is unknown to its sender, which is the truth.
            self.error = f"{type(error).__name__}: {error}"
            self.channel.tell(report(self))
            raise
        self._judge_state(replica.raft)
        self._follow_table(service)
        if effects.checks or self._comparing.news:
            self._compare(replica.raft, effects)

    def _take_letter(
        self, letter: Message | Pull | Piece | Hello | Check, replica: Replica
    ) -> None:
        if isinstance(letter, Hello):
            self._answer(letter, replica)
        elif isinstance(letter, Check):
            self._comparing.heard(letter, replica.raft.membership)
        else:
            if isinstance(letter, TimeoutNow) and self._steward is not None:
                self._steward.handed(letter.term)
            replica.receive(letter)

    def _take_carried(self, letter: Carry, service: Service, messages: list[Incoming]) -> None:
        if letter.target != self.settings.member:
            service.counters["carried_strangers"] += 1
        elif letter.is_reply:
            service.legacy.answered(letter.token, [bytes(frame) for frame in letter.frames])
        else:
            envelope = (letter.source.to_bytes(8, "big"), letter.token.to_bytes(8, "big"))
            messages.append(Incoming(None, envelope, [bytes(each) for each in letter.frames]))

    def _compare(self, raft: Raft, effects: Effects) -> None:
        """Tell the others what our state hashes to, and look at what they have told."""
        checks, effects.checks = effects.checks, []
        for index, digest in checks:
            letters = self._comparing.own(index, digest, raft.membership)
            if self._peers is not None:
                self._peers.send(letters)
        why = self._comparing.verdict(raft.membership)
        if why:
            self._fence(why)
            with open(os.path.join(self.settings.directory, FENCED_FILE), "w") as file:
                file.write(f"{why}\n")

    def _answer(self, hello: Hello, replica: Replica) -> None:
        """A member that boots for the first time wants to know whether the group is new."""
        if hello.asks and self._peers is not None:
            has_data = replica.raft.term > 0 or replica.log.last_index > 0
            me = self.settings.member
            self._peers.send([Hello(hello.cluster, me, hello.source, has_data, asks=False)])

    def _judge_state(self, raft: Raft) -> None:
        if raft.recovering:
            self.state = "recovering"
        elif self._wish.version and self._is_out(raft):
            self.state = "removed"
        elif self.state == "removed":
            self.state = "recovering"
        elif self.state == "recovering" and (
            raft.applied_index >= raft.term_start_index
            if raft.role is Role.LEADER
            else raft.leader != 0
        ):
            self.state = "serving"

    def _is_out(self, raft: Raft) -> bool:
        """Not wanted any more, and no leader talks to us."""
        settings = self.settings
        return settings.node not in self._wish.members and not raft.leader

    def _flush_some(self, replica: Replica, effects: Effects) -> None:
        if effects.flushing:
            try:
                index = effects.flush_slice(FLUSH_SLICE_KEYS)
            except NoSpace:
                replica.counters["flush_failed"] += 1  # nothing is lost: the next slice begins anew
                return
            if index is not None:
                replica.flushed(index)
        elif effects.wants_flush and not replica.catching_up:
            effects.begin_flush(replica.membership_bytes())

    def _turn_away(self, error: ShardnodeError) -> None:
        """Nobody is served: say why, to everybody."""
        desk = Desk(self.settings.shard, self._lanes.send)
        for message in self._lanes.drain():
            desk.refuse(message, return_address(message.frames), error)

    # -- the supervisor -----------------------------------------------------------------------

    def _listen(self) -> None:
        for line in self.channel.lines():
            if line.get("stop"):
                self.stopping = True
            if "table" in line and self.service is not None:
                table = PlacementTable.decode(base64.b64decode(line["table"]))
                if table.epoch > self.service.table.epoch:
                    self.service.use_table(table)
            if "members" in line and line["members_version"] >= self._wish.version:
                self._use_members(line["members_version"], line["members"])

    def _use_members(self, version: int, members: Mapping[str, str]) -> None:
        """The nodes that are wanted. One that is not any more keeps its connection while it is in
        the group: it has to hear that it leaves."""
        nodes = {int(node): router for node, router in members.items()}
        self._wish = Wish(version, nodes)
        self._routers |= nodes
        if self.service is not None:
            self.service.wish = self._wish
        if self._peers is not None:
            self._peers.use(self.settings.peers({**self._parting(nodes), **nodes}))

    def _parting(self, wanted: Mapping[int, str]) -> dict[int, str]:
        if self.replica is None or self._peers is None:
            return {}
        group = {split_member_id(each)[1] for each in self.replica.raft.membership.everyone}
        known = self._routers
        return {node: known[node] for node in group & known.keys() if node not in wanted}

    def _follow_table(self, service: Service) -> None:
        table = service.effects.table
        if table is not None and table.epoch > service.table.epoch:
            service.use_table(table)

    def _tell(self) -> None:
        now_ms = self._now_ms()
        raft = self.replica.raft if self.replica is not None else None
        standing: tuple[Any, ...] = (self.state,)
        if raft is not None and self.effects is not None:
            version = self.effects.control.wish.version
            standing = (self.state, raft.role, raft.leader, raft.term, version)
        if standing == self._told and now_ms - self._told_ms < TELL_EVERY_MS:
            return
        line = report(self)
        table = self.effects.table if self.effects is not None else None
        if table is not None and table.epoch != self._told_epoch:
            line["table"] = base64.b64encode(table.encode()).decode()
            self._told_epoch = table.epoch
        wish = self.effects.control.wish if self.effects is not None else NOTHING
        if wish.version != self._told_wish:
            line["members"] = {str(node): router for node, router in wish.members.items()}
            line["members_version"] = self._told_wish = wish.version
        self._told, self._told_ms = standing, now_ms
        self.channel.tell(line)


def superblock_exists(directory: str) -> bool:
    """Whether this shard has booted before."""
    return any(os.path.exists(os.path.join(directory, name)) for name in COPIES)


def _nobody(_: object) -> None:
    """A group of one has nobody to write to."""


def replica_settings(settings: WorkerSettings, directory: str) -> ReplicaSettings:
    """How consensus and storage are set up for this worker."""
    raft, storage = dict(settings.raft), dict(settings.storage)
    return ReplicaSettings(
        directory=directory,
        cluster=settings.cluster_id,
        member=settings.member,
        bootstrap=Membership.of(settings.voters),
        repair=len(settings.nodes) > 1,
        raft=Options(**{name: value for name, value in raft.items() if name in Options.__slots__}),
        log=LogOptions(
            **{name: value for name, value in storage.items() if name in LogOptions.__slots__}
        ),
        flush_every_entries=1 << 62,  # the loop flushes in slices
        snapshot_every_entries=storage.get("snapshot_entries", 0),
        keep_entries=storage.get("keep_entries", KEEP_ENTRIES),
    )
