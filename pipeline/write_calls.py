"""Writes with a name of their own, as calls of the client.

One rule: one call has one request under way, which has the call's name. A shard that does not own
what a call brings has done nothing with it; the caller groups its rows anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.client.calls import Call
from shardnode.client.exchange import Exchange, Identity
from shardnode.client.messages import Outgoing
from shardnode.client.topic_calls import AppendCall
from shardnode.wire.codec import Answer
from shardnode.wire.kinds import Kind

if TYPE_CHECKING:
    from shardnode.client.core import Core


class NamedWrite(Call[Answer]):
    """One request to one shard."""

    def __init__(
        self,
        kind: Kind,
        body: bytes,
        shard: int,
        identity: Identity,
        *,
        routing_key: bytes = b"",
        epoch: int = 0,
    ) -> None:
        """`epoch`: of the table that says so."""
        super().__init__()
        self._kind = kind
        self._body = body
        self._shard = shard
        self._identity = identity
        self._routing_key = routing_key
        self._epoch = epoch

    def begin(self, core: Core, now: float) -> None:
        exchange = Exchange(
            self._kind,
            self._body,
            shard=self._shard,
            routing_key=self._routing_key,
            call=self,
            identity=self._identity,
        )
        self._body = b""
        exchange.epoch = self._epoch
        self.exchanges = [exchange]
        core.submit(exchange, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:  # noqa: ARG002
        self.exchanges = []
        if exchange.error is not None:
            self.fail(core, exchange.error)
        else:
            assert exchange.answer is not None, "an exchange ends with an answer or an error"
            self.succeed(core, exchange.answer)


class NamedAppend(AppendCall):
    """A batch for one partition of a topic."""

    def __init__(
        self,
        topic: str,
        batch: Outgoing,
        data: bytes,
        *,
        partition: int,
        identity: Identity,
        producer: bytes,
        sequence: int,
    ) -> None:
        super().__init__(
            topic,
            batch,
            data,
            partition=partition,
            turn=0,
            producer=producer,
            sequence=sequence,
        )
        self._identity = identity

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
        if kind is not Kind.APPEND:
            return super().submit(core, kind, body, shard, key, now, attempt_s)
        exchange = Exchange(
            kind, body, shard=shard, routing_key=key, call=self, identity=self._identity
        )
        self.exchanges.append(exchange)
        core.submit(exchange, now)
        return exchange
