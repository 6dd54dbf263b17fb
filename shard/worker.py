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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from shardnode.raft import ProtocolViolation, Raft, Role
from shardnode.shard.boot import replica_settings
from shardnode.shard.bounds import Bounds
from shardnode.shard.builder import ProcessBuilder
from shardnode.shard.channel import Channel
from shardnode.shard.company import Company
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.greeting import ASK_EVERY_MS, Greeting
from shardnode.shard.lanes import Lanes
from shardnode.shard.letters import Hello
from shardnode.shard.rebuild import Remedy
from shardnode.shard.replica import Replica
from shardnode.shard.reports import TELL_EVERY_MS, Teller, report, status_found
from shardnode.shard.service import Service
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.topics import Topics
from shardnode.shard.waiting import Desk
from shardnode.storage.errors import Corrupt as Corrupted
from shardnode.storage.errors import KeysCorrupt, NoSpace, StorageError, SyncFailed
from shardnode.storage.failpoints import working_files
from shardnode.storage.superblock import COPIES
from shardnode.wire.errors import Corrupt, ShardnodeError, Unavailable
from shardnode.wire.frames import return_address
from shardnode.wire.placement import PlacementTable, split_member_id
from shardnode.wire.routing import LEGACY_SHARD

IDLE_MS = 100
"""How long the loop sleeps when nothing happens; what consensus has due sooner wakes it. Keys
expire within half a second, and nothing else that waits for the loop to look is in more haste."""

LINGER_MS = 2
"""… and at a follower that has something left to apply."""

COMMITTING_MS = 2
"""… and while a flush is on its way to the disk in another thread."""

FLUSH_AGAIN_MS = 100
"""After there was no room for a flush."""

FLUSH_SLICE_KEYS = 2_000
"""Keys moved to the engine between two drains: about four milliseconds."""

FLUSH_ENTRIES_MAX = 65_536
"""Small requests, and those without effect, hardly fill a table: but applying them again after a
crash takes as long as it did, some seconds for so many."""

APPLY_SLICE_ENTRIES = 1_000
"""Applied at most, or a little more, before everybody else has a turn: a restart may have much to
redo, and must be heard meanwhile."""

HAND_OVER_MS = 1_000
"""How long a leader that stops waits for another to take over."""

FENCED_FILE = "fenced"
"""In the directory of a shard whose state was found to be wrong: it stays out after a restart."""

