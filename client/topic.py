"""`Topic`: appending to a topic and reading it, for threads.

One rule: it holds a name and no connection. What is known of the topic is in the client, shared by
all who use it, so a `Topic` costs nothing to make and may be kept for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from shardnode.client import topics
from shardnode.client.arguments import Data
from shardnode.client.consumer import Consumer
from shardnode.client.consumers import OnLost
from shardnode.client.consuming import Consuming
from shardnode.client.messages import Message, Outgoings, Position, to_messages
from shardnode.client.offsets import Offset
from shardnode.client.values import Bounds
from shardnode.wire.batches import Compression

if TYPE_CHECKING:
    from shardnode.client.sync import Client


class Topic:
    """A topic by its name; `Client.topic` and `Client.create_topic` make one."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = topics.to_topic_name(name)
        """With its stream, as in `default/orders`."""
        self._client = client
        self._turns = count(Random().getrandbits(32))

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def append(
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
        """Append messages to one partition, all or nothing; where the first of them is.

        Messages are bytes, text or `OutgoingMessage`, at most `batch_messages_max` at once. They go
        to `partition`; else to that of `key`, which is also the key of every message without one
        of its own; else to that of the first message's key; else to one partition after another.

        With `producer` and `sequence` a batch that a program appends again after a restart is not
        appended twice: sequences grow by partition, and a lower one than the last is a `Conflict`.
        """
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
        return self._client._run(call, timeout)

    def read(
        self,
        partition: int = 0,
        offset: Offset = 0,
        max_messages: int = 1000,
        max_bytes: int | None = None,
        wait: float = 0.0,
        *,
        timeout: float | None = None,
    ) -> list[Message]:
        """The messages of a partition from an offset on, as many as come in one page: at most
        `max_messages`, and about `max_bytes`.

        `offset` is a number, `earliest`, `latest`, `last`, a datetime, its RFC 3339 text, or how
        long ago, as in `-10m`. At the end of the partition it waits up to `wait` seconds for the
        next message. An offset that retention has deleted is `Compacted`, with the first one that
        is available.
        """
        call = topics.read(self.name, partition, offset, max_messages, max_bytes, wait)
        page = self._client._run(call, timeout, more_s=wait)
        return to_messages(page.found, partition, page.start, max_messages)

    def offset(self, partition: int, at: Offset, *, timeout: float | None = None) -> int:
        """The offset that `earliest`, `latest`, `last` or a time stands for now."""
        return self._client._run(topics.offset(self.name, partition, at), timeout).offset

    def bounds(self, partition: int, *, timeout: float | None = None) -> Bounds:
        """The first offset that is still there, and the one that the next message will get."""
        found = self._client._run(topics.bounds(self.name, partition), timeout)
        return Bounds(found.first, found.end)

    def all_bounds(self, *, timeout: float | None = None) -> list[Bounds]:
        """The bounds of every partition, by number."""
        return self._client._run(topics.all_bounds(self.name), timeout)

    def consumer(
        self,
        group: str | None = None,
        start: Offset = "earliest",
        partitions: Iterable[int] | None = None,
        session_timeout: float = 10.0,
        *,
        on_lost: OnLost = "raise",
    ) -> Consumer:
        """A consumer of this topic. With a `group` its members share the partitions, and go on
        where the group has committed; without one it reads all of them, or `partitions`.

        `start` is where to begin where there is nothing to go on at, as in `read`. A member that is
        silent for `session_timeout` seconds is given up; the others get its partitions. Where
        retention was faster than the reader, `on_lost` says whether to raise `Compacted` or to
        `skip` what is lost.
        """
        consuming = Consuming(
            self.name,
            group=group,
            start=start,
            partitions=partitions,
            session_timeout=session_timeout,
            on_lost=on_lost,
            patience_s=self._client._timeout(None),
        )
        return Consumer(self._client, self.name, consuming)
