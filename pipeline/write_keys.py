"""Rows of a task as puts: grouped by shard, in big requests, several of them under way.

One rule: of a key that comes twice in a task the last row counts. Within a request keys are
distinct; and a request waits for those before it that have one of its keys, since what is sent
twice may overtake.

Rows that all stay equally long go as PUT_MANY. Where each has a time of its own, they go as
TRANSACT, which takes a tenth as many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import add
from time import time_ns
from typing import Any, NamedTuple

from shardnode.client.arguments import to_ttl_ms
from shardnode.client.calls import Call
from shardnode.client.many import column as pick
from shardnode.client.many import groups_of
from shardnode.pipeline.options import Options
from shardnode.pipeline.write_calls import NamedWrite
from shardnode.pipeline.write_chunks import BUFFERED_BYTES_MAX, Buffer, Columns
from shardnode.pipeline.write_columns import Rows
from shardnode.pipeline.write_identity import Names, digest_of
from shardnode.pipeline.write_sender import Sender
from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.errors import WrongShard
from shardnode.wire.kinds import Kind, Operation
from shardnode.wire.requests import PutMany, Transact

_OVERHEAD_BYTES = 16


class _Part(NamedTuple):
    """What one request writes."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    times: Sequence[int]
    """How long, or until when, each stays; see `KeyWriter`. Empty: all for ever."""
    epoch: int
    """Of the table by which they belong to their shard; of the oldest, if of several."""


class KeyWriter:
    """The puts of one task."""

    def __init__(self, sender: Sender, options: Options) -> None:
        self._sender = sender
        self._ttl_ms = to_ttl_ms(options.ttl)
        self._rows_max = options.batchrows or limits.batch_keys_max
        self._rows_max = min(self._rows_max, limits.batch_keys_max)
        self._buffers: dict[int, Buffer] = {}
        self._placed: dict[int, int] = {}
        """Shard → epoch of the table by which the first row of its buffer belongs there."""
        self._names = Names()
        self._under_way: dict[int, list[_Keys]] = {}
        self._is_until = False
        """Whether times are those at which rows end."""
        self._moved: list[_Part] = []
        self._epoch = 0
        self.rows = 0

    def add(self, rows: Rows) -> None:
        """The rows of one record batch."""
        keys, values = rows.keys(), rows.values()
        times: list[int] = []
        if rows.has("ttl"):
            times = rows.ttls_ms(self._ttl_ms)
        elif rows.has("expires_at"):
            times, self._is_until = rows.expiries_ms(), True
        sizes = [size + _OVERHEAD_BYTES for size in map(add, map(len, keys), map(len, values))]
        self.rows += rows.count
        columns: list[Sequence[Any]] = [keys, values, *([times] if times else [])]
        table = self._sender.table
        for shard, positions in groups_of(keys, table).items():
            buffer = self._buffers.get(shard)
            if buffer is None:
                buffer = self._buffers[shard] = Buffer(self._rows_max)
            if not buffer.bytes:
                self._placed[shard] = table.epoch
            picked = [pick(column, positions) for column in columns]
            buffer.add(picked, pick(sizes, positions))
            for chunk in buffer.full():
                self._send(shard, chunk)
        if sum(buffer.bytes for buffer in self._buffers.values()) > BUFFERED_BYTES_MAX:
            self._flush()

    def finish(self) -> None:
        """Everything is written when this returns."""
        self._flush()
        self._sender.drain()
        while self._moved:
            self._send_moved()
            self._sender.drain()

    def _flush(self) -> None:
        for shard, buffer in self._buffers.items():
            for chunk in buffer.rest():
                self._send(shard, chunk)

    def _send(self, shard: int, chunk: Columns) -> None:
        keys, values, *rest = chunk
        times: Sequence[int] = rest[0] if rest and any(rest[0]) else ()
        epoch = self._placed[shard]
        if len(set(keys)) != len(keys):
            last = dict(zip(keys, range(len(keys)), strict=True))
            keys, places = list(last), list(last.values())
            values = list(pick(values, places))
            times = pick(times, places) if times else ()
        if len(set(times)) <= 1:
            self._put(shard, _Part(keys, values, times, epoch))
            return
        most = limits.transact_operations_max
        for at in range(0, len(keys), most):
            cut = slice(at, at + most)
            self._put(shard, _Part(keys[cut], values[cut], times[cut], epoch))

    def _put(self, shard: int, part: _Part) -> None:
        """Send rows, behind those with the same keys."""
        keys = frozenset(part.keys)
        before = self._under_way.setdefault(shard, [])
        self._sender.wait(lambda: all(keys.isdisjoint(each) for each in before))
        while self._moved:  # what has to go elsewhere now was before these
            self._sender.drain()
            self._send_moved()
        kind, body = self._body(part)
        digest = digest_of(part.values, part.keys, part.times or self._ttl_ms)
        identity = self._sender.name(shard, self._names.of(digest, shard))
        packed = body.encode()
        call = NamedWrite(kind, packed, shard, identity, routing_key=part.keys[0], epoch=part.epoch)
        before.append(keys)
        self._sender.send(call, len(packed), partial(self._done, shard, keys, part))

    def _body(self, part: _Part) -> tuple[Kind, Body]:
        times = self._ttls(part.times)
        if len(set(times)) <= 1:
            ttl_ms = times[0] if times else self._ttl_ms
            return Kind.PUT_MANY, PutMany(part.keys, part.values, ttl_ms)
        puts = bytes([Operation.PUT]) * len(part.keys)
        return Kind.TRANSACT, Transact(
            b"", (), (), puts, part.keys, part.values, times, b"", (), (), ()
        )

    def _ttls(self, times: Sequence[int]) -> Sequence[int]:
        """Times to live. What should have ended ends at once, as everything with its key."""
        if not self._is_until:
            return times
        now_ms = time_ns() // 1_000_000
        longest = limits.ttl_ms_max
        return [min(max(each - now_ms, 1), longest) if each else 0 for each in times]

    def _done(self, shard: int, keys: _Keys, part: _Part, call: Call[Any]) -> None:
        self._under_way[shard].remove(keys)
        try:
            call.result()
        except WrongShard as error:  # it had no effect
            self._epoch = max(self._epoch, error.epoch or 0)
            self._moved.append(part)

    def _send_moved(self) -> None:
        """Rows whose slots have moved to other shards, by a newer table."""
        moved, self._moved = self._moved, []
        table = self._sender.new_table(self._epoch)
        for part in moved:
            for shard, positions in groups_of(part.keys, table).items():
                keys, values = pick(part.keys, positions), pick(part.values, positions)
                times = pick(part.times, positions) if part.times else ()
                self._put(shard, _Part(keys, values, times, table.epoch))


_Keys = frozenset[bytes]
