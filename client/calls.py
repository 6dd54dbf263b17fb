"""Calls: what a caller asked for, as one or more requests.

One rule: a call decides what to send; `core` decides how often and where. A call that a stale
table led astray begins anew, which it may, because what was refused as `WrongShard` had no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardnode.client.exchange import Exchange
from shardnode.wire.codec import Answer
from shardnode.wire.errors import InvalidRequest, ShardnodeError, WrongShard
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable

if TYPE_CHECKING:
    from shardnode.client.core import Core

T = TypeVar("T")


class Call(Generic[T]):
    """What all calls share. A shell watches `done` and then asks for the `result`."""

    needs_table = True

    def __init__(self) -> None:
        self.deadline = 0.0
        self.timer = 0.0
        self.done = False
        self.exchanges: list[Exchange] = []
        """Those under way."""
        self.waiter: Callable[[], None] | None = None
        """The shell's: called when it is done."""
        self._value: T | None = None
        self._error: ShardnodeError | None = None

    def begin(self, core: Core, now: float) -> None:
        """Send what is needed; called again after a table has proved stale."""
        raise NotImplementedError

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        """An exchange of this call is over."""
        raise NotImplementedError

    def due(self, core: Core, now: float) -> None:
        """Its timer has come: it waits for a table, unless it has more to wait for."""
        core.table_due(self, now)

    def succeed(self, core: Core, value: T) -> None:
        self._value = value
        self._end(core)

    def fail(self, core: Core, error: ShardnodeError) -> None:
        self._error = error
        self._end(core)

    def _end(self, core: Core) -> None:
        assert not self.done, "a call ends once"
        self.done = True
        self.timer = 0.0
        core.finished.append(self)

    def result(self) -> T:
        """What it came to; raises its error."""
        assert self.done, "ask only when it is done"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # T may be None itself


class OneRequest(Call[T]):
    """A call that is one request."""

    def __init__(
        self,
        kind: Kind,
        body: bytes,
        convert: Callable[[Any], T],
        *,
        key: bytes = b"",
        shard: int | None = None,
        attempt_s: float = 0.0,
        node: int = 0,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.body = body
        self.key = key
        self.shard = shard
        self.attempt_s = attempt_s
        self.node = node
        self._convert = convert

    def target(self, core: Core) -> int | None:  # noqa: ARG002
        """The shard to send it to; None: any router."""
        return self.shard

    def begin(self, core: Core, now: float) -> None:
        try:
            shard = self.target(core)
        except InvalidRequest as error:
            self.fail(core, error)
            return
        exchange = Exchange(
            self.kind,
            self.body,
            shard=shard,
            routing_key=self.key,
            call=self,
            attempt_s=self.attempt_s,
            node=self.node,
        )
        self.exchanges = [exchange]
        core.submit(exchange, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        self.exchanges = []
        if isinstance(exchange.error, WrongShard):
            core.await_table(self, exchange.error.epoch or 0, now)
        elif exchange.error is not None:
            self.fail(core, exchange.error)
        else:
            assert exchange.answer is not None, "an exchange ends with an answer or an error"
            self.succeed(core, self._convert(exchange.answer))


class KeyCall(OneRequest[T]):
    """… about one key, or keys that share a shard."""

    def check(self, table: PlacementTable) -> None:
        """Refuse what cannot be done by this table; raises `InvalidRequest`."""

    def target(self, core: Core) -> int | None:
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        self.check(table)
        return table.shard_of_key(self.key)


class RouterCall(OneRequest[T]):
    """… that any node answers."""

    needs_table = False


class ShardCall(OneRequest[tuple[Answer, int]]):
    """… about one shard: its answer, and the epoch of the table by which it was given."""

    def __init__(self, kind: Kind, body: bytes, *, shard: int, attempt_s: float = 0.0) -> None:
        super().__init__(kind, body, _no_conversion, shard=shard, attempt_s=attempt_s)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        if exchange.answer is None:
            super().settled(core, exchange, now)
        else:
            self.exchanges = []
            self.succeed(core, (exchange.answer, exchange.epoch))


class Alarm(Call[None]):
    """Nothing but its time: ends when that is over, or when somebody rings it."""

    needs_table = False

    def begin(self, core: Core, now: float) -> None:  # noqa: ARG002
        core.alarm(self)

    def due(self, core: Core, now: float) -> None:  # noqa: ARG002
        self.succeed(core, None)


class TableCall(Call[PlacementTable]):
    """The table, once it is of at least that epoch."""

    def __init__(self, epoch_min: int = 0) -> None:
        super().__init__()
        self._epoch_min = epoch_min

    def begin(self, core: Core, now: float) -> None:
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        if table.epoch < self._epoch_min:
            core.await_table(self, self._epoch_min, now)
        else:
            self.succeed(core, table)


def _no_conversion(answer: Any) -> Any:
    return answer
