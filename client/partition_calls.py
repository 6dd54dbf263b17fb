"""Calls about partitions of streams, by their namespaces.

One rule: a shard that does not know a partition has done nothing, so the request is repeated after
a while, until it works or time is up. New partitions reach their shards a moment after they were
wished for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.client.calls import Call, T
from shardnode.client.exchange import Exchange
from shardnode.wire.codec import Body
from shardnode.wire.errors import NotFound, ShardnodeError, WrongShard
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import namespace_to_bytes, slot_of_partition

if TYPE_CHECKING:
    from shardnode.client.core import Core

GRACE_S = 2.0
"""An answer that is later than this after its time is asked for again."""


class PartitionCall(Call[T]):
    """What all calls about partitions share."""

    def __init__(self) -> None:
        super().__init__()
        self._missing: NotFound | None = None
        """What a shard said of a partition that it does not know."""
        self._pauses = 0
        self._is_paused = False

    def go_on(self, core: Core, now: float) -> None:
        """Send what comes next."""
        raise NotImplementedError

    def answered(self, core: Core, exchange: Exchange, now: float) -> None:
        """An answer came."""
        raise NotImplementedError

    def refused(self, core: Core, error: ShardnodeError, now: float) -> None:  # noqa: ARG002
        """… or an error that is not about the table or an unknown partition."""
        self.fail(core, error)

    def absent(self, core: Core, error: NotFound, now: float) -> None:
        """… or a shard does not know the partition."""
        self._missing = error
        self.pause(core, now)

    def begin(self, core: Core, now: float) -> None:
        try:
            self.go_on(core, now)
        except ShardnodeError as error:  # what cannot be encoded
            self.fail(core, error)

    def pause(self, core: Core, now: float) -> None:
        """Begin again after a while."""
        self._is_paused = True
        core.pause(self, now, self._pauses)
        self._pauses += 1

    def due(self, core: Core, now: float) -> None:
        if not self._is_paused:
            super().due(core, now)
        elif now < self.deadline:
            self._is_paused = False
            self.begin(core, now)
        else:
            self.fail(core, self.out_of_time())

    def out_of_time(self) -> ShardnodeError:
        """The error of a call that waited for a partition to be there."""
        assert self._missing is not None, "that is what it pauses for"
        return self._missing

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        self.exchanges.remove(exchange)
        error = exchange.error
        if isinstance(error, WrongShard):
            core.await_table(self, error.epoch or 0, now)
        elif isinstance(error, NotFound):
            self.absent(core, error, now)
        elif error is not None:
            self.refused(core, error, now)
        else:
            self.answered(core, exchange, now)

    def ask(
        self,
        core: Core,
        kind: Kind,
        body: Body,
        namespace: int,
        now: float,
        attempt_s: float = 0.0,
    ) -> Exchange:
        """Send a request to the shard of a partition."""
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        shard = table.shard_of_slot(slot_of_partition(namespace))
        key = namespace_to_bytes(namespace)
        return self.submit(core, kind, body.encode(), shard, key, now, attempt_s)

    def submit(
        self,
        core: Core,
        kind: Kind,
        body: bytes,
        shard: int,
        key: bytes,
        now: float,
        attempt_s: float = 0.0,
    ) -> Exchange:
        """Send a request to a shard."""
        exchange = Exchange(
            kind, body, shard=shard, routing_key=key, call=self, attempt_s=attempt_s
        )
        self.exchanges.append(exchange)
        core.submit(exchange, now)
        return exchange
