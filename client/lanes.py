"""Lanes: how much may be under way to one shard at once.

One rule: what does not fit waits here, numbered but not built, so a call of any size costs a shard
a bounded amount of memory, and what never left has certainly had no effect.
"""

from __future__ import annotations

from collections import deque

from shardnode.client.exchange import Exchange, State
from shardnode.wire import limits

REQUESTS_MAX = 256
"""More than a drain of a shard takes; far fewer than the replies that a session keeps."""

BYTES_MAX = 4 * limits.body_bytes_max
"""Four of the largest bodies: one in work, one on its way, and room to spare."""


class _Lane:
    __slots__ = ("bytes", "requests", "waiting")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.waiting: deque[Exchange] = deque()

    def admits(self, exchange: Exchange) -> bool:
        return not self.requests or (
            self.requests < REQUESTS_MAX and self.bytes + len(exchange.body) <= BYTES_MAX
        )

    def admit(self, exchange: Exchange) -> None:
        self.requests += 1
        self.bytes += len(exchange.body)
        exchange.in_lane = True


class Lanes:
    """The lanes to all shards."""

    def __init__(self) -> None:
        self._by_shard: dict[int, _Lane] = {}

    def enter(self, exchange: Exchange) -> bool:
        """Whether it may go now; otherwise `leave` gives it back when it may. A request that a
        shard parks, or that any node answers, needs no room."""
        if exchange.shard is None or exchange.attempt_s:
            return True
        lane = self._by_shard.get(exchange.shard)
        if lane is None:
            lane = self._by_shard[exchange.shard] = _Lane()
        if lane.waiting or not lane.admits(exchange):
            lane.waiting.append(exchange)
            return False
        lane.admit(exchange)
        return True

    def leave(self, exchange: Exchange) -> list[Exchange]:
        """It is done; those that may go now."""
        if not exchange.in_lane:
            return []
        exchange.in_lane = False
        assert exchange.shard is not None, "only requests for a shard enter a lane"
        lane = self._by_shard[exchange.shard]
        lane.requests -= 1
        lane.bytes -= len(exchange.body)
        admitted = []
        while lane.waiting and (
            lane.waiting[0].state is State.DONE or lane.admits(lane.waiting[0])
        ):
            exchange = lane.waiting.popleft()
            if exchange.state is not State.DONE:
                lane.admit(exchange)
                admitted.append(exchange)
        return admitted
