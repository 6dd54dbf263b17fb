"""Envelopes: the numbers of requests and the bytes around their bodies.

One rule: a number is used once, over all shards, and `acked_below` is no higher than the lowest
write that still waits for its answer. So a shard may forget what lies below, and a copy of a write
that its caller has given up is refused if it arrives after all. A write that brings an `Identity`
has its numbers from there.
"""

from __future__ import annotations

from shardnode.client.exchange import Exchange
from shardnode.client.routes import Routes
from shardnode.client.sessions import Sessions
from shardnode.wire import limits
from shardnode.wire.frames import PLACE_FOR_ME, build_request
from shardnode.wire.kinds import PARTITION_ADDRESSED, Flag, Kind

SERVER_SHARE = 0.95
"""A shard gets this share of the remaining time, so that its own "too late" arrives in time."""


class Envelopes:
    """Numbers and builds the requests of one client."""

    def __init__(self, routes: Routes, sessions: Sessions) -> None:
        self.inflight: dict[int, Exchange] = {}
        """By number, until it is done."""
        self._routes = routes
        self._sessions = sessions
        self._sequence = 0
        self._acked_below = 1
        self._unacked: set[int] = set()

    def number(self, exchange: Exchange) -> None:
        """Give it a number, by which its answer will be recognised."""
        if exchange.identity is None:
            self._sequence += 1
            exchange.sequence = self._sequence
        else:
            exchange.sequence = exchange.identity.sequence
            assert exchange.sequence not in self.inflight, "of one name one is under way"
        self.inflight[exchange.sequence] = exchange

    def forget(self, exchange: Exchange) -> None:
        """It is done, or built anew because it had no effect."""
        self.inflight.pop(exchange.sequence, None)
        self._unacked.discard(exchange.sequence)

    def build(self, exchange: Exchange, now: float) -> None:
        """Number it and make its bytes, which then stay the same."""
        self.forget(exchange)
        self.number(exchange)
        sequence, acked_below = exchange.sequence, 0
        if exchange.identity is not None:
            exchange.client_id = exchange.identity.client_id
            acked_below = exchange.identity.acked_below
        elif exchange.write:
            assert exchange.shard is not None, "writes belong to a shard"
            exchange.client_id = self._sessions.of(exchange.shard).client_id
            if exchange.kind is not Kind.SESSION_OPEN:
                self._unacked.add(sequence)
            while self._acked_below < sequence and self._acked_below not in self._unacked:
                self._acked_below += 1
            acked_below = self._acked_below
        deadline_ms = 0
        if exchange.call is not None:
            left_ms = int((exchange.deadline - now) * 1000 * SERVER_SHARE)
            deadline_ms = min(max(left_ms, 1), limits.deadline_ms_max)
        exchange.epoch = exchange.epoch or self._routes.epoch
        exchange.frames = build_request(
            exchange.kind,
            exchange.body,
            prefix=PLACE_FOR_ME if exchange.shard is None else exchange.shard,
            routing_key=exchange.routing_key,
            flags=Flag.NAMESPACE if exchange.kind in PARTITION_ADDRESSED else 0,
            deadline_ms=deadline_ms,
            epoch=exchange.epoch,
            client_id=exchange.client_id,
            sequence=sequence,
            acked_below=acked_below,
        )
