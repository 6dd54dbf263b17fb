"""Calls about many keys: grouped by shard, sent to all shards at once, joined again.

One rule: everything is encoded before anything is sent, so a key that is refused for its size has
no effect on the others. After that each shard stands for itself: what failed is told by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from shardnode.client.calls import Call, T
from shardnode.client.exchange import Exchange
from shardnode.wire import limits
from shardnode.wire.codec import Answer
from shardnode.wire.errors import ShardnodeError, WrongShard, malformed, partial_failure
from shardnode.wire.kinds import Consistency, Kind
from shardnode.wire.placement import PlacementTable, group_by_shard
from shardnode.wire.replies import Deleted, Found, Written
from shardnode.wire.requests import DeleteMany, GetMany, PutMany

if TYPE_CHECKING:
    from shardnode.client.core import Core

RECORD_OVERHEAD_BYTES = 10
"""The most that msgpack puts around a key and its value."""

ENVELOPE_BYTES = 64
"""The most that msgpack puts around the columns."""

_Positions = Sequence[int]


def groups_of(keys: Sequence[bytes], table: PlacementTable) -> Mapping[int, _Positions]:
    """Shard → positions of its keys."""
    if table.shards == 1:
        return {0: range(len(keys))}
    return group_by_shard(keys, table)


def column(items: Sequence[Any], positions: _Positions) -> Sequence[Any]:
    """The items at these positions."""
    if isinstance(positions, range) and len(positions) == len(items):
        return items
    if len(positions) == 1:
        return (items[positions[0]],)
    picked: tuple[Any, ...] = itemgetter(*positions)(items)
    return picked


def cuts(sizes: Sequence[int]) -> Iterator[slice]:
    """Runs of records that fit into one request, given the bytes of each record."""
    room = limits.body_bytes_max - ENVELOPE_BYTES
    count = len(sizes)
    if count <= limits.batch_keys_max and sum(sizes) + count * RECORD_OVERHEAD_BYTES <= room:
        yield slice(0, count)
        return
    start = used = 0
    for at, size in enumerate(sizes):
        size += RECORD_OVERHEAD_BYTES
        if at > start and (used + size > room or at - start == limits.batch_keys_max):
            yield slice(start, at)
            start, used = at, 0
        used += size
    yield slice(start, count)


class ManyCall(Call[T]):
    """What calls about many keys share."""

    kind: Kind

    def __init__(self, keys: Sequence[bytes]) -> None:
        assert keys, "a call without keys needs no request"
        super().__init__()
        self.keys = keys
        self.placed: int | None = None
        """The shard of all keys, where the caller knows it by the table of now."""
        self._todo: list[int] | None = None
        """Positions to send when a table comes; None: all, for the first time."""
        self._parts: dict[Exchange, _Positions] = {}
        self._failed: dict[bytes, ShardnodeError] = {}

    def encode(self, positions: _Positions) -> bytes:
        """The body of a request for these keys."""
        raise NotImplementedError

    def sizes(self, keys: Sequence[bytes], positions: _Positions) -> Sequence[int]:  # noqa: ARG002
        """The bytes of each record."""
        return [*map(len, keys)]

    def store(self, positions: _Positions, answer: Any) -> _Positions:
        """Keep an answer; positions that have to be asked for again."""
        raise NotImplementedError

    def outcome(self) -> T:
        """The result when nothing failed."""
        raise NotImplementedError

    def succeeded(self) -> dict[bytes, object]:
        """What happened, by key."""
        raise NotImplementedError

    def begin(self, core: Core, now: float) -> None:
        todo: _Positions = range(len(self.keys)) if self._todo is None else self._todo
        self._todo = []
        if todo:
            try:
                self._send(core, todo, now)
            except ShardnodeError as error:
                self._todo = list(todo)
                self.fail(core, error)

    def _send(self, core: Core, positions: _Positions, now: float) -> None:
        table = core.routes.table
        assert table is not None, "a call begins when there is a table"
        new: list[Exchange] = []
        groups: Mapping[int, _Positions]
        if self.placed is not None:
            groups, self.placed = {self.placed: range(len(positions))}, None
        else:
            groups = groups_of(column(self.keys, positions), table)
        for shard, local in groups.items():
            places = column(positions, local)
            keys = column(self.keys, places)
            for cut in cuts(self.sizes(keys, places)):
                part = places[cut]
                exchange = Exchange(
                    self.kind,
                    self.encode(part),
                    shard=shard,
                    routing_key=keys[cut.start],
                    call=self,
                )
                self._parts[exchange] = part
                new.append(exchange)
        self.exchanges.extend(new)
        for exchange in new:
            core.submit(exchange, now)

    def settled(self, core: Core, exchange: Exchange, now: float) -> None:
        positions = self._parts.pop(exchange)
        self.exchanges.remove(exchange)
        error = exchange.error
        if isinstance(error, WrongShard):
            assert self._todo is not None, "it was sent"
            self._todo.extend(positions)
            core.await_table(self, error.epoch or 0, now)
        elif error is not None:
            self._fail_keys(positions, error)
        else:
            again = self.store(positions, exchange.answer)
            if again:
                self._send(core, again, now)
        self._end_if_over(core)

    def fail(self, core: Core, error: ShardnodeError) -> None:
        """What was not sent will not be."""
        todo: _Positions = range(len(self.keys)) if self._todo is None else self._todo
        self._todo = []
        self._fail_keys(todo, error)
        self._end_if_over(core)

    def _fail_keys(self, positions: _Positions, error: ShardnodeError) -> None:
        self._failed.update(dict.fromkeys(column(self.keys, positions), error))

    def _end_if_over(self, core: Core) -> None:
        if self._parts or self._todo or self.done:
            return
        if not self._failed:
            self.succeed(core, self.outcome())
            return
        done = {key: what for key, what in self.succeeded().items() if key not in self._failed}
        super().fail(core, partial_failure(done, self._failed))


class PutManyCall(ManyCall[list[int]]):
    """Set many keys. Of one that comes twice the last value is written, and both get its
    version."""

    kind = Kind.PUT_MANY

    def __init__(self, keys: Sequence[bytes], values: Sequence[bytes], ttl_ms: int) -> None:
        self._asked = keys
        if len(set(keys)) != len(keys):
            last = dict(zip(keys, values, strict=True))
            keys, values = list(last), list(last.values())
        super().__init__(keys)
        self._values = values
        self._ttl_ms = ttl_ms
        self._versions = [0] * len(keys)

    def encode(self, positions: _Positions) -> bytes:
        return PutMany(
            column(self.keys, positions), column(self._values, positions), self._ttl_ms
        ).encode()

    def sizes(self, keys: Sequence[bytes], positions: _Positions) -> Sequence[int]:
        values = column(self._values, positions)
        if len(keys) <= limits.batch_keys_max:
            total = len(b"".join(keys)) + len(b"".join(values))
            if total <= limits.body_bytes_max // 2:
                return (0,) * len(keys)  # they fit, whatever each takes
        return [len(key) + len(value) for key, value in zip(keys, values, strict=True)]

    def store(self, positions: _Positions, answer: Answer) -> _Positions:
        assert isinstance(answer, Written)
        for position in positions:
            self._versions[position] = answer.version
        return ()

    def succeeded(self) -> dict[bytes, object]:
        return dict(zip(self.keys, self._versions, strict=True))

    def outcome(self) -> list[int]:
        if self._asked is self.keys:
            return self._versions
        versions = dict(zip(self.keys, self._versions, strict=True))
        return [versions[key] for key in self._asked]


class GetManyCall(ManyCall[list[bytes | None]]):
    """Read many keys; repeats are allowed."""

    kind = Kind.GET_MANY

    def __init__(self, keys: Sequence[bytes], consistency: Consistency) -> None:
        super().__init__(keys)
        self._consistency = consistency
        self._values: list[bytes | None] = [None] * len(keys)

    def encode(self, positions: _Positions) -> bytes:
        return GetMany(column(self.keys, positions), self._consistency).encode()

    def store(self, positions: _Positions, answer: Answer) -> _Positions:
        assert isinstance(answer, Found)
        values = answer.values
        if not 0 < len(values) <= len(positions):
            error = malformed(
                f"1 to {len(positions)} values", f"{len(values)}", "the node breaks the protocol"
            )
            self._fail_keys(positions, error)
            return ()
        for position, value in zip(positions, values, strict=False):
            self._values[position] = value
        return positions[len(values) :]

    def succeeded(self) -> dict[bytes, object]:
        return dict(zip(self.keys, self._values, strict=True))

    def outcome(self) -> list[bytes | None]:
        return self._values


class DeleteManyCall(ManyCall[int]):
    """Delete many keys."""

    kind = Kind.DELETE_MANY

    def __init__(self, keys: Sequence[bytes]) -> None:
        super().__init__(list(dict.fromkeys(keys)))
        self._deleted = 0
        self._versions: dict[bytes, object] = {}

    def encode(self, positions: _Positions) -> bytes:
        return DeleteMany(column(self.keys, positions)).encode()

    def store(self, positions: _Positions, answer: Answer) -> _Positions:
        assert isinstance(answer, Deleted)
        self._deleted += answer.deleted
        self._versions.update(dict.fromkeys(column(self.keys, positions), answer.version))
        return ()

    def succeeded(self) -> dict[bytes, object]:
        return self._versions

    def outcome(self) -> int:
        return self._deleted
