"""A node with fake workers, and waiting for a condition instead of for a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import zmq

from shardnode.node.config import Config, Http, Sharding
from shardnode.node.config import Node as NodeSection
from shardnode.node.config_kinds import Address
from shardnode.node.handle import Node
from shardnode.node.supervisor import Patience
from shardnode.node.supervisor_policy import Pace
from shardnode.wire.frames import Frame, Reply, build_request, parse_reply

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
LOOPBACK = "127.0.0.1"
BRIEF = Patience(hang_s=2.0, stop_s=5.0, pace=Pace(delay_s_max=0.2))


def config_for(data: Path, shards: int = 2, *, http: bool = False) -> Config:
    return Config(
        node=NodeSection(data=data, listen=Address(LOOPBACK, 0)),
        sharding=Sharding(enabled=True, shards=shards),
        http=Http(listen="auto" if http else "off"),
    )


def fake_node(
    data: Path,
    *troubles: str,
    shards: int = 2,
    http: bool = False,
    patience: Patience = BRIEF,
    router_command: Sequence[str] | None = None,
) -> Node:
    """A node whose workers are fakes; the router is the real one unless told otherwise."""
    more: dict[str, Any] = {"router_command": router_command} if router_command else {}
    command = (sys.executable, "-P", str(FAKE_WORKER), *troubles)
    config = config_for(data, shards, http=http)
    return Node(config, worker_command=command, patience=patience, **more)


def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """The first true value of a condition; an assertion if it does not come."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < give_up_at, "the condition did not come true"
        time.sleep(0.01)


def row(node: Node, shard: int) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in node.status()["shards"] if r["id"] == shard)
    return found


def pids(node: Node) -> list[int]:
    """Every process of a node that runs now."""
    assert node.supervisor is not None
    return [each.pid for each in node.supervisor.view.processes if each.pid is not None]


def is_gone(pid: int) -> bool:
    """Whether no such process runs; a zombie that nobody has waited for yet does not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def impatient(**changes: Any) -> Patience:
    return replace(BRIEF, **changes)


def ask(address: object, frames_of: list[Frame], timeout_s: float = 5.0) -> Reply:
    """One request over a socket of its own, and its reply."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{address}")
        socket.send_multipart(frames_of)
        assert socket.poll(int(timeout_s * 1_000)), "no reply came"
        return parse_reply(socket.recv_multipart())
    finally:
        context.destroy(linger=0)


def echo(address: object, shard: int) -> Reply:
    """What a fake worker says to a request with the prefix of its shard."""
    return ask(address, build_request(1, b"hello", prefix=shard, routing_key=b"k"))
