"""Links: one DEALER socket per address, and what happens to its connection.

One rule: a request is handed only to a connection that is up (`ZMQ_IMMEDIATE`), never to a queue
that outlives its caller's patience. So "not sent" is certain, and "sent" means it may arrive.

ZeroMQ's file descriptors tell of news, not of readiness, and any use of a socket may swallow the
news. So after each use the socket is read until it has nothing more: `pump` does both, and the
shells sleep on `fileno` only afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from struct import Struct

import zmq

from shardnode.client.core import Core
from shardnode.wire import limits

_WATCHED = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.CONNECT_RETRIED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)

_EVENT = Struct("=H")  # how a monitor's message begins; zmq.utils.monitor would load asyncio
_EVENTS = zmq.SocketOption.EVENTS
_POLLIN = zmq.PollEvent.POLLIN
_POLLOUT = zmq.PollEvent.POLLOUT

_OPTIONS = {
    zmq.SocketOption.IMMEDIATE: 1,
    zmq.SocketOption.LINGER: 0,
    zmq.SocketOption.SNDHWM: 1_000,  # more than a lane lets through
    zmq.SocketOption.RCVHWM: 10_000,  # every answer to what is under way, and late repeats
    zmq.SocketOption.MAXMSGSIZE: limits.frame_bytes_max,
    zmq.SocketOption.RECONNECT_IVL: 50,
    zmq.SocketOption.RECONNECT_IVL_MAX: 250,  # a worker restarts within a second
    zmq.SocketOption.CONNECT_TIMEOUT: 2_000,
    zmq.SocketOption.HANDSHAKE_IVL: 5_000,
    zmq.SocketOption.HEARTBEAT_IVL: 5_000,
    zmq.SocketOption.HEARTBEAT_TIMEOUT: 10_000,
    zmq.SocketOption.TCP_KEEPALIVE: 1,
}


def _has_news(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be read."""
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


class Link:
    """The socket of one address, and the one that tells of its connection."""

    __slots__ = ("endpoint", "events", "events_fileno", "fileno", "socket", "up")

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.endpoint = endpoint
        self.up = False
        self.socket = context.socket(zmq.SocketType.DEALER)
        for option, value in _OPTIONS.items():
            self.socket.setsockopt(option, value)
        if "[" in endpoint:
            self.socket.setsockopt(zmq.SocketOption.IPV6, 1)
        self.events = self.socket.get_monitor_socket(_WATCHED)
        self.events.setsockopt(zmq.SocketOption.LINGER, 0)
        self.socket.connect(endpoint)
        self.fileno = int(self.socket.getsockopt(zmq.SocketOption.FD))
        self.events_fileno = int(self.events.getsockopt(zmq.SocketOption.FD))

    def close(self) -> None:
        self.socket.disable_monitor()
        self.events.close(0)
        self.socket.close(0)


class Links:
    """All links of one client; `opened` is told each new one."""

    def __init__(self, core: Core, opened: Callable[[Link], None]) -> None:
        self._core = core
        self._opened = opened
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[str, Link] = {}
        self._touched: dict[Link, bool] = {}
        # A context that is freed in one go with its sockets would wait for them for ever.
        self._free = weakref.finalize(self, _free, self._context, self._links)
        self._free.atexit = False

    def touch(self, link: Link, *, is_event: bool) -> None:
        """There is news on a link, or about its connection: `pump` will look."""
        self._touched[link] = is_event or self._touched.get(link, False)

    def pump(self, now: float) -> None:
        """Send what can be sent and take in what has come, until nothing more moves."""
        core, outbox = self._core, self._core.outbox
        blocked: set[str] = set()
        while True:
            for endpoint in [*outbox] if outbox else ():
                if endpoint not in blocked and not self._flush(endpoint, now):
                    blocked.add(endpoint)
            if not self._touched:
                return
            touched, self._touched = self._touched, {}
            for link, has_event in touched.items():
                ready = int(link.socket.getsockopt(_EVENTS))
                if ready & _POLLIN:
                    self._receive(link, core, now)
                if ready & _POLLOUT:
                    # A send soon after another use of its socket does not see that the connection
                    # has come up meanwhile. This look has, and nobody will tell us a second time.
                    blocked.discard(link.endpoint)
                if has_event and self._take_events(link, now):
                    blocked.discard(link.endpoint)

    def _flush(self, endpoint: str, now: float) -> bool:
        """Send what is queued for an address; whether all of it went."""
        core = self._core
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = Link(self._context, endpoint)
            self._opened(link)
            self._touched[link] = True
            return False
        self._touched.setdefault(link, False)
        while (exchange := core.next_to_send(endpoint)) is not None:
            try:
                link.socket.send_multipart(exchange.frames, zmq.Flag.NOBLOCK)
            except zmq.Again:
                return False
            core.sent(exchange, now)
        return True

    def _receive(self, link: Link, core: Core, now: float) -> None:
        receive = link.socket.recv_multipart
        try:
            while True:
                core.received(receive(zmq.Flag.NOBLOCK), now, link.endpoint)
        except zmq.Again:
            return

    def _take_events(self, link: Link, now: float) -> bool:
        """Whether a link has come up. Of several events the last one counts: the others are
        history."""
        lost, up = False, link.up
        while _has_news(link.events):
            (event,) = _EVENT.unpack_from(link.events.recv_multipart()[0])
            up = event == zmq.Event.HANDSHAKE_SUCCEEDED
            lost = lost or not up
        was_up, link.up = link.up, up
        if lost and was_up:
            self._core.disconnected(link.endpoint, now)
        elif lost and not up:
            self._core.refused(link.endpoint, now)
        if up:
            self._core.connected(link.endpoint)
        return up and not was_up

    def close(self) -> None:
        self._free()


def _free(context: zmq.Context[zmq.Socket[bytes]], links: dict[str, Link]) -> None:
    """What nobody uses any more."""
    for link in links.values():
        link.close()
    links.clear()
    context.destroy(0)
