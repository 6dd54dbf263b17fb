"""`shardnode demo`: a temporary node, its keys, and the death of a worker.

The one rule: everything shown is real and measured here: real processes, a real SIGKILL, and every
key that was acknowledged is read again at the end. Nothing of it is left behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.options import CONTEXT, json_option, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.client.sync import Client
    from shardnode.client.values import ShardStatus

KEYS = 1_000
SHOWN = 6
BACK_S_MAX = 30.0
EXIT_TERMINATED = 128 + signal.SIGTERM


class Outage(NamedTuple):
    """What was seen between the death of a worker and its return."""

    shard: int
    pid_before: int
    pid_after: int
    seconds: float
    answers: int
    """Reads of the other shards that were answered meanwhile."""
    slowest_ms: float


@click.command("demo", context_settings=CONTEXT)
@version_option
@click.option("--shards", type=click.IntRange(2, 16), default=4, show_default=True, help="Workers.")
@json_option
def command(shards: int) -> None:
    """Start a temporary node, put keys, kill a worker and see it come back.

    Takes a few seconds, uses free ports and a temporary folder, and leaves nothing behind.
    """
    with _node(shards) as address, connected(address) as client:
        pairs = {b"user:%d" % number: b"value %d" % number for number in range(KEYS)}
        _say(f"1. a node with {shards} shards serves on {address}")
        client.put_many(pairs)
        _say(f"2. {KEYS} keys are put and acknowledged; this is where some of them live:")
        _show_places(client, list(pairs)[:SHOWN])
        outage = _kill_a_worker(client, list(pairs))
        _tell(outage)
        lost = _lost(client, pairs)
        _say(f"5. of {KEYS} acknowledged keys, {len(lost)} were lost")
    _say("6. the node is stopped and its folder is gone. Your own: shardnode start --shards 4")
    if wants_json():
        shown = outage._asdict()
        output.write_json({"shards": shards, "keys": KEYS, "lost": len(lost), "outage": shown})
    if lost:
        from shardnode.wire.errors import Corrupt

        raise Corrupt(f"{len(lost)} acknowledged keys were lost; please report this")


@contextmanager
def _node(shards: int) -> Iterator[str]:
    """The address of a node that lives as long as the block, whichever way that ends."""
    from shardnode.node.config_load import load_config
    from shardnode.node.handle import Node
    from shardnode.wire.errors import ShardnodeError

    signal.signal(signal.SIGTERM, _terminated)
    logging.getLogger("shardnode").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="shardnode-demo-") as folder:
        flags = {
            "shards": str(shards),
            "data": str(Path(folder, "data")),
            "listen": "127.0.0.1:0",
            "http": "off",
        }
        with open(Path(folder, "log"), "w+b") as log:
            try:
                with Node(load_config(flags=flags).config, stderr=log.fileno()) as node:
                    node.wait_ready()
                    yield str(node.address)
            except ShardnodeError:
                log.seek(0)
                output.note(log.read().decode(errors="replace").rstrip())
                raise


def _terminated(_: int, __: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)  # on the way out everything is cleaned up


def _show_places(client: Client, keys: list[bytes]) -> None:
    if wants_json():
        return
    rows = []
    for key in keys:
        route = client.explain(key)
        rows.append([key.decode(), route.slot, route.shard, route.pid, route.core])
    output.table(["key", "slot", "shard", "process", "core"], rows)
    output.flush()


def _kill_a_worker(client: Client, keys: list[bytes]) -> Outage:
    """Kill the worker of the first key; keep reading from the others until it serves again."""
    victim = client.explain(keys[0]).shard
    before = _status_of(client, victim)
    assert before.pid is not None, "it has just answered"
    others = _one_key_of_each(client, keys, without=victim)
    names = ", ".join(map(str, others))
    _say(f"3. SIGKILL to process {before.pid}, the worker of shard {victim}")
    killed_at = time.monotonic()
    os.kill(before.pid, signal.SIGKILL)
    answers, slowest_s = 0, 0.0
    while True:
        for key in others.values():
            asked_at = time.monotonic()
            client.get(key)
            slowest_s = max(slowest_s, time.monotonic() - asked_at)
            answers += 1
        now = _status_of(client, victim)
        seconds = time.monotonic() - killed_at
        if now.state == "serving" and now.leader and now.pid and now.pid != before.pid:
            break
        if seconds > BACK_S_MAX:
            from shardnode.wire.errors import Unavailable

            raise Unavailable(f"shard {victim} did not come back within {BACK_S_MAX:g} s")
    slowest_ms = round(slowest_s * 1_000, 1)
    _say(f"   shards {names} went on: {answers} reads, the slowest took {slowest_ms} ms")
    return Outage(victim, before.pid, now.pid, round(seconds, 3), answers, slowest_ms)


def _tell(outage: Outage) -> None:
    _say(
        f"4. after {outage.seconds:.2f} s shard {outage.shard} serves again, as process"
        f" {outage.pid_after}"
    )


def _status_of(client: Client, shard: int) -> ShardStatus:
    return next(each for each in client.status().shards if each.id == shard)


def _one_key_of_each(client: Client, keys: list[bytes], *, without: int) -> dict[int, bytes]:
    """Shard → one of its keys, for every other shard."""
    table = client.topology().table
    found: dict[int, bytes] = {}
    for key in keys:
        shard = table.shard_of_key(key)
        if shard != without:
            found.setdefault(shard, key)
    return dict(sorted(found.items()))


def _lost(client: Client, pairs: dict[bytes, bytes]) -> list[bytes]:
    values = client.get_many(pairs)
    return [key for key, value in zip(pairs, values, strict=True) if value != pairs[key]]


def _say(text: str) -> None:
    if not wants_json():
        output.write_line(text.encode())
        output.flush()
