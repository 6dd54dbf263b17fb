"""Reads of stream partitions: a page of batches at once, or when there is something to read.

The one rule: a reader that waits costs nothing while nothing is appended to its partition. It is
answered when something is, or when its time is over; nothing is pushed, and readers of one
partition are not looked at when another one grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.shard.waiting import Desk, Waiting
from shardnode.wire import limits
from shardnode.wire.errors import Overloaded, ShardnodeError
from shardnode.wire.kinds import OffsetPoint
from shardnode.wire.streams import MessagesFound, OffsetFound, OffsetLookup, Read

if TYPE_CHECKING:
    from shardnode.shard.effects import Effects
    from shardnode.shard.replica import Replica
    from shardnode.shard.streams import Streams

READERS_MAX = 10_000
PAGE_BYTES = 1 << 20
"""What a page has when the reader does not say."""


class StreamReads:
    """The readers of one shard."""

    def __init__(self, replica: Replica, effects: Effects, desk: Desk) -> None:
        self._replica = replica
        self._effects = effects
        self._desk = desk
        self._parked: dict[int, list[tuple[Waiting, Read, int]]] = {}
        self._next_end_ms = 0

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def read(self, streams: Streams, waiting: Waiting, ask: Read, now_ms: int) -> None:
        """Answer at once when there is something to read, else when there is."""
        until = min(waiting.deadline_ms, now_ms + ask.wait_ms)
        if self._tell(streams, waiting, ask, at_any_rate=until <= now_ms):
            return
        if len(self) >= READERS_MAX:
            raise Overloaded(
                f"{READERS_MAX} readers wait here already; try again later",
                lag=READERS_MAX,
                limit=READERS_MAX,
            )
        self._next_end_ms = min(self._next_end_ms, until) if self._parked else until
        self._parked.setdefault(ask.namespace, []).append((waiting, ask, until))

    def find(self, streams: Streams, ask: OffsetLookup) -> OffsetFound:
        """The offset of the first message, of the last or the next one, or of a time."""
        stream = streams.of(ask.namespace)
        assert stream.log is not None
        first, end = stream.log.first_offset, self._end(streams, ask.namespace)
        if ask.point is OffsetPoint.EARLIEST:
            offset = first
        elif ask.point is OffsetPoint.TIMESTAMP:
            offset = min(stream.log.find(ask.timestamp_ms), end)
        elif ask.point is OffsetPoint.LAST:
            offset = max(first, end - 1)
        else:
            offset = end
        return OffsetFound(offset, first, end)

    def wake(self, now_ms: int) -> None:
        """After a drain: answer those whose partition grew, or who have waited long enough."""
        streams = self._effects.streams
        if streams is None:
            return
        grown, streams.grown = streams.grown, set()
        if not self._parked:
            return
        over = now_ms >= self._next_end_ms
        for namespace in list(self._parked) if over else grown & self._parked.keys():
            kept = [
                (waiting, ask, until)
                for waiting, ask, until in self._parked[namespace]
                if not self._tell(streams, waiting, ask, at_any_rate=now_ms >= until)
            ]
            if kept:
                self._parked[namespace] = kept
            else:
                del self._parked[namespace]
        if over:
            ends = (until for each in self._parked.values() for _, _, until in each)
            self._next_end_ms = min(ends, default=0)

    @property
    def due_ms(self) -> int | None:
        """When the first reader has waited long enough; None when nobody waits."""
        return self._next_end_ms if self._parked else None

    def _tell(self, streams: Streams, waiting: Waiting, ask: Read, *, at_any_rate: bool) -> bool:
        try:
            found = self._page(streams, ask)
        except ShardnodeError as error:
            self._desk.refuse(waiting.message, waiting.to, error)
            return True
        if not found.batches and not at_any_rate:
            return False
        self._desk.answer(waiting, found.encode(), index=self._effects.applied_index)
        return True

    def _page(self, streams: Streams, ask: Read) -> MessagesFound:
        end = self._end(streams, ask.namespace)
        bytes_max = ask.page_bytes or PAGE_BYTES
        found = streams.read(
            ask.namespace,
            ask.offset,
            end=end,
            bytes_max=bytes_max,
            messages_max=ask.limit or limits.batch_messages_max,
        )[: limits.read_page_batches_max]
        return MessagesFound(
            base_offsets=[batch.offset for batch in found],
            counts=[batch.count for batch in found],
            timestamps_ms=[batch.stamp_ms for batch in found],
            batches=[batch.payload for batch in found],
            next=found[-1].offset + found[-1].count if found else ask.offset,
            first=streams.of(ask.namespace).mark.first_offset,
            end=end,
        )

    def _end(self, streams: Streams, namespace: int) -> int:
        """Behind the last message that readers may see: enough members hold all before it."""
        stream = streams.of(namespace)
        pending = self._replica.holding.acks.pending.get(namespace)
        return stream.end_before(pending) if pending is not None else stream.mark.end_offset
