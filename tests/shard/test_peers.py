"""The sockets between members: what arrives is what was sent, and nothing else gets through."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import zmq
from xxhash import xxh3_64_digest

from shardnode.shard import letters
from shardnode.shard.letters import Carry, Hello, Letter
from shardnode.shard.peers import Peers
from shardnode.shard.transfer import Piece
from shardnode.wire.placement import member_id

CLUSTER, SHARD = 9, 3
ONE, TWO = member_id(SHARD, 1), member_id(SHARD, 2)


class Inbox(NamedTuple):
    """One end, and what tells when something is there."""

    peers: Peers
    poller: zmq.Poller


@contextmanager
def two() -> Iterator[tuple[Peers, Inbox, str]]:
    """Node 1, which is connected to node 2."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="sn-") as folder:
        ends = {node: f"ipc://{folder}/{node}" for node in (1, 2)}
        poller = zmq.Poller()
        one = Peers(context, zmq.Poller(), ends[1], shard=SHARD, cluster=CLUSTER)
        other = Peers(context, poller, ends[2], shard=SHARD, cluster=CLUSTER)
        try:
            one.use({2: ends[2]})
            yield one, Inbox(other, poller), ends[2]
        finally:
            context.destroy(linger=0)


def arrived(inbox: Inbox, count: int = 1) -> list[Letter]:
    found: list[Letter] = []
    deadline = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline:
        found += inbox.peers.drain(dict(inbox.poller.poll(50)))
    return found


def framed(letter: bytes, of: bytes | None = None) -> bytes:
    """A letter as it travels, or with the checksum of another."""
    return SHARD.to_bytes(4, "big") + xxh3_64_digest(letter if of is None else of) + letter


def post(peers: Peers, letter: Letter) -> None:
    """Nothing waits for a connection that is not there yet, so try until it is."""
    deadline = time.monotonic() + 5
    while not peers.post(letter):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_letters_of_every_lane_arrive() -> None:
    sent: list[Letter] = [
        Hello(CLUSTER, ONE, TWO, False, True),
        Piece(CLUSTER, ONE, TWO, 5, 0, b"x" * 100_000),
        Carry(CLUSTER, ONE, TWO, 7, False, [b"a", b""]),
    ]
    with two() as (one, other, _):
        for letter in sent:
            post(one, letter)
        assert sorted(arrived(other, 3), key=repr) == sorted(sent, key=repr)


def test_damage_strangers_and_nonsense_are_dropped_and_counted() -> None:
    good = letters.encode(Hello(CLUSTER, ONE, TWO, False, True))
    foreign = letters.encode(Hello(CLUSTER + 1, ONE, TWO, False, True))
    prefix = SHARD.to_bytes(4, "big")
    flipped = bytes([good[0], good[1] ^ 4, *good[2:]])
    messages = {
        "peer_damaged": [[framed(flipped, of=good)], [prefix + b"short"], [prefix]],
        "peer_malformed": [[framed(good[:-1])], [framed(b"")]],
        "peer_strangers": [
            [prefix, good],
            [b"\0\0\0\1" + framed(good)[4:]],
            [framed(foreign)],
            [b""],
        ],
    }
    with two() as (one, other, endpoint):
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            stranger = context.socket(zmq.DEALER)
            stranger.connect(endpoint)
            for each in messages.values():
                for message in each:
                    stranger.send_multipart(message)
            stranger.send(framed(good))
            assert arrived(other) == [Hello(CLUSTER, ONE, TWO, False, True)]
        finally:
            context.destroy(linger=0)
        assert one.counters["peer_unknown"] == 0
        assert {name: other.peers.counters[name] for name in messages} == {
            name: len(each) for name, each in messages.items()
        }


def test_letter_to_nobody_is_counted() -> None:
    with two() as (one, _, _):
        assert not one.post(Hello(CLUSTER, ONE, member_id(SHARD, 7), False, True))
        assert one.counters["peer_unknown"] == 1
