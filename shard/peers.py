"""The sockets between the workers of one shard on different nodes.

The one rule: consensus never waits behind anything else. It has a connection of its own to each
peer; snapshots travel on another, requests that are carried for clients on a third. All of them
are bounded: what does not fit is dropped and counted, and who waits for it asks again.

    in    one ROUTER, bound; [identity] [shard prefix, checksum, letter]
    out   three DEALERs for each peer; [shard prefix, checksum, letter]

The checksum is xxh3_64 of the letter: a bit that flipped on the way must not end up in a log as if
the leader had written it. One frame, because each costs more than the letters that most are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

import zmq
from xxhash import xxh3_64_digest

from shardnode.raft import MalformedMessage
from shardnode.shard import letters
from shardnode.shard.lanes import NOBLOCK, received, set_options
from shardnode.shard.letters import Carry, Letter
from shardnode.shard.transfer import Piece
from shardnode.wire.placement import split_member_id

CONSENSUS, BULK, CARRIED = range(3)

QUEUES = (1_000, 8, 1_000)
"""Messages that may wait on each. Pieces of a snapshot are large, and asked for one by one."""

_LANES: dict[type, int] = {Piece: BULK, Carry: CARRIED}
"""Which of a peer's sockets a letter takes; that of consensus, unless it is named here."""

DRAIN_LETTERS_MAX = 1_000

_PREFIX_SIZE = 4
_HEAD_SIZE = _PREFIX_SIZE + 8


class Peers:
    """The peers of one worker."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        poller: zmq.Poller,
        listen: str,
        *,
        shard: int,
        cluster: int,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.shard = shard
        self.cluster = cluster
        self._prefix = shard.to_bytes(4, "big")
        self._context = context
        self._inbox = context.socket(zmq.ROUTER)
        set_options(self._inbox)
        self._inbox.bind(listen)
        poller.register(self._inbox, zmq.POLLIN)
        self._endpoints: dict[int, str] = {}
        self._out: dict[int, list[zmq.Socket[bytes]]] = {}

    def use(self, endpoints: Mapping[int, str]) -> None:
        """Talk to these nodes from now on; an address that stays keeps its connections."""
        for node in [n for n in self._endpoints if endpoints.get(n) != self._endpoints[n]]:
            del self._endpoints[node]
            for socket in self._out.pop(node, ()):
                socket.close(linger=0)
        for node, endpoint in endpoints.items():
            if node not in self._endpoints:
                self._endpoints[node] = endpoint
                # All at once: a lane that is opened when it is needed is not there when it is.
                self._out[node] = [self._connect(endpoint, queue) for queue in QUEUES]

    def _connect(self, endpoint: str, queue: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        set_options(socket)
        socket.set(zmq.SNDHWM, queue)
        socket.set(zmq.LINGER, 0)
        # What a peer missed while it was away is of no use to it when it comes back.
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.RECONNECT_IVL, 50)
        socket.set(zmq.RECONNECT_IVL_MAX, 1_000)
        socket.set(zmq.CONNECT_TIMEOUT, 2_000)
        socket.connect(endpoint)
        return socket

    def send(self, messages: Iterable[Letter]) -> None:
        """Let letters leave, each to its node; what cannot leave now is dropped and counted."""
        for letter in messages:
            self.post(letter)

    def post(self, letter: Letter) -> bool:
        """Let one letter leave; whether it could."""
        sockets = self._out.get(split_member_id(letter.target)[1])
        if sockets is None:
            self.counters["peer_unknown"] += 1
            return False
        lane = sockets[_LANES.get(type(letter), CONSENSUS)]
        data = letters.encode(letter)
        try:
            lane.send(b"".join((self._prefix, xxh3_64_digest(data), data)), NOBLOCK)
        except zmq.Again:
            self.counters["peer_dropped"] += 1
            return False
        return True

    def drain(self, signalled: Container[object]) -> list[Letter]:
        """Everything that waits. A stranger's message is dropped and counted."""
        if self._inbox not in signalled:
            return []
        opened = map(self._open, received(self._inbox, DRAIN_LETTERS_MAX))
        return [letter for letter in opened if letter is not None]

    def _open(self, message: list[bytes]) -> Letter | None:
        frame = message[1] if len(message) == 2 else b""
        if frame[:_PREFIX_SIZE] != self._prefix:
            self.counters["peer_strangers"] += 1
            return None
        data = frame[_HEAD_SIZE:]
        if xxh3_64_digest(data) != frame[_PREFIX_SIZE:_HEAD_SIZE]:
            self.counters["peer_damaged"] += 1
            return None
        try:
            letter = letters.decode(data)
        except MalformedMessage:
            self.counters["peer_malformed"] += 1
            return None
        if letter.cluster != self.cluster:
            self.counters["peer_strangers"] += 1
            return None
        return letter
