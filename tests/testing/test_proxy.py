"""The proxy between real ZeroMQ sockets: what it does to whole messages, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random

import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from shardnode.testing.proxy_control import Proxy
from shardnode.testing.proxy_stream import GREETING_BYTES, Cutter, Faults, corrupted

LINK = "a>b"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Wire:
    """A DEALER that reaches a ROUTER through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.far = self._context.socket(zmq.ROUTER)
        port = self.far.bind_to_random_port("tcp://127.0.0.1")
        here = free_port()
        proxy.route(LINK, ("127.0.0.1", here), ("127.0.0.1", port))
        self.near = self._context.socket(zmq.DEALER)
        self.near.set(zmq.RECONNECT_IVL, 20)
        self.near.connect(f"tcp://127.0.0.1:{here}")
        self.send(b"first")
        assert self.receive(1) == [[b"first"]]

    def send(self, *frames: bytes) -> None:
        self.near.send_multipart(frames)

    def receive(self, count: int, timeout_s: float = 5.0) -> list[list[bytes]]:
        """So many messages, or those that came in time."""
        found: list[list[bytes]] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            if self.far.poll(int(left * 1_000)):
                found.append(self.far.recv_multipart()[1:])
        return found

    def close(self) -> None:
        self._context.destroy(0)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Proxy(seed=7) as proxy:
        wire = Wire(proxy)
        yield wire
        wire.close()


MESSAGES = [[b"%d" % number, b"x" * size] for number, size in enumerate([0, 1, 255, 256, 500_000])]


def test_healthy_link_changes_nothing(wire: Wire) -> None:
    for message in MESSAGES:
        wire.send(*message)
    assert wire.receive(5) == MESSAGES


def test_cut_holds_everything_back_and_heals_in_order(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(cut=True))
    for message in MESSAGES:
        wire.send(*message)
    assert wire.receive(1, 0.2) == []
    wire.proxy.heal()
    assert wire.receive(5) == MESSAGES


def test_cut_of_one_direction_leaves_the_other(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(cut=True), side="back")
    wire.send(b"question")
    assert wire.far.poll(5_000)
    name, _ = wire.far.recv_multipart()
    wire.far.send_multipart([name, b"answer"])
    assert not wire.near.poll(200)
    wire.proxy.heal()
    assert wire.near.poll(5_000)
    assert wire.near.recv() == b"answer"


def test_refused_link_loses_its_connections_and_comes_back(wire: Wire) -> None:
    wire.proxy.refuse(LINK)
    time.sleep(0.1)
    wire.send(b"after")
    assert wire.receive(1, 0.3) == []
    wire.proxy.heal()
    assert wire.receive(1) == [[b"after"]]


def test_dropped_messages_leave_the_stream_whole(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(drop=0.5))
    for number in range(200):
        wire.send(b"%d" % number)
    found = [message[0] for message in wire.receive(200, 0.7)]
    assert 50 < len(found) < 150
    assert found == sorted(found, key=int)
    assert wire.proxy.counts()["dropped"] == 200 - len(found)
    wire.proxy.heal()
    wire.send(b"end")
    assert wire.receive(1) == [[b"end"]]


def test_duplicated_messages_come_twice(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(duplicate=1.0))
    for number in range(20):
        wire.send(b"%d" % number)
    found = [message[0] for message in wire.receive(41, 1.0)]
    assert sorted(found, key=int) == [b"%d" % (number // 2) for number in range(40)]


def test_reordered_messages_all_arrive(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(reorder=0.5))
    sent = [b"%d" % number for number in range(100)]
    for message in sent:
        wire.send(message)
    found = [message[0] for message in wire.receive(100)]
    assert found != sent
    assert sorted(found, key=int) == sent


def test_corrupted_messages_keep_their_frames(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(corrupt=1.0))
    for message in MESSAGES[2:]:
        wire.send(*message)
    found = wire.receive(3)
    for original, message in zip(MESSAGES[2:], found, strict=True):
        assert [len(frame) for frame in message] == [len(frame) for frame in original]
        assert message != original


def test_delayed_messages_come_late_and_in_order(wire: Wire) -> None:
    wire.proxy.set(LINK, Faults(delay_ms=150, jitter_ms=20))
    begin = time.monotonic()
    for number in range(20):
        wire.send(b"%d" % number)
    found = [message[0] for message in wire.receive(20)]
    assert found == [b"%d" % number for number in range(20)]
    assert 0.15 <= time.monotonic() - begin < 1.5


def test_reset_connection_is_made_anew(wire: Wire) -> None:
    wire.proxy.reset(LINK)
    time.sleep(0.2)
    wire.send(b"after")
    assert wire.receive(1) == [[b"after"]]


def test_mistake_in_a_command_is_told(wire: Wire) -> None:
    with pytest.raises(RuntimeError, match="could not set"):
        wire.proxy.set("nobody>nobody", Faults())


WIDOW = """
import os, subprocess, sys
from shardnode.testing.proxy_control import Proxy
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Proxy().guard(child.pid)
sys.stdout.write(f"{child.pid}\\n")
sys.stdout.flush()
os._exit(1)
"""


def test_what_is_guarded_dies_with_a_test_that_was_killed() -> None:
    ran = subprocess.run([sys.executable, "-P", "-c", WIDOW], capture_output=True, timeout=30)
    pid = int(ran.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=3)), st.integers(1, 400))
def test_stream_is_cut_into_messages_wherever_it_was_split(
    messages: list[list[bytes]], step: int
) -> None:
    frames = b"".join(
        bytes([(index < len(message) - 1) | 2]) + len(frame).to_bytes(8, "big") + frame
        if len(frame) > 255
        else bytes([index < len(message) - 1, len(frame)]) + frame
        for message in messages
        for index, frame in enumerate(message)
    )
    ping = bytes([4, 5]) + b"\x04PING"
    stream = bytes(GREETING_BYTES) + ping + frames + ping
    cutter = Cutter()
    units = [
        unit for at in range(0, len(stream), step) for unit in cutter.feed(stream[at : at + step])
    ]
    assert b"".join(unit.data for unit in units) == stream
    assert sum(unit.is_message for unit in units) == len(messages)


def test_corruption_of_an_empty_message_is_none() -> None:
    assert corrupted(bytes([0, 0]), Random(1)) == bytes([0, 0])
