"""The loop of one worker process: drain, batch, one fsync, send, apply, reply.

The one rule: one thread, one loop, no waiting inside it except for the disk. What takes long is
cut into slices (a flush) or happens before the loop begins (recovery).

    starting → recovering → serving
                   └──────→ fenced      the files are damaged: every request hears why
"""

from __future__ import annotations

import base64
import os
import random
import threading
from collections.abc import Callable
from typing import Any

from shardnode.raft import Membership, Options, ProtocolViolation, Role
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.channel import Channel
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.lanes import Lanes
from shardnode.shard.replica import Replica
from shardnode.shard.reports import report, status_found
from shardnode.shard.service import Service
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.waiting import Desk
from shardnode.storage.errors import NoSpace, StorageError
from shardnode.storage.files import RealFiles
from shardnode.storage.options import LogOptions
from shardnode.wire.errors import Corrupt
from shardnode.wire.frames import return_address
from shardnode.wire.placement import PlacementTable
from shardnode.wire.routing import LEGACY_SHARD

TELL_EVERY_MS = 250
IDLE_MS = 50
"""How long the loop sleeps when nothing happens: a fraction of a heartbeat between members."""

COMMITTING_MS = 2
"""… and while a flush is on its way to the disk in another thread."""

FLUSH_SLICE_KEYS = 2_000
"""Keys moved to the engine between two drains: about four milliseconds."""

Clock = Callable[[], int]


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
        self._told: tuple[Any, ...] = ()
        self._told_ms = 0
        self._told_epoch = 0

    def run(self) -> None:
        """Recover, then serve until told to stop."""
        self.state = "recovering"
        try:
            self._recover()
        except StorageError as error:
            self._fence(f"{type(error).__name__}: {error}")
        self._listen()
        while not self.stopping:
            events = self._lanes.poller.poll(self._patience_ms())
            if self.service is not None and self.state != "fenced":
                self._serve(self.service)
            else:
                self._turn_away()
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

    def _recover(self) -> None:
        """Open everything; lines go out meanwhile, because this may take long."""
        done = threading.Event()
        beat = threading.Thread(target=self._beat, args=(done,), daemon=True)
        beat.start()
        try:
            self._open()
        finally:
            done.set()
            beat.join()

    def _beat(self, done: threading.Event) -> None:
        while True:
            self.channel.tell(report(self))
            if done.wait(TELL_EVERY_MS / 1000):
                return

    def _open(self) -> None:
        settings = self.settings
        root, name = os.path.split(settings.directory)
        files = RealFiles(root)
        self.effects = open_effects(settings.directory, settings.engine, settings.storage)
        self.replica = Replica(
            replica_settings(settings, name),
            files=files,
            machine=self.effects,
            rng=random.Random(),
            now_ms=self._now_ms(),
            send=lambda _: None,  # peers come with clusters
        )
        self.service = Service(
            settings,
            self.replica,
            self.effects,
            wall_ms=self._wall_ms,
            send=self._lanes.send,
            forward=self._lanes.forward,
            status=lambda: status_found(self),
        )
        if self.effects.table is not None:
            self.service.use_table(self.effects.table)

    def _fence(self, why: str) -> None:
        self.state, self.error = "fenced", why

    # -- the loop -----------------------------------------------------------------------------

    def _patience_ms(self) -> int:
        effects = self.effects
        if effects is None or not effects.flushing:
            return IDLE_MS
        return COMMITTING_MS if effects.committing else 0

    def _serve(self, service: Service) -> None:
        replica, effects = service.replica, service.effects
        messages = self._lanes.drain()
        # The clock is read after the requests came in: a lease must cover all of them.
        now_ms = self._now_ms()
        try:
            replica.tick(now_ms)
            service.take(messages, now_ms)
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
        if self.state == "recovering" and replica.raft.role is Role.LEADER:
            self._begin_serving(service)
        self._follow_table(service)

    def _begin_serving(self, service: Service) -> None:
        raft = service.replica.raft
        if raft.applied_index >= raft.term_start_index:
            self.state = "serving"

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

    def _turn_away(self) -> None:
        """Fenced: say why, to everybody."""
        desk = Desk(self.settings.shard, self._lanes.send)
        for message in self._lanes.drain():
            error = Corrupt(f"shard {self.settings.shard} is fenced: {self.error}")
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

    def _follow_table(self, service: Service) -> None:
        table = service.effects.table
        if table is not None and table.epoch > service.table.epoch:
            service.use_table(table)

    def _tell(self) -> None:
        now_ms = self._now_ms()
        raft = self.replica.raft if self.replica is not None else None
        standing = (self.state, raft.role, raft.leader, raft.term) if raft else (self.state,)
        if standing == self._told and now_ms - self._told_ms < TELL_EVERY_MS:
            return
        line = report(self)
        table = self.effects.table if self.effects is not None else None
        if table is not None and table.epoch != self._told_epoch:
            line["table"] = base64.b64encode(table.encode()).decode()
            self._told_epoch = table.epoch
        self._told, self._told_ms = standing, now_ms
        self.channel.tell(line)


def replica_settings(settings: WorkerSettings, directory: str) -> ReplicaSettings:
    """How consensus and storage are set up for this worker."""
    raft, storage = dict(settings.raft), dict(settings.storage)
    return ReplicaSettings(
        directory=directory,
        cluster=settings.cluster_id,
        member=settings.member,
        bootstrap=Membership.of([settings.member]),
        raft=Options(**{name: value for name, value in raft.items() if name in Options.__slots__}),
        log=LogOptions(
            **{name: value for name, value in storage.items() if name in LogOptions.__slots__}
        ),
        flush_every_entries=1 << 62,  # the loop flushes in slices
    )
