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
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import zmq

from shardnode.wire import requests
from shardnode.wire.cluster import Route, StatusFound, TopologyFound
from shardnode.wire.codec import Body
from shardnode.wire.cursors import position_of
from shardnode.wire.errors import (
    Conflict,
    SessionExpired,
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.frames import (
    NO_CLIENT,
    PLACE_FOR_ME,
    Frame,
    Request,
    build_reply,
    parse_request,
)
from shardnode.wire.kinds import WRITES, ChangeKind, Compare, Kind, Operation
from shardnode.wire.placement import PlacementTable, hash_of_key, initial_table, slot_of_key
from shardnode.wire.replies import (
    Changes,
    Deleted,
    Entry,
    Found,
    Page,
    SessionGranted,
    Transacted,
    Written,
    build_error,
)

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
class FakeShard:
    """One shard's keys, changes and sessions."""

    number: int
    page_entries: int = 1_000
    found_max: int = 1_000_000
    index: int = 0
    first_position: int = 0
    data: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)
    changes: list[tuple[ChangeKind, bytes, bytes | None, int, int]] = field(default_factory=list)
    sessions: dict[bytes, dict[int, list[Any]]] = field(default_factory=dict)
    applied: list[tuple[bytes, int]] = field(default_factory=list)

    def execute(self, request: Request, body: Body) -> Body:
        """Answer, or raise what a shard would answer."""
        header = request.header
        if header.kind not in WRITES:
            return self.read(body)
        if isinstance(body, requests.SessionOpen):
            self.sessions.setdefault(header.client_id, {})
            return SessionGranted(body.ttl_ms)
        if header.client_id not in self.sessions or header.client_id == NO_CLIENT:
            raise SessionExpired("no such session")
        replies = self.sessions[header.client_id]
        if header.sequence not in replies:
            replies[header.sequence] = [self.write(body, (header.client_id, header.sequence))]
        for sequence in [s for s in replies if s < header.acked_below]:
            del replies[sequence]
        [reply] = replies[header.sequence]
        if isinstance(reply, ShardnodeError):
            raise reply
        assert isinstance(reply, Body)
        return reply

    def write(self, body: Body, who: tuple[bytes, int]) -> Body | ShardnodeError:
        self.index += 1
        self.applied.append(who)
        if isinstance(body, requests.Put):
            self.put(body.key, body.value, body.ttl_ms)
        elif isinstance(body, requests.PutMany):
            for place, (key, value) in enumerate(zip(body.keys, body.values, strict=True)):
                self.put(key, value, body.ttl_ms, place)
        elif isinstance(body, requests.DeleteMany):
            deleted = sum(self.delete(key, place) for place, key in enumerate(body.keys))
            return Deleted(self.index, deleted)
        elif isinstance(body, requests.Cas):
            version = self.version(body.key)
            if version != body.version:
                return Conflict("another version", key=body.key, version=version)
            self.put(body.key, body.value, body.ttl_ms)
        elif isinstance(body, requests.Transact):
            return self.transact(body)
        return Written(self.index)

    def version(self, key: bytes) -> int:
        return self.data[key][1] if key in self.data else 0

    def put(self, key: bytes, value: bytes, ttl_ms: int, place: int = 0) -> None:
        self.data[key] = (value, self.index, 1_700_000_000_000 + ttl_ms if ttl_ms else 0)
        self.changed(ChangeKind.PUT, key, value, place)

    def delete(self, key: bytes, place: int = 0) -> bool:
        if key not in self.data:
            return False
        del self.data[key]
        self.changed(ChangeKind.DELETE, key, None, place)
        return True

    def changed(self, kind: ChangeKind, key: bytes, value: bytes | None, place: int) -> None:
        self.changes.append((kind, key, value, self.index, position_of(self.index, place)))

    def transact(self, body: requests.Transact) -> Transacted:
        holds = True
        for kind, key, operand in zip(
            body.compare_kinds, body.compare_keys, body.compare_operands, strict=True
        ):
            found: Any = self.version(key)
            if kind in (Compare.VALUE_EQUAL, Compare.VALUE_NOT_EQUAL):
                found = self.data.get(key, (None,))[0]
            holds &= {
                Compare.VERSION_EQUAL: lambda a, b: a == b,
                Compare.VERSION_NOT_EQUAL: lambda a, b: a != b,
                Compare.VERSION_GREATER: lambda a, b: a > b,
                Compare.VERSION_LESS: lambda a, b: a < b,
                Compare.VALUE_EQUAL: lambda a, b: a == b,
                Compare.VALUE_NOT_EQUAL: lambda a, b: a != b,
            }[Compare(kind)](found, operand)
        branch = "then" if holds else "otherwise"
        versions, values = [], []
        columns = [getattr(body, f"{branch}_{name}") for name in ("kinds", "keys", "values")]
        for place, (kind, key, value) in enumerate(zip(*columns, strict=True)):
            versions.append(self.index if kind == Operation.PUT else self.version(key))
            values.append(self.data.get(key, (None,))[0] if kind == Operation.GET else None)
            if kind == Operation.PUT:
                self.put(key, value, 0, place)
            elif kind == Operation.DELETE:
                self.delete(key, place)
        return Transacted(holds, versions, values)

    def read(self, body: Body) -> Body:
        if isinstance(body, requests.Get):
            return Entry(*self.data.get(body.key, (None, 0, 0)))
        if isinstance(body, requests.GetMany):
            return Found([self.data.get(key, (None,))[0] for key in body.keys[: self.found_max]])
        if isinstance(body, requests.Scan):
            return self.page(body)
        raise AssertionError(f"no such read: {body}")

    def page(self, asked: requests.Scan) -> Page:
        keys = [
            key
            for key in sorted(self.data, reverse=asked.reverse)
            if (asked.start is None or key >= asked.start)
            and (asked.end is None or key < asked.end)
            and (asked.after is None or (key < asked.after if asked.reverse else key > asked.after))
        ]
        count = min(asked.limit or self.page_entries, self.page_entries)
        rows = [self.data[key] for key in keys[:count]]
        return Page(
            keys[:count],
            [] if asked.keys_only else [value for value, _, _ in rows],
            [version for _, version, _ in rows],
            [expires for _, _, expires in rows],
            keys[count - 1] if len(keys) > count else None,
        )

    def watch(self, asked: requests.Watch) -> Changes | None:
        """What has changed; None: nothing yet."""
        now = position_of(self.index)
        if asked.after is None:
            return Changes(b"", [], [], [], [], now)
        found = [
            change
            for change in self.changes
            if change[4] > asked.after and change[1].startswith(asked.prefix)
        ]
        if not found:
            return None
        kinds, keys, values, versions, positions = zip(*found, strict=True)
        return Changes(bytes(kinds), keys, values, versions, positions, now)


@dataclass
class _Parked:
    """A watch that waits for a change."""

    socket: zmq.Socket[bytes]
    envelope: list[bytes]
    request: Request
    body: requests.Watch
    shard: int
    until: float


class FakeNode:
    """A router and a direct port per shard, all served by one thread."""

    def __init__(self, shards: int = 2, *, direct: bool = True) -> None:
        self.table = initial_table(shards)
        self.shards = [FakeShard(number) for number in range(shards)]
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
        if isinstance(body, requests.Watch) and (rule is None or rule.action != "refuse"):
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
        keys = [*getattr(body, "keys", ()), *filter(None, [request.routing_key])]
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
            changes = self.shards[watch.shard].watch(watch.body)
            if changes is None and now < watch.until:
                self._parked.append(watch)
                continue
            after = watch.body.after or 0
            answer = changes or Changes(b"", [], [], [], [], after)
            reply = build_reply(
                watch.request.return_address(),
                answer.encode(),
                shard=watch.shard,
                epoch=self.table.epoch,
            )
            self._send(watch.socket, [*watch.envelope, *reply])
