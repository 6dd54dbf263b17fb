"""Does a leader that was paused, and woke up after another was elected, ever serve what is old?

    python -m shardnode.testing.stale_reads --tries 1000

A try is one shard of one pause: its leader's node is stopped with SIGSTOP; as soon as the others
have acknowledged a new value, reads are sent to the stopped worker itself; then it is woken, and
answers them first of all. It may refuse, or give the new value. The old one, even once, is the end.
Every other time it is cut off from the others, too, and wakes up without a word from them.

The one rule: a read counts only if it was sent after the write was acknowledged. Before that the
old value would be right.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import zmq

from shardnode.client import Client
from shardnode.testing.cluster import Cluster
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.frames import build_request, parse_reply
from shardnode.wire.kinds import Consistency, Kind
from shardnode.wire.ports import DIRECT_PORT_OFFSET, shifted
from shardnode.wire.replies import Entry, decode_reply
from shardnode.wire.requests import Get

LEVELS = (Consistency.LINEARIZABLE, Consistency.LEASE)
READS = 3
"""Of each level, for each try."""

ANSWERS_S = 2.0
SETTINGS = {"raft": {"election_timeout": "300ms", "heartbeat": "60ms"}}
"""Shorter than usual, so that a pause need not be long."""


class StaleRead(AssertionError):
    """A promise was broken."""


class Prober:
    """Reads from one worker, whoever leads."""

    def __init__(self, address: str, shards: Mapping[int, bytes]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        for shard in shards:
            socket = self._sockets[shard] = self._context.socket(zmq.DEALER)
            socket.set(zmq.LINGER, 0)
            socket.connect(shifted(f"tcp://{address}", DIRECT_PORT_OFFSET + shard))
        self._keys = shards

    def ask(self) -> None:
        """Send reads to all shards, without waiting."""
        for shard, key in self._keys.items():
            for number in range(READS * len(LEVELS)):
                body = Get(key, LEVELS[number % len(LEVELS)]).encode()
                request = build_request(
                    Kind.GET,
                    body,
                    prefix=shard,
                    routing_key=key,
                    deadline_ms=5_000,
                    sequence=number,
                )
                self._sockets[shard].send_multipart(request)

    def answers(self, shard: int) -> list[bytes | ShardnodeError | None]:
        """What came of them."""
        found: list[bytes | ShardnodeError | None] = []
        deadline = time.monotonic() + ANSWERS_S
        while len(found) < READS * len(LEVELS) and time.monotonic() < deadline:
            if not self._sockets[shard].poll(100):
                continue
            try:
                answer = decode_reply(parse_reply(self._sockets[shard].recv_multipart()))
            except ShardnodeError as error:
                found.append(error)
            else:
                assert isinstance(answer, Entry)
                found.append(answer.value)
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)


def keys_of_shards(client: Client, shards: int) -> dict[int, bytes]:
    """A key for each shard."""
    table = client.topology().table
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < shards:
        key = b"stale-%d" % number
        found.setdefault(table.shard_of_key(key), key)
        number += 1
    return found


def run(cluster: Cluster, tries: int, seed: int = 0) -> Counter[str]:
    """Try as often; what the reads came to. Raises `StaleRead`."""
    random, outcomes, number = Random(seed), Counter[str](), 0
    with cluster.client(timeout=20) as client:
        keys = keys_of_shards(client, cluster.shards)
        while outcomes["tries"] < tries:
            number += 1
            client.put_many(dict.fromkeys(keys.values(), b"old %d" % number))
            leaders = {shard: cluster.leader(shard) for shard in keys}
            victim = random.choice(sorted(set(leaders.values())))
            led = {shard: keys[shard] for shard, node in leaders.items() if node == victim}
            prober = Prober(cluster.nodes[victim].address, led)
            try:
                if number % 2:
                    cluster.isolate(victim)
                outcomes += _pause_and_ask(cluster, client, victim, led, prober, b"new %d" % number)
            finally:
                cluster.nodes[victim].resume()
                cluster.heal()
                prober.close()
    return outcomes


def _pause_and_ask(
    cluster: Cluster,
    client: Client,
    victim: int,
    led: Mapping[int, bytes],
    prober: Prober,
    new: bytes,
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    node = cluster.nodes[victim]
    prober.ask()  # makes the connections; what comes of it proves nothing
    for shard in led:
        prober.answers(shard)
    node.pause()
    client.put_many(dict.fromkeys(led.values(), new))
    prober.ask()
    node.resume()
    for shard, key in led.items():
        outcomes["tries"] += 1
        for answer in prober.answers(shard):
            if isinstance(answer, ShardnodeError):
                outcomes[answer.code] += 1
            elif answer == new:
                outcomes["new value"] += 1
            else:
                raise StaleRead(
                    f"expected {new!r} or a refusal from node {victim}, which had led shard"
                    f" {shard} before its pause, found {answer!r} for {key!r}"
                )
    return outcomes


def main(arguments: Sequence[str]) -> int:
    """Try, and tell."""
    parser = argparse.ArgumentParser(prog="stale_reads", description="Reads from paused leaders.")
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with Cluster(3, options.shards, settings=SETTINGS) as cluster:
        outcomes = run(cluster, options.tries, options.seed)
    sys.stdout.write(f"no stale read: {dict(outcomes)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
