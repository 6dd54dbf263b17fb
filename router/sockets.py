"""Every option of every socket of the router, in one place.

The one rule: nothing is left to libzmq's defaults that could drop in silence, wait for ever or take
memory without a bound; and every option is set before bind or connect, or it would not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

from shardnode.wire import limits

CAME = zmq.EVENT_HANDSHAKE_SUCCEEDED
WENT = zmq.EVENT_DISCONNECTED

FRAME_ROOM_BYTES = 4 << 10
"""A frame that is a little too large still gets a typed answer; one beyond is disconnected."""

CLIENT_QUEUE = 2_000
"""Messages that wait for one client, or from it; replies beyond are counted and dropped."""

WORKER_QUEUE = 10_000
"""Requests that wait for one worker; further ones are refused as Overloaded."""

LINGER_MS = 300
"""How long replies may still leave when the router stops."""


def client_socket(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """The front door, bound."""
    socket = context.socket(zmq.ROUTER)
    _common(socket, CLIENT_QUEUE)
    # Without it a reply to a client that is gone, or that does not read, would vanish uncounted.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.BACKLOG, 1_024)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 10_000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    socket.bind(address)
    return socket


def worker_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """The way to one worker, which may not be there yet, or go and come back."""
    socket = context.socket(zmq.DEALER)
    _common(socket, WORKER_QUEUE)
    # Only a worker that is connected gets anything: otherwise sending fails at once.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    # A worker that starts again is found within a tenth of a second.
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 80)
    return socket


def watch_and_connect(socket: zmq.Socket[bytes], address: str) -> zmq.Socket[bytes]:
    """Connect a worker's socket; returns where it tells that the worker came or went."""
    monitor: zmq.Socket[bytes] = socket.get_monitor_socket(CAME | WENT)
    socket.connect(address)
    return monitor


def came_and_went(monitor: zmq.Socket[bytes]) -> Iterator[bool]:
    """True for each time the worker came and False for each time it went, in order."""
    while monitor.poll(0):
        event = recv_monitor_message(monitor)["event"]
        if event in (CAME, WENT):
            yield event == CAME


def _common(socket: zmq.Socket[bytes], queue: int) -> None:
    socket.setsockopt(zmq.SNDHWM, queue)
    socket.setsockopt(zmq.RCVHWM, queue)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max + FRAME_ROOM_BYTES)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
