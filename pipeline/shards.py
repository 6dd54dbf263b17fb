"""The shards of a running node, for one thread of Spark's: calls, one or many at once.

One rule: a call waits as long as the option `timeout` allows for a shard that is out of reach,
which is long enough for a worker that was killed, or for another leader, to be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shardnode.client.arguments import to_endpoints
from shardnode.client.calls import Call, TableCall
from shardnode.client.engine import Engine

if TYPE_CHECKING:
    from shardnode.pipeline.options import Options
    from shardnode.wire.placement import PlacementTable

T = TypeVar("T")


class Shards:
    """Connections; they are made when they are first needed, and `close` ends them."""

    def __init__(self, options: Options) -> None:
        self.engine = Engine(to_endpoints(options.connect))
        self.timeout_s = options.timeout

    def run(self, call: Call[T], timeout_s: float | None = None) -> T:
        """What a call comes to; raises its error."""
        self.engine.run(call, self.timeout_s if timeout_s is None else timeout_s)
        return call.result()

    def run_all(self, calls: Sequence[Call[T]], timeout_s: float | None = None) -> list[T]:
        """The same for many at once, in order."""
        self.engine.start(calls, self.timeout_s if timeout_s is None else timeout_s)
        self.engine.wait(calls)
        return [call.result() for call in calls]

    def table(self) -> PlacementTable:
        """Who owns which slot."""
        return self.run(TableCall())

    def ahead(self, call: Call[Any]) -> None:
        """Start a call that nobody waits for yet."""
        self.engine.start((call,), self.timeout_s)

    def finish(self, call: Call[T]) -> T:
        """… and wait for it, however long ago that was."""
        self.engine.extend((call,), self.timeout_s)
        self.engine.wait((call,))
        return call.result()

    def cancel(self, call: Call[Any]) -> None:
        """Nobody waits for it any more."""
        self.engine.cancel((call,))

    def close(self) -> None:
        """Close all connections."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
