"""`AsyncTopic`: the methods of `Topic`, awaited.

One rule: it means what `Topic` means; both build their calls in `topics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from shardnode.client import topics
from shardnode.client.arguments import Data
from shardnode.client.consumer_aio import AsyncConsumer
from shardnode.client.consumers import OnLost
from shardnode.client.consuming import Consuming
from shardnode.client.messages import Message, Outgoings, Position, to_messages
from shardnode.client.offsets import Offset
from shardnode.client.values import Bounds
from shardnode.wire.batches import Compression

if TYPE_CHECKING:
    from shardnode.client.aio import AsyncClient


class AsyncTopic:
    """A topic by its name; `AsyncClient.topic` and `AsyncClient.create_topic` make one."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = topics.to_topic_name(name)
        """With its stream, as in `default/orders`."""
        self._client = client
        self._turns = count(Random().getrandbits(32))

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    async def append(
        self,
        messages: Outgoings,
        *,
        key: Data | None = None,
        partition: int | None = None,
        compression: Compression | None = None,
        producer: Data | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Append messages to one partition, all or nothing; where the first of them is."""
        call = topics.append(
            self.name,
            messages,
            key=key,
            partition=partition,
            turn=next(self._turns),
            compression=compression,
            producer=producer,
            sequence=sequence,
        )
        return await self._client._append(call, timeout)

    async def read(
        self,
        partition: int = 0,
        offset: Offset = 0,
        max_messages: int = 1000,
        max_bytes: int | None = None,
        wait: float = 0.0,
        *,
        timeout: float | None = None,
    ) -> list[Message]:
        """The messages of a partition from an offset on, as many as come in one page."""
        call = topics.read(self.name, partition, offset, max_messages, max_bytes, wait)
        page = await self._client._run(call, timeout, more_s=wait)
        return to_messages(page.found, partition, page.start, max_messages)

    async def offset(self, partition: int, at: Offset, *, timeout: float | None = None) -> int:
        """The offset that `earliest`, `latest`, `last` or a time stands for now."""
        return (await self._client._run(topics.offset(self.name, partition, at), timeout)).offset

    async def bounds(self, partition: int, *, timeout: float | None = None) -> Bounds:
        """The first offset that is still there, and the one that the next message will get."""
        found = await self._client._run(topics.bounds(self.name, partition), timeout)
        return Bounds(found.first, found.end)

    async def all_bounds(self, *, timeout: float | None = None) -> list[Bounds]:
        """The bounds of every partition, by number."""
        return await self._client._run(topics.all_bounds(self.name), timeout)

    def consumer(
        self,
        group: str | None = None,
        start: Offset = "earliest",
        partitions: Iterable[int] | None = None,
        session_timeout: float = 10.0,
        *,
        on_lost: OnLost = "raise",
    ) -> AsyncConsumer:
        """A consumer of this topic, alone or as a member of a group. It is not awaited."""
        consuming = Consuming(
            self.name,
            group=group,
            start=start,
            partitions=partitions,
            session_timeout=session_timeout,
            on_lost=on_lost,
            patience_s=self._client._timeout(None),
        )
        return AsyncConsumer(self._client, self.name, consuming)
