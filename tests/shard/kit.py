"""Replicas on simulated disks, with a post office between them that does nothing by itself."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardnode.raft import Membership, Options, Role
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.replica import Outcome, Replica, Request
from shardnode.shard.transfer import TransferOptions
from shardnode.sim.disk import SimFiles
from shardnode.sim.machine import KV_PARTITION, SimMachine, pack_command, pack_entry
from shardnode.storage.options import LogOptions

CLUSTER = 77
OPEN = pack_command("open", 1)


def put(sequence: int, key: bytes = b"k", value: bytes = b"v") -> bytes:
    return pack_command("put", 1, sequence, 0, key, value)


class Host:
    """One member: its disk and its effects outlive its process."""

    def __init__(self, group: Group, member: int) -> None:
        self.group = group
        self.member = member
        self.files = SimFiles(random.Random(member))
        self.machine = SimMachine(lambda *_: None)
        self.settings = replace(group.settings, member=member)
        self.replica: Replica | None = None
        self.outcomes: list[Outcome] = []
        self.boot()

    @property
    def up(self) -> Replica:
        assert self.replica is not None
        return self.replica

    def boot(self) -> Replica:
        self.replica = Replica(
            self.settings,
            files=self.files,
            machine=self.machine,
            rng=random.Random(self.member),
            now_ms=self.group.now_ms,
            send=self.group.post,
        )
        return self.replica

    def crash(self) -> None:
        """Lose the process and what it had not synced."""
        self.replica = None
        self.files.crash()
        self.machine.crash(random.Random(self.member))

    def pump(self) -> None:
        if self.replica is not None:
            self.replica.pump()
            self.outcomes += self.replica.outcomes
            self.replica.outcomes.clear()


class Group:
    """Members 1 to `size` and the messages between them."""

    def __init__(self, size: int, **settings: Any) -> None:
        self.now_ms = 0
        self.mail: deque[Any] = deque()
        self.blocked: set[int] = set()
        self.settings = ReplicaSettings(
            directory="shard-0",
            cluster=CLUSTER,
            member=0,
            bootstrap=Membership.of(range(1, size + 1)),
            raft=Options(election_timeout_ms=300, heartbeat_ms=50),
            log=LogOptions(segment_bytes=1024, index_every_bytes=256, zero_ahead_bytes=0),
            transfer=TransferOptions(piece_bytes=64, retry_ms=100),
            repair=size > 1,
            keep_bytes_max=0,
            **settings,
        )
        self.hosts = {member: Host(self, member) for member in range(1, size + 1)}

    def post(self, messages: Sequence[Any]) -> None:
        self.mail.extend(messages)

    def settle(self) -> None:
        """Deliver and pump until nothing moves."""
        for host in self.hosts.values():
            host.pump()
        while self.mail:
            message = self.mail.popleft()
            host = self.hosts[message.target]
            if host.replica is not None and not {message.source, message.target} & self.blocked:
                host.replica.receive(message)
                host.pump()

    def run(self, for_ms: int) -> None:
        """Let time pass in steps of a tick."""
        for _ in range(0, for_ms, 20):
            self.now_ms += 20
            for host in self.hosts.values():
                if host.replica is not None:
                    host.replica.tick(self.now_ms)
            self.settle()

    def leader(self) -> Host:
        """Whoever leads in the highest term, once somebody does."""
        for _ in range(100):
            leading = [
                host
                for host in self.hosts.values()
                if host.replica is not None
                and host.replica.raft.role is Role.LEADER
                and host.member not in self.blocked
            ]
            if leading:
                return max(leading, key=lambda host: host.up.raft.term)
            self.run(100)
        raise AssertionError("nobody leads")

    def propose(self, *commands: bytes) -> list[Outcome]:
        """Propose as one batch; what became of it."""
        leader = self.leader()
        self.run(100)
        tokens = range(len(leader.outcomes) + 1, len(leader.outcomes) + len(commands) + 1)
        requests = [
            Request(token, KV_PARTITION, pack_entry(self.now_ms, command))
            for token, command in zip(tokens, commands, strict=True)
        ]
        before = len(leader.outcomes)
        leader.up.propose(requests)
        self.settle()
        return leader.outcomes[before:]
