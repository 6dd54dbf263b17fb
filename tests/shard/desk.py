"""A whole service without sockets: frames in, frames out, a simulated disk, a memory engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

from shardnode.raft import Membership, Options
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.lanes import Incoming, Lane
from shardnode.shard.replica import Replica
from shardnode.shard.service import Service
from shardnode.shard.settings import WorkerSettings
from shardnode.sim.disk import SimFiles
from shardnode.storage.options import LogOptions
from shardnode.wire.codec import Answer, Body
from shardnode.wire.frames import Frame, Reply, build_request, parse_reply
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import member_id
from shardnode.wire.replies import decode_reply

CLIENT = bytes(15) + b"\x07"
WALL_MS = 1_700_000_000_000


class Counter:
    """Where a client stands: asks, lets time pass, and reads its answers."""

    def __init__(
        self,
        shard: int = 0,
        shards: int = 1,
        effects: Effects | None = None,
        log: LogOptions | None = None,
    ) -> None:
        settings = WorkerSettings(
            cluster_id=9,
            cluster="main",
            node=1,
            shard=shard,
            shards=shards,
            directory=f"shard-{shard}",
            direct="tcp://127.0.0.1:1",
            ipc="ipc://nowhere",
            nodes={1: "tcp://127.0.0.1:1"},
        )
        member = member_id(shard, 1)
        self.now_ms = 1_000
        self.effects = effects or open_effects("", "memory", {})
        self.replica = Replica(
            ReplicaSettings(
                directory=settings.directory,
                cluster=9,
                member=member,
                bootstrap=Membership.of([member]),
                raft=Options(),
                log=log or LogOptions(),
            ),
            files=SimFiles(random.Random(1)),
            machine=self.effects,
            rng=random.Random(2),
            now_ms=self.now_ms,
            send=lambda _: None,
        )
        self.sent: list[tuple[int, list[Frame]]] = []
        self.passed_on: list[tuple[int, list[Frame]]] = []
        self.reachable = True
        self.service = Service(
            settings,
            self.replica,
            self.effects,
            wall_ms=lambda: WALL_MS,
            send=lambda message, frames: self.sent.append((int(message.envelope[0]), [*frames])),
            carry=lambda *_: False,
            forward=self._forward,
            status=lambda: b"",
        )
        self._number = 0
        self.drain()

    def _forward(self, shard: int, frames: Sequence[Frame]) -> bool:
        self.passed_on.append((shard, [*frames]))
        return self.reachable

    def drain(self, *messages: Sequence[Frame], later_ms: int = 1) -> list[Reply]:
        """One turn of the loop; the replies to these messages, in their order."""
        self.now_ms += later_ms
        first = self._number
        incoming = []
        for frames in messages:
            incoming.append(
                Incoming(cast(Lane, None), [b"%d" % self._number], cast(Any, list(frames)))
            )
            self._number += 1
        self.replica.tick(self.now_ms)
        self.service.take(incoming, self.now_ms)
        self.replica.pump()
        self.service.finish()
        found = [parse_reply(frames) for number, frames in self.sent if number >= first]
        self.sent = [each for each in self.sent if each[0] < first]
        return found

    def late(self) -> list[Reply]:
        """Replies to messages of earlier turns."""
        sent, self.sent = self.sent, []
        return [parse_reply(frames) for _, frames in sent]

    def ask(self, kind: Kind, body: Body, **header: Any) -> Answer:
        """One request, answered in the same turn; raises the error that it is answered with."""
        header.setdefault("prefix", self.service.settings.shard)
        (reply,) = self.drain(build_request(kind, body.encode(), **header))
        return decode_reply(reply)
