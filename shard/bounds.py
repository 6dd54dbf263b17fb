"""What this node's `[limits]` accept: the protocol's ceilings, or less.

The one rule: a limit is checked before anything is logged, by the leader that was asked, and says
its name. What is in the log is applied whatever a node is set to, because all replicas must do the
same; only a start looks at what was recovered, and refuses the shard with both numbers.

A partition that has too many requests under way refuses more of them, and delays no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.errors import LimitExceeded, Overloaded, limit_exceeded
from shardnode.wire.requests import Cas, DeleteMany, GetMany, Put, PutMany, SessionOpen, Transact
from shardnode.wire.streams import Append, AppendMany


@dataclass(frozen=True, slots=True)
class Bounds:
    """The section, by the names of its settings."""

    value_bytes: int = limits.value_bytes_max
    batch_keys: int = limits.batch_keys_max
    batch_messages: int = limits.batch_messages_max
    batch_bytes: int = limits.batch_bytes_max
    inflight_requests: int = 8_192
    partitions: int = 10_000
    sessions: int = 10_000

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """From the line that a worker is started with."""
        known = {part.name for part in fields(cls)}
        return cls(**{name: value for name, value in section.items() if name in known})

    def check(self, body: Body, sessions: int) -> None:
        """Raise `LimitExceeded` for a request that asks for too much."""
        if isinstance(body, Append):
            self._at_most("batch_messages", body.count)
            self._at_most("batch_bytes", len(body.batch))
        elif isinstance(body, AppendMany):
            self._at_most("batch_messages", max(body.counts))
            self._at_most("batch_bytes", max(body.sizes))
        elif isinstance(body, PutMany | GetMany | DeleteMany):
            self._at_most("batch_keys", len(body.keys))
            if isinstance(body, PutMany):
                self._check_values(body.values)
        elif isinstance(body, Put | Cas):
            self._check_values((body.value,))
        elif isinstance(body, Transact):
            values = (*body.then_values, *body.otherwise_values)
            self._check_values([value for value in values if value is not None])
        elif isinstance(body, SessionOpen):
            self._at_most("sessions", sessions + 1)

    def _check_values(self, values: Sequence[bytes]) -> None:
        if self.value_bytes < limits.value_bytes_max:
            self._at_most("value_bytes", max(map(len, values), default=0))

    def _at_most(self, name: str, found: int) -> None:
        limit: int = getattr(self, name)
        if found > limit:
            raise limit_exceeded(f"limits.{name}", limit, found, "ask for less, or raise the limit")

    def check_room(self, pending: Counter[int], partition: int) -> None:
        """Raise `Overloaded` when a partition has too many requests under way."""
        count = pending[partition]
        if count >= self.inflight_requests:
            raise Overloaded(
                f"expected fewer than {self.inflight_requests} requests under way in one partition"
                f" (limits.inflight_requests), found {count}; slow down and try again",
                lag=count,
                limit=self.inflight_requests,
            )

    def check_created(self, by_shard: Mapping[int, int]) -> None:
        """Raise when a topic would give a shard more partitions than it may have."""
        for shard, count in sorted(by_shard.items()):
            if count > self.partitions:
                raise LimitExceeded(
                    f"expected at most {self.partitions} partitions in a shard"
                    f" (limits.partitions), found {count} in shard {shard}; use fewer partitions,"
                    " delete topics, or raise the limit on every node",
                    limit_name="limits.partitions",
                    limit=self.partitions,
                    found=count,
                )

    def recovered(self, namespaces: Collection[int]) -> str:
        """Why what was found at a start is too much; empty when it is not."""
        beyond = sorted(namespaces)[self.partitions :]
        if not beyond:
            return ""
        return (
            f"expected at most {self.partitions} partitions (limits.partitions), found"
            f" {len(namespaces)}, the first beyond it namespace {beyond[0]:#x}; raise the limit and"
            " start again, or delete topics first with a node that still accepts them"
        )
