"""A small node in this process: real sockets and frames, a dict per shard, and switches for faults.

It keeps sessions as a real shard does, so a test can prove that a repeated write ran once. A
`Rule` says what happens to the next requests it matches:

    refuse   answer with an error, without any effect
    drop     no effect and no answer
    swallow  the effect, but no answer
    hold     no answer before `release`
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import zmq

from shardnode.wire import requests
from shardnode.wire.cluster import Route, StatusFound, TopologyFound
from shardnode.wire.codec import Body
from shardnode.wire.errors import (
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.frames import (
    PLACE_FOR_ME,
    Frame,
    Request,
    build_reply,
    parse_request,
)
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.placement import (
    PlacementTable,
    hash_of_key,
    initial_table,
    namespace_from_bytes,
    slot_of_key,
    slot_of_partition,
)
from shardnode.wire.replies import (
    Changes,
    build_error,
)
from shardnode.wire.streams import Read
from tests.client.fake_groups import FakeGroups
from tests.client.fake_shard import FakeShard
from tests.client.fake_streams import FakeStreams

NODE = 1


@dataclass
class Rule:
    """What happens to the next `times` requests of a kind (any) to a shard (any)."""

    action: str
    error: ShardnodeError | None = None
    kind: Kind | None = None
    shard: int | None = None
    times: int = 1_000_000

    def matches(self, kind: int, shard: int | None) -> bool:
        return (
            self.times > 0
            and self.kind in (None, kind)
            and self.shard in (None, shard)
            and not (self.kind is None and kind in (Kind.TOPOLOGY, Kind.SESSION_OPEN))
        )


@dataclass
class Seen:
    """A request as it came."""

    via: str
    shard: int | None
    request: Request
    body: Body


@dataclass
class _Parked:
    """A watch that waits for a change, or a read for a message."""

    socket: zmq.Socket[bytes]
    envelope: list[bytes]
    request: Request
    body: requests.Watch | Read
    shard: int
    until: float


class FakeNode:
    """A router and a direct port per shard, all served by one thread."""

    def __init__(self, shards: int = 2, *, direct: bool = True) -> None:
        self.table = initial_table(shards)
        self.streams = FakeStreams()
        self.groups = FakeGroups(self.streams)
        self.shards = [FakeShard(number, self.streams, self.groups) for number in range(shards)]
        self.rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.leaders = [NODE] * shards
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._bell = self._context.socket(zmq.SocketType.PAIR)
        self._bell.bind("inproc://bell")
        self._ring = self._context.socket(zmq.SocketType.PAIR)
        self._ring.connect("inproc://bell")
        self._sockets: dict[zmq.Socket[bytes], int | None] = {}
        self._held: list[Callable[[], None]] = []
        self._parked: list[_Parked] = []
        self._stopping = False
        self.endpoint = self._bind(None)
        self.direct = [self._bind(shard) for shard in range(shards)]
        if not direct:
            for shard in range(shards):
                self._unbind(shard)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.endpoint.removeprefix("tcp://")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.do(self._stop)
        self._thread.join()
        for socket in [*self._sockets, self._bell, self._ring]:
            socket.close(0)
        self._context.term()

    # Switches; each is carried out by the serving thread before this returns.

    def do(self, command: Callable[[], None]) -> None:
        """Run something in the serving thread, between two requests."""
        finished = threading.Event()

        def run() -> None:
            command()
            finished.set()

        self._commands.put(run)
        self._ring.send(b"")
        assert finished.wait(10), "the fake node hangs"

    def rule(self, action: str, error: ShardnodeError | None = None, **match: Any) -> Rule:
        rule = Rule(action, error, **match)
        self.do(lambda: self.rules.append(rule))
        return rule

    def forget_rules(self) -> None:
        self.do(self.rules.clear)

    def release(self) -> None:
        """Send the answers that were held."""

        def send() -> None:
            held, self._held = self._held, []
            for answer in held:
                answer()

        self.do(send)

    def stop_direct(self, shard: int) -> None:
        """Close a direct port; its connections break."""
        self.do(lambda: self._unbind(shard))

    def start_direct(self, shard: int) -> None:
        """Open it again, at the same address."""

        def bind() -> None:
            self._bind(shard, self.direct[shard])

        self.do(bind)

    def move(self, slots: range, shard: int) -> None:
        """Give slots to another shard, with their keys."""

        def change() -> None:
            owners = bytearray(self.table.owners)
            for slot in slots:
                owners[slot] = shard
            self.table = PlacementTable(self.table.epoch + 1, self.table.shards, bytes(owners))
            for source in self.shards:
                for key in [k for k in source.data if self.table.shard_of_key(k) != source.number]:
                    self.shards[self.table.shard_of_key(key)].data[key] = source.data.pop(key)

        self.do(change)

    def forget_sessions(self) -> None:
        def forget() -> None:
            for shard in self.shards:
                shard.sessions = {}

        self.do(forget)

    def kinds_seen(self) -> list[Kind]:
        return [Kind(seen.request.header.kind) for seen in self.seen]

    def data(self) -> dict[bytes, bytes]:
        return {key: row[0] for shard in self.shards for key, row in shard.data.items()}

    # The serving thread.

    def _stop(self) -> None:
        self._stopping = True

    def _bind(self, shard: int | None, endpoint: str = "tcp://127.0.0.1:*") -> str:
        socket = self._context.socket(zmq.SocketType.ROUTER)
        socket.setsockopt(zmq.SocketOption.LINGER, 0)
        socket.bind(endpoint)
        self._sockets[socket] = shard
        bound = socket.getsockopt(zmq.SocketOption.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def _unbind(self, shard: int) -> None:
        [socket] = [socket for socket, owner in self._sockets.items() if owner == shard]
        socket.close(0)
        del self._sockets[socket]

    def _serve(self) -> None:
        while not self._stopping:
            poller = zmq.Poller()
            for socket in [*self._sockets, self._bell]:
                poller.register(socket, zmq.PollEvent.POLLIN)
            for socket, _ in poller.poll(100 if self._parked else None):
                if socket is self._bell:
                    self._bell.recv()
                    self._commands.get()()
                    break  # sockets may have gone
                self._take(socket)
            self._answer_parked()

    def _take(self, socket: zmq.Socket[bytes]) -> None:
        via = "router" if self._sockets[socket] is None else "direct"
        identity, *frames = socket.recv_multipart()
        request = parse_request(frames)
        kind = Kind(request.header.kind)
        body = requests.decode_request(kind, request.body)
        shard = None if request.prefix == PLACE_FOR_ME else request.prefix
        self.seen.append(Seen(via, shard, request, body))
        rule = next((rule for rule in self.rules if rule.matches(kind, shard)), None)
        if rule is not None:
            rule.times -= 1
            if rule.action == "drop":
                return
        refused = rule is not None and rule.action == "refuse"
        if isinstance(body, requests.Watch | Read) and not refused:
            assert shard is not None
            until = time.monotonic() + body.wait_ms / 1000
            self._parked.append(_Parked(socket, [identity], request, body, shard, until))
            return
        if rule is not None and rule.action == "refuse":
            assert rule.error is not None
            reply = build_error(request.return_address(), rule.error, shard=shard)
        else:
            reply = self._answer(request, body, shard)
        if rule is not None and rule.action == "swallow":
            return
        if rule is not None and rule.action == "hold":
            self._held.append(lambda: self._send(socket, [identity, *reply]))
        else:
            self._send(socket, [identity, *reply])

    def _send(self, socket: zmq.Socket[bytes], frames: list[Any]) -> None:
        if not socket.closed:
            socket.send_multipart(frames)

    def _answer(self, request: Request, body: Body, shard: int | None) -> list[Frame]:
        to = request.return_address()
        epoch = self.table.epoch
        try:
            if shard is None:
                answer = self._of_node(body)
            else:
                self._check_owner(request, body, shard)
                answer = self.shards[shard].execute(request, body)
        except ShardnodeError as error:
            return build_error(to, error, shard=shard, epoch=epoch)
        return build_reply(to, answer.encode(), shard=shard, epoch=epoch)

    def _check_owner(self, request: Request, body: Body, shard: int) -> None:
        columns = ("keys", "compare_keys", "then_keys", "otherwise_keys")
        keys = [key for name in columns for key in getattr(body, name, ())]
        keys += filter(None, [request.routing_key])
        if request.header.flags & Flag.NAMESPACE:
            slot = slot_of_partition(namespace_from_bytes(request.routing_key))
            if self.table.shard_of_slot(slot) != shard:
                raise WrongShard("not here", epoch=self.table.epoch)
            return
        if any(self.table.shard_of_key(key) != shard for key in keys):
            raise WrongShard("not here", epoch=self.table.epoch)

    def _of_node(self, body: Body) -> Body:
        count = len(self.shards)
        numbers = list(range(count))
        if isinstance(body, requests.Topology):
            return TopologyFound(
                "fake",
                self.table.encode(),
                self.leaders,
                [NODE],
                [self.endpoint],
                numbers,
                [NODE] * count,
                self.direct,
            )
        if isinstance(body, requests.Status):
            zeros = [0] * count
            return StatusFound(
                NODE,
                "fake",
                self.table.epoch,
                numbers,
                [None] * count,
                [None] * count,
                ["leader"] * count,
                self.leaders,
                zeros,
                zeros,
                zeros,
                zeros,
                zeros,
                ["serving"] * count,
                zeros,
                zeros,
                zeros,
                zeros,
                zeros,
                [""] * count,
            )
        if isinstance(body, requests.Explain):
            shard = self.table.shard_of_key(body.key)
            slot = slot_of_key(body.key)
            return Route(hash_of_key(body.key), slot, shard, NODE, self.table.epoch, None, None)
        raise Unavailable("a router answers no such thing")

    def _answer_parked(self) -> None:
        now = time.monotonic()
        parked, self._parked = self._parked, []
        for watch in parked:
            at_any_rate = now >= watch.until
            to, shard, epoch = watch.request.return_address(), watch.shard, self.table.epoch
            try:
                answer = self._news(watch.body, shard, at_any_rate=at_any_rate)
            except ShardnodeError as error:
                reply = build_error(to, error, shard=shard, epoch=epoch)
            else:
                if answer is None:
                    self._parked.append(watch)
                    continue
                reply = build_reply(to, answer.encode(), shard=shard, epoch=epoch)
            self._send(watch.socket, [*watch.envelope, *reply])

    def _news(self, body: requests.Watch | Read, shard: int, *, at_any_rate: bool) -> Body | None:
        if isinstance(body, Read):
            found = self.streams.of(body.namespace).read(body)
            return found if found.batches or at_any_rate else None
        nothing = Changes(b"", [], [], [], [], body.after or 0) if at_any_rate else None
        return self.shards[shard].watch(body) or nothing