Clock = Callable[[], int]
Signalled = Mapping[object, int]
"""The sockets of a poll at which something waits."""

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
        self._company = Company(settings, self._lanes) if settings.peer_listen else None
        self._remedy = Remedy(settings)
        self._blank = settings.joins
        self._idle = True
        self._leave_by_ms: int | None = None
        self._flush_again_ms = 0
        self._topics = Topics()
        self._teller = Teller(channel)

    @property
    def traffic(self) -> dict[str, int]:
        """What the sockets counted: drops, strangers."""
        peers = self._company.counters if self._company is not None else {}
        return {**self._lanes.counters, **peers}

    def run(self) -> None:
        """Recover, then serve until told to stop."""
        self._greet()
        self.state = "recovering"
        try:
            self._look_for_fence()
            self._remedy.take()
            self._recover()
            self._look_for_excess()
        except (NoSpace, SyncFailed):
            raise  # no damage: the supervisor tries again for a while, then parks this shard
        except StorageError as error:
            self._fence(f"{type(error).__name__}: {error}")
        self._listen()
        while not (self.stopping and self._may_leave()):
            signalled = self._wait(self._patience_ms())
            if self.service is not None and self.state != "fenced":
                self._serve(self.service, signalled)
            else:
                why = f"shard {self.settings.shard} is fenced: {self.error}"
                self._turn_away(Corrupt(why), signalled)
            if self.channel.source in signalled:
                self._listen()
            self._teller.tell(self, self._now_ms())
        self.close()

    def _wait(self, patience_ms: int) -> Signalled:
        """Until something can be read, and what that is."""
        return dict(self._lanes.poller.poll(patience_ms))

    def _may_leave(self) -> bool:
        """A leader hands over before it goes: the others need not notice first that it is gone."""
        raft = self.replica.raft if self.replica is not None else None
        if raft is None or self._company is None or raft.role is not Role.LEADER:
            return True
        now_ms = self._now_ms()
        if self._leave_by_ms is None:
            self._leave_by_ms = now_ms + HAND_OVER_MS
            return not self._company.hand_over()
        return now_ms >= self._leave_by_ms

    def close(self) -> None:
        """A clean stop: everything applied is durable, so the next start has nothing to redo."""
        if self.replica is not None and self.state != "fenced":
            self.replica.close()
        if self.effects is not None:
            self.effects.close()
        self._lanes.close()

    # -- boot ---------------------------------------------------------------------------------

    def _greet(self) -> None:
        """At first boot among others, find out whether the group is new."""
        settings, peers = self.settings, self._company
        others = [member for member in settings.voters if member != settings.member]
        if peers is None or not others or superblock_exists(settings.directory):
            return
        greeting = Greeting(settings.cluster_id, settings.member, others)
        while not greeting.done and not self.stopping:
            peers.send(greeting.ask(self._now_ms()))
            signalled = self._wait(ASK_EVERY_MS)
            for letter in peers.drain(signalled):
                if isinstance(letter, Hello):
                    peers.send(greeting.take(letter))
            nodes = ", ".join(str(split_member_id(member)[1]) for member in greeting.silent)
            self.error = f"first boot: waiting for node {nodes}" if nodes else ""
            self._turn_away(Unavailable(f"shard {settings.shard} starts: {self.error}"), signalled)
            self._listen()
            self._teller.tell(self, self._now_ms())
        self.error = ""
        self._blank |= greeting.found_data

    def _recover(self) -> None:
        """Open everything; lines go out meanwhile, because this may take long."""
        with self._busy():
            try:
                self._open()
            except KeysCorrupt as error:
                if not self._remedy.has_peers:
                    raise
                self._remedy.ask(f"{type(error).__name__}: {error}")
                self._remedy.take()
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
        settings, company = self.settings, self._company
        root, name = os.path.split(settings.directory)
        files = working_files(root, name)
        self.effects = open_effects(settings.directory, settings.engine, settings.storage)
        self.replica = Replica(
            replace(replica_settings(settings, name), blank=self._blank),
            files=files,
            machine=self.effects,
            rng=random.Random(),
            now_ms=self._now_ms(),
            send=company.send if company is not None else _nobody,
            builder=ProcessBuilder(root, self.effects.path) if self.effects.path else None,
            busy=self._busy,
        )
        self.service = Service(
            settings,
            self.replica,
            self.effects,
            wall_ms=self._wall_ms,
            send=company.reply if company is not None else self._lanes.send,
            forward=self._lanes.forward,
            carry=company.carry if company is not None else _nowhere,
            status=lambda: status_found(self),
            suggest=company.suggest if company is not None else _nobody,
        )
        if company is not None:
            self.service.wish = company.wish
            company.introduce(self.replica)
        if self.effects.table is not None:
            self.service.use_table(self.effects.table)

    def _look_for_excess(self) -> None:
        """What was recovered may be more than this node is set to accept by now."""
        streams = self.effects.streams if self.effects is not None else None
        too_much = Bounds.of(self.settings.limits).recovered(streams.settings if streams else ())
        if too_much:
            self._fence(too_much)

    def _look_for_damage(self, effects: Effects) -> None:
        """A partition is damaged: alone we serve the others, with peers we get it back."""
        damage = effects.streams.damage if effects.streams is not None else ""
        if damage and self._remedy.has_peers:
            self._remedy.ask(damage)
            raise Corrupted(damage, path=self.settings.directory)
        if damage and not self.error:
            self.error = damage
            log.error("shard %d: %s", self.settings.shard, damage)

    def _fence(self, why: str) -> None:
        self.state, self.error = "fenced", why
        log.error("shard %d is FENCED: %s", self.settings.shard, why)

    def _fence_for_good(self, why: str) -> None:
        """… also after a restart."""
        self._fence(why)
        with open(os.path.join(self.settings.directory, FENCED_FILE), "w") as file:
            file.write(f"{why}\n")

    # -- the loop -----------------------------------------------------------------------------

    def _patience_ms(self) -> int:
        effects = self.effects
        if not self._idle:
            return 0
        if effects is None or not effects.flushing or self._now_ms() < self._flush_again_ms:
            return self._until_due_ms()
        return COMMITTING_MS if effects.committing else 0

    def _until_due_ms(self) -> int:
        """Deadlines are drawn at random so that members do not campaign together: a sleep that
        passes over them would bring them together again."""
        if self.replica is None:
            return IDLE_MS
        if self.replica.lingers:
            return LINGER_MS
        raft = self.replica.raft
        due = raft.heartbeat_due_ms if raft.role is Role.LEADER else raft.election_deadline_ms
        return min(IDLE_MS, max(1, due - self._now_ms()))

    def _serve(self, service: Service, signalled: Signalled) -> None:
        replica, effects = service.replica, service.effects
        company = self._company
        letters = company.drain(signalled) if company is not None else []
        messages = self._lanes.drain(signalled)
        # The clock is read after the requests came in: a lease must cover all of them.
        now_ms = self._now_ms()
        try:
            replica.tick(now_ms)
            if company is not None:
                messages += company.take(letters, service)
            service.take(messages, now_ms)
            if company is not None:
                company.tend(now_ms)
            self._idle = replica.pump(APPLY_SLICE_ENTRIES, lazy=bool(signalled))
            if len(service.legacy):
                for frames in self._lanes.forwarded(signalled):
                    service.legacy.arrived(frames)
            service.finish()
            self._flush_some(replica, effects)
            self._look_for_damage(effects)
        except KeysCorrupt as error:
            # A restart would open the same files again, and come to the same place.
            if self._remedy.has_peers:
                self._remedy.ask(f"{type(error).__name__}: {error}")
                raise
            self._fence(f"{type(error).__name__}: {error}")
            return
        except (StorageError, ProtocolViolation) as error:
            # Nobody knows what is on the disk now: the supervisor starts us again, and recovery
            # decides. What was not answered is unknown to its sender, which is the truth.
            self.error = f"{type(error).__name__}: {error}"
            self.channel.tell(report(self))
            raise
        self._judge_state(replica.raft)
        self._follow_control(service)
        why = company.compare(effects) if company is not None else ""
        if why:
            self._fence_for_good(why)

    def _judge_state(self, raft: Raft) -> None:
        if raft.recovering:
            self.state = "recovering"
        elif self._company is not None and self._company.is_out:
            self.state = "removed"
        elif self.state == "removed":
            self.state = "recovering"
        elif self.state == "recovering" and (
            raft.applied_index >= raft.term_start_index
            if raft.role is Role.LEADER
            else raft.leader != 0
        ):
            self.state = "serving"

    def _flush_some(self, replica: Replica, effects: Effects) -> None:
        if self._now_ms() < self._flush_again_ms:
            return
        if effects.flushing:
            try:
                index = effects.flush_slice(FLUSH_SLICE_KEYS)
            except NoSpace:
                replica.counters["flush_failed"] += 1  # nothing is lost: the next slice begins anew
                self._flush_again_ms = self._now_ms() + FLUSH_AGAIN_MS
                return
            if index is not None:
                replica.flushed(index)
        elif not replica.catching_up and (
            effects.wants_flush
            or replica.flush_wanted
            or effects.applied_index - replica.flushed_index >= FLUSH_ENTRIES_MAX
        ):
            effects.begin_flush(replica.membership_bytes())

    def _turn_away(self, error: ShardnodeError, signalled: Signalled) -> None:
        """Nobody is served: say why, to everybody."""
        if self._company is not None and self.state == "fenced":
            self._company.drain(signalled)  # unheard, but not left to pile up
        desk = Desk(self.settings.shard, self._lanes.send)
        for message in self._lanes.drain(signalled):
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
            if "members" in line and self._company is not None:
                self._company.use_members(line["members_version"], line["members"])
                if self.service is not None:
                    self.service.wish = self._company.wish
            if line.get("topics_version", 0) > self._topics.version:
                self._topics = Topics.decode(base64.b64decode(line["topics"]))

    def _follow_control(self, service: Service) -> None:
        is_front = self.settings.shard == LEGACY_SHARD
        service.topics = service.effects.control.topics if is_front else self._topics
        table = service.effects.table
        if table is not None and table.epoch > service.table.epoch:
            service.use_table(table)


def superblock_exists(directory: str) -> bool:
    """Whether this shard has booted before."""
    return any(os.path.exists(os.path.join(directory, name)) for name in COPIES)


def _nowhere(*_: object) -> bool:
    """… and nobody to send anything on to."""
    return False


def _nobody(*_: object) -> None:
    """A group of one has nobody to write to."""
