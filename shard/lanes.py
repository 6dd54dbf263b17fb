"""The worker's sockets: whole messages in, whole messages out, nothing understood.

The one rule: a drain takes what is waiting, up to a bound, and never waits; a reply that cannot be
delivered (the peer is gone, or does not read) is dropped and counted, and never holds the loop.

    lane      who                         envelope before the frames of `wire.frames`
    direct    clients that know owners    the identity of the connection
    inner     the router, other workers   the identity, and one opaque frame that is theirs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import zmq

from shardnode.wire import limits

QUEUE_MESSAGES_MAX = 10_000
"""High-water mark of each direction of one connection."""

DRAIN_MESSAGES_MAX = 1_000
DRAIN_BYTES_MAX = 32 << 20
"""One drain is one write and one fsync: large enough to share it, small enough to stay quick."""

NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN = int(zmq.POLLIN)
"""Plain numbers: on the hot path the enumerations of pyzmq cost as much as its sockets."""

HEARTBEAT_MS = 5_000
LINGER_MS = 500


class Lane:
    """One bound ROUTER socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, depth: int) -> None:
        self.depth = depth
        """Frames of envelope before those of the protocol."""
        self.socket = context.socket(zmq.ROUTER)
        set_options(self.socket)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        if "[" in endpoint:
            self.socket.set(zmq.IPV6, 1)
        self.socket.bind(endpoint)


class Incoming(NamedTuple):
    """A message and where its answer goes."""

    lane: Lane | None
    """None: another member of the group carried it here."""
    envelope: Sequence[bytes]
    frames: Sequence[bytes]


def set_options(socket: zmq.Socket[bytes]) -> None:
    """What must be set before bind or connect: libzmq's defaults drop silently, without bounds."""
    socket.set(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
    socket.set(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
    socket.set(zmq.MAXMSGSIZE, limits.frame_bytes_max)
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, 2 * HEARTBEAT_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)


def received(socket: zmq.Socket[bytes], most: int) -> Iterator[list[bytes]]:
    """What waits at a socket that was signalled, up to so many messages."""
    for _ in range(most):
        try:
            yield socket.recv_multipart(NOBLOCK)
        except zmq.Again:
            return
        if not int(socket.get(zmq.EVENTS)) & _POLLIN:
            return


class Lanes:
    """All sockets of one worker."""

    def __init__(self, direct: str, ipc: str, siblings: Mapping[int, str]) -> None:
        self.counters: Counter[str] = Counter()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.direct = Lane(self.context, direct, depth=1)
        self.inner = Lane(self.context, ipc, depth=2)
        self.poller = zmq.Poller()
        self.poller.register(self.direct.socket, zmq.POLLIN)
        self.poller.register(self.inner.socket, zmq.POLLIN)
        self._siblings = {shard: self._connect(ipc) for shard, ipc in siblings.items()}

    def _connect(self, ipc: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        set_options(socket)
        socket.set(zmq.IMMEDIATE, 1)  # nothing queues up for a worker that is down
        socket.set(zmq.RECONNECT_IVL, 20)
        socket.set(zmq.RECONNECT_IVL_MAX, 80)
        socket.connect(ipc)
        self.poller.register(socket, zmq.POLLIN)
        return socket

    def drain(self, signalled: Container[object]) -> list[Incoming]:
        """Everything that waits at the sockets that a poll named."""
        found: list[Incoming] = []
        for lane in (self.inner, self.direct):
            if lane.socket not in signalled:
                continue
            size, depth = 0, lane.depth
            for message in received(lane.socket, DRAIN_MESSAGES_MAX):
                found.append(Incoming(lane, message[:depth], message[depth:]))
                size += len(message[-1])
                if size > DRAIN_BYTES_MAX:
                    break
        return found

    def forwarded(self, signalled: Container[object]) -> list[list[bytes]]:
        """Answers of other workers to what was passed on to them."""
        return [
            message
            for socket in self._siblings.values()
            if socket in signalled
            for message in received(socket, DRAIN_MESSAGES_MAX)
        ]

    def send(self, to: Incoming, frames: Sequence[bytes | memoryview]) -> None:
        """Answer a message that came in on one of these."""
        assert to.lane is not None, "what was carried here is answered by letter"
        first, last = (*to.envelope, *frames[:-1]), frames[-1]
        socket = to.lane.socket
        try:
            for frame in first:
                socket.send(frame, _MORE)
            socket.send(last, NOBLOCK)
        except zmq.Again:
            self.counters["replies_dropped_slow_reader"] += 1
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.counters["replies_dropped_reader_gone"] += 1

    def forward(self, shard: int, frames: Sequence[bytes | memoryview]) -> bool:
        """Pass a message on to another worker of this node; False when it cannot be reached."""
        try:
            self._siblings[shard].send_multipart(list(frames), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Let what was sent leave, within the linger time, and give everything back."""
        self.context.destroy(linger=LINGER_MS)
