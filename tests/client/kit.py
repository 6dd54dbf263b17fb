"""The pure core on a simulated clock: what it sends is looked at, and answered by hand."""

from __future__ import annotations

from random import Random
from typing import Any

from shardnode.client.calls import Call
from shardnode.client.core import Core
from shardnode.client.exchange import Exchange
from shardnode.wire.cluster import TopologyFound
from shardnode.wire.codec import Body
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.frames import Header, Request, build_reply, parse_request
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable, initial_table
from shardnode.wire.replies import SessionGranted, build_error

ROUTER = "tcp://router:7400"
DIRECT = {
    (shard, node): f"tcp://n{node}:{7500 + shard}" for shard in range(4) for node in (1, 2, 3)
}


class Sent:
    """One message that left, and where to."""

    def __init__(self, bench: Bench, endpoint: str, exchange: Exchange) -> None:
        self._bench = bench
        self.endpoint = endpoint
        self.exchange = exchange
        self.frames = tuple(map(bytes, exchange.frames))
        self.request: Request = parse_request(exchange.frames)

    @property
    def kind(self) -> Kind:
        return Kind(self.request.header.kind)

    @property
    def header(self) -> Header:
        return self.request.header

    def answer(self, answer: Body | ShardnodeError, *, epoch: int | None = None) -> None:
        to = self.request.return_address()
        epoch = self._bench.epoch if epoch is None else epoch
        if isinstance(answer, ShardnodeError):
            frames = build_error(to, answer, shard=0, epoch=epoch)
        else:
            frames = build_reply(to, answer.encode(), shard=0, epoch=epoch)
        self._bench.core.received(frames, self._bench.now, self.endpoint)


class Bench:
    """A core that has its topology, and the clock."""

    def __init__(self, *, shards: int = 2, nodes: int = 1, topology: bool = True) -> None:
        self.now = 1_000.0
        self.epoch = 1
        self.ids = 0
        self.nodes = nodes
        self.core = Core((ROUTER,), random=Random(7), new_client_id=self.new_id)
        self.table = initial_table(shards)
        if topology:
            self.core._refresh(self.now)
            [asked] = self.sent()
            assert asked.kind is Kind.TOPOLOGY
            asked.answer(self.topology())

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def topology(self, leader: int = 1) -> TopologyFound:
        nodes = list(range(1, self.nodes + 1))
        places = [(shard, node) for shard in range(self.table.shards) for node in nodes]
        return TopologyFound(
            "sim",
            self.table.encode(),
            [leader] * self.table.shards,
            nodes,
            [ROUTER if node == 1 else f"tcp://router{node}:7400" for node in nodes],
            [shard for shard, _ in places],
            [node for _, node in places],
            [DIRECT[place] for place in places],
        )

    def new_table(self, owners: bytes) -> None:
        self.epoch += 1
        self.table = PlacementTable(self.epoch, self.table.shards, owners)

    def start(self, call: Call[Any], timeout_s: float = 5.0) -> None:
        self.core.start(call, self.now, timeout_s)

    def sent(self, *, without_sessions: bool = False) -> list[Sent]:
        """Everything that leaves now, over connections that are up."""
        messages = []
        for endpoint in list(self.core.outbox):
            while (exchange := self.core.next_to_send(endpoint)) is not None:
                messages.append(Sent(self, endpoint, exchange))
                self.core.sent(exchange, self.now)
        if without_sessions:
            for message in messages:
                if message.kind is Kind.SESSION_OPEN:
                    message.answer(SessionGranted(1))
            return [m for m in messages if m.kind is not Kind.SESSION_OPEN]
        return messages

    def one(self) -> Sent:
        """The one message that leaves now; sessions are granted on the way."""
        [message] = self.sent(without_sessions=True)
        return message

    def wait(self, seconds: float) -> None:
        """Let time pass, doing what falls due on the way."""
        end = self.now + seconds
        while (wake_at := self.core.wake_at()) is not None and wake_at <= end:
            self.now = max(self.now, wake_at)
            self.core.tick(self.now)
        self.now = end

    def next(self) -> Sent:
        """Let time pass until something leaves."""
        for _ in range(100):
            messages = self.sent(without_sessions=True)
            if messages:
                [message] = messages
                return message
            wake_at = self.core.wake_at()
            assert wake_at is not None, "nothing will ever be sent"
            self.now = max(self.now, wake_at)
            self.core.tick(self.now)
        raise AssertionError("nothing was sent in a hundred steps")


def end(call: Call[Any], outcome: object) -> None:
    """End a call by hand, with an error or a value."""
    assert not call.done
    call.done = True
    if isinstance(outcome, ShardnodeError):
        call._error = outcome
    else:
        call._value = outcome
