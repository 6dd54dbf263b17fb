"""The router's loop: the only place where it receives or sends.

It drains: every wake takes many messages from every socket that has some, replies first, because a
reply frees what its request holds. Nothing in it waits but the poll.

The one rule: no peer can stop it. A worker that is down or full is answered for at once; a client
that does not read loses replies, which are counted; a message that is not ours gets a typed error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import zmq

from shardnode.router.channel import Channel
from shardnode.router.lanes import LARGE_BYTES, Lane
from shardnode.router.route import Routes
from shardnode.router.settings import RouterSettings
from shardnode.router.sockets import (
    WORKER_QUEUE,
    came_and_went,
    client_socket,
    watch_and_connect,
    worker_socket,
)
from shardnode.wire.errors import Overloaded, ShardnodeError, Unavailable
from shardnode.wire.frames import Frame, Request

BEAT_MS = 250
"""How often the supervisor hears that all is well."""

DRAIN_MESSAGES = 256
"""Messages taken from one socket before the others have their turn: about 5 ms."""

STOP_MS = 1_000
"""How long a stopping router waits for replies that are under way."""

COUNTERS = (
    "requests",
    "forwarded",
    "replies",
    "answered",
    "refused",
    "unavailable",
    "overloaded",
    "replies_dropped",
    "replies_unaddressed",
    "bytes_in",
)

_MORE = zmq.NOBLOCK | zmq.SNDMORE
_SEQUENCE = slice(32, 40)
"""Where a reply header has the sequence of its request."""


class Loop:
    """One router, from bind to close."""

    def __init__(self, settings: RouterSettings, channel: Channel) -> None:
        self._routes = Routes(settings)
        self._channel = channel
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.setsockopt(zmq.MAX_SOCKETS, 65_535)
        self._clients = client_socket(self._context, settings.listen)
        self._workers = {shard: worker_socket(self._context) for shard in settings.workers}
        self._lanes = {shard: Lane() for shard in settings.workers}
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._wake_fd, self._signal_fd = os.pipe()
        self._stop_at: float | None = None
        self._reached: set[int] = set()
        self._poller = zmq.Poller()
        for source in (self._clients, channel.listen_fd, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)
        self._shard_of = {socket: shard for shard, socket in self._workers.items()}
        self._monitor_of: dict[Any, int] = {}
        for shard, socket in self._workers.items():
            monitor = watch_and_connect(socket, settings.workers[shard])
            self._monitor_of[monitor] = shard
            self._poller.register(monitor, zmq.POLLIN)
            self._poller.register(socket, zmq.POLLIN)

    def run(self) -> None:
        """Serve until told to stop; raises `SupervisorGone` when nobody is left to tell."""
        self._catch_signals()
        self._listen_to_supervisor()  # lines may have come together with the first
        beat_at = 0.0
        while not self._is_done():
            now = time.monotonic()
            if now >= beat_at:
                self._beat()
                beat_at = now + BEAT_MS / 1_000
            wait_ms = max(0, int((beat_at - now) * 1_000) + 1)
            if self._stop_at is not None:
                wait_ms = min(wait_ms, 20)
            for source, events in self._poller.poll(wait_ms):
                if source in self._shard_of:
                    self._attend(self._shard_of[source], events)
                elif source in self._monitor_of:
                    self._look_for_worker(self._monitor_of[source], source)
                elif source is self._clients:
                    self._drain_clients()
                elif source == self._wake_fd:
                    os.read(self._wake_fd, 64)
                    self._stop()
                else:
                    self._listen_to_supervisor()

    def close(self) -> None:
        """Let go of every socket; replies that wait may still leave for a moment."""
        for worker in self._workers.values():
            worker.disable_monitor()
        for socket in (*self._monitor_of, self._clients, *self._workers.values()):
            socket.close()
        self._context.term()

    def _attend(self, shard: int, events: int) -> None:
        if events & zmq.POLLOUT:  # only watched for after the worker came
            self._reached.add(shard)
            self._poller.register(self._workers[shard], zmq.POLLIN)
            self._beat()
        if events & zmq.POLLIN:
            self._drain_worker(shard)

    def _look_for_worker(self, shard: int, monitor: zmq.Socket[bytes]) -> None:
        """A worker came or went. One that came is reached when its socket takes messages, which
        is a moment later; the supervisor hears of both at once."""
        for came in came_and_went(monitor):
            self._reached.discard(shard)
            wanted = zmq.POLLIN | zmq.POLLOUT if came else zmq.POLLIN
            self._poller.register(self._workers[shard], wanted)
        self._beat()

    def _drain_clients(self) -> None:
        received = answered = size = 0
        receive = self._clients.recv_multipart
        route = self._routes.route
        try:
            for _ in range(DRAIN_MESSAGES):
                parts = receive(zmq.NOBLOCK)
                received += 1
                size += len(parts[-1])
                decision = route(parts[1:])
                if isinstance(decision, tuple):
                    self._forward(parts, *decision)
                else:
                    answered += 1
                    self._reply(parts[0], decision)
        except zmq.Again:
            pass
        counters = self._counters
        counters["requests"] += received
        counters["answered"] += answered
        counters["bytes_in"] += size

    def _forward(self, parts: list[bytes], shard: int, request: Request) -> None:
        if self._stop_at is not None:
            stopping = Unavailable(
                "this node is stopping; nothing was done, try again or elsewhere"
            )
            self._refuse(parts, stopping)
            return
        lane = self._lanes[shard]
        large = len(request.body) >= LARGE_BYTES
        if large:
            header = request.header
            ticket = (parts[0], header.sequence)
            try:
                lane.enter(ticket, len(request.body), header.deadline_ms, time.monotonic() * 1_000)
            except Overloaded as error:
                self._refuse(parts, error)
                return
        if send_whole(self._workers[shard], parts):
            lane.forwarded += 1
            return
        if large:
            lane.leave((parts[0], request.header.sequence))
        if shard in self._reached:
            self._refuse(parts, self._routes.full(shard, WORKER_QUEUE, lane.under_way))
        else:
            self._refuse(parts, self._routes.down(shard))

    def _refuse(self, parts: list[bytes], error: ShardnodeError) -> None:
        self._counters["refused"] += 1
        if error.code in self._counters:
            self._counters[error.code] += 1
        self._reply(parts[0], self._routes.refuse(parts[1:], error))

    def _drain_worker(self, shard: int) -> None:
        lane = self._lanes[shard]
        receive = self._workers[shard].recv_multipart
        clients = self._clients
        received = 0
        try:
            for _ in range(DRAIN_MESSAGES):
                parts = receive(zmq.NOBLOCK)
                received += 1
                if lane.has_large and len(parts) > 2:
                    lane.leave((parts[0], int.from_bytes(parts[-2][_SEQUENCE], "big")))
                self._hand_over(clients, parts)
        except zmq.Again:
            pass
        lane.replied += received
        self._counters["replies"] += received

    def _reply(self, client: bytes, frames: Sequence[Frame]) -> None:
        self._hand_over(self._clients, [client, *frames])

    def _hand_over(self, clients: zmq.Socket[bytes], parts: Sequence[Frame]) -> None:
        try:
            if not send_whole(clients, parts):
                self._counters["replies_dropped"] += 1
        except zmq.ZMQError as error:
            # The client is gone, or a worker answered somebody who never was.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EINVAL):
                raise
            self._counters["replies_unaddressed"] += 1

    def _listen_to_supervisor(self) -> None:
        for line in self._channel.lines():
            if "table" in line:
                self._routes.learn_table(line["table"])
            if "members" in line:
                self._routes.learn_members(line["members"])
            if "status" in line:
                for shard in self._routes.learn_status(line["status"]):
                    self._lanes[shard].reset()
            if line.get("stop"):
                self._stop()

    def _beat(self) -> None:
        counters: dict[str, Any] = dict(self._counters)
        counters["forwarded"] = sum(lane.forwarded for lane in self._lanes.values())
        counters["under_way"] = max(0, sum(lane.under_way for lane in self._lanes.values()))
        state = "serving" if self._stop_at is None else "stopping"
        reached = sorted(self._reached)
        self._channel.tell({"state": state, "reached": reached, "counters": counters})

    def _catch_signals(self) -> None:
        """A signal becomes a byte in a pipe that the poll watches: no handler does any work."""
        os.set_blocking(self._signal_fd, False)
        signal.set_wakeup_fd(self._signal_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def _stop(self) -> None:
        """Refuse new requests, wait for what is under way. Not unbound: that would cut off the
        clients that are still to be answered."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + STOP_MS / 1_000
            sys.stderr.write("router: stopping\n")

    def _is_done(self) -> bool:
        if self._stop_at is None:
            return False
        idle = all(lane.under_way <= 0 for lane in self._lanes.values())
        return idle or time.monotonic() >= self._stop_at


def send_whole(socket: zmq.Socket[bytes], parts: Sequence[Frame]) -> bool:
    """Send every frame without waiting; False if the message was refused.

    Only the first frame can find a queue full. A refusal later on means that the peer went away in
    the middle: libzmq has rolled the message back, and swallows the frames that remain.
    """
    last = len(parts) - 1
    sent = True
    for number, part in enumerate(parts):
        try:
            socket.send(part, _MORE if number < last else zmq.NOBLOCK)
        except zmq.Again:
            if number == 0:
                return False
            sent = False
    return sent
