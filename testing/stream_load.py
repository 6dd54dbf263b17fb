"""Load on a topic of a cluster under test: producers and readers, all of whose acts are recorded.

    with StreamLoad(cluster.addresses) as load:
        …                                        # faults
    findings = judge_stream(cluster, load)

Half of the producers have a name and number their batches: they append a batch whose outcome is
unknown again until they know it, and it must be there once. The others go on with the next batch;
those of one partition share a client, in which their batches may travel together.
Readers follow their partition from the first message to the last.

The one rule: every producer has one batch under way, to one partition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from shardnode.client import AsyncClient, Client, OutcomeUnknown, ShardnodeError
from shardnode.client import topics as topic_calls
from shardnode.testing.checkers import Finding
from shardnode.testing.cluster import Cluster
from shardnode.testing.history import NO_EFFECT
from shardnode.testing.load_base import BaseLoad, Recorded
from shardnode.testing.load_judge import compare_replicas, recover
from shardnode.testing.stream_history import Appending, Seen, StreamHistory, check_stream
from shardnode.wire.placement import PlacementTable, pack_namespace, slot_of_partition

BATCH_MAX = 20
AGAIN_S = 0.05
WAIT_S = 0.5


class StreamLoad(BaseLoad):
    """Producers and readers of one topic."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        partitions: int = 4,
        producers_each: int = 4,
        timeout: float = 5.0,
        pause_s: float = 0.002,
        seed: int = 0,
        prefix: str = "load",
    ) -> None:
        self._addresses = list(addresses)
        self._timeout = timeout
        self._pause_s = pause_s
        self._seed = seed
        self._producers_each = producers_each
        self.name = f"soak/{prefix}"
        self.history = StreamHistory([], [])
        self.shard_of = self._create(partitions)
        """Partition → its shard."""
        super().__init__(sorted(set(self.shard_of)))

    def _create(self, partitions: int) -> list[int]:
        with Client(self._addresses, timeout=30.0) as client:
            client.create_topic(self.name, partitions)
            found = client._run(topic_calls.describe(self.name), None)
            table: PlacementTable = client.topology().table
        spaces = [pack_namespace(found.stream, found.topic, n) for n in range(partitions)]
        return [table.shard_of_slot(slot_of_partition(space)) for space in spaces]

    @property
    def recorded(self) -> Sequence[Recorded]:
        return self.history.appended

    def save(self, path: Path) -> None:
        self.history.save(path)

    # In the thread.

    async def work(self) -> None:
        count = len(self.shard_of)
        async with AsyncExitStack() as clients:
            shared = [await clients.enter_async_context(self._client(n)) for n in range(count)]
            producers = []
            for number in range(count * self._producers_each):
                is_named = number // count % 2 == 0
                client = self._client(number) if is_named else shared[number % count]
                if is_named:
                    await clients.enter_async_context(client)
                producers.append(self._produce(number, client, is_named=is_named))
            await asyncio.gather(*producers, *map(self._follow, range(count)))

    def _client(self, number: int) -> AsyncClient:
        first = number % len(self._addresses)  # not all of them ask the same node for the way
        addresses = self._addresses[first:] + self._addresses[:first]
        return AsyncClient(addresses, timeout=self._timeout)

    async def _produce(self, number: int, client: AsyncClient, *, is_named: bool) -> None:
        random = Random(self._seed * 1_000 + number)
        partition = number % len(self.shard_of)
        sequence = 0
        while not self.stopping:
            sequence += 1
            batch = Appending(
                number,
                sequence,
                partition,
                self.shard_of[partition],
                random.randint(1, BATCH_MAX),
                time.monotonic_ns(),
            )
            self.history.appended.append(batch)
            await self._append(client, batch, is_named=is_named)
            await asyncio.sleep(random.uniform(0, 2 * self._pause_s))

    async def _append(self, client: AsyncClient, batch: Appending, *, is_named: bool) -> None:
        topic = client.topic(self.name)
        name = f"producer-{batch.producer}" if is_named else None
        may_be_there = False
        while True:
            try:
                position = await topic.append(
                    batch.messages,
                    partition=batch.partition,
                    producer=name,
                    sequence=batch.sequence if is_named else None,
                )
            except OutcomeUnknown:
                may_be_there = True
                if not is_named:
                    batch.ended("unknown")
                    return
            except NO_EFFECT:
                if not is_named or (self.stopping and not may_be_there):
                    batch.ended("unknown" if may_be_there else "failed")
                    return
            else:
                batch.ended("ok", position.offset)
                return
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, partition: int) -> None:
        offset = 0
        async with self._client(partition) as client:
            topic = client.topic(self.name)
            while not self.stopping:
                try:
                    page = await topic.read(partition, offset, wait=WAIT_S)
                except ShardnodeError:
                    await asyncio.sleep(AGAIN_S)
                    continue
                if page:
                    first = page[0].offset
                    self.history.seen.append(Seen(partition, first, [m.value for m in page]))
                    offset = page[-1].offset + 1


def read_all(load: StreamLoad, client: Client) -> dict[int, list[tuple[int, bytes]]]:
    """Partition → (offset, message) of all that is there."""
    contents: dict[int, list[tuple[int, bytes]]] = {}
    topic = client.topic(load.name)
    for partition in range(len(load.shard_of)):
        rows = contents[partition] = []
        while page := topic.read(partition, rows[-1][0] + 1 if rows else 0, max_messages=10_000):
            rows += [(message.offset, message.value) for message in page]
    return contents


def judge_stream(cluster: Cluster, load: StreamLoad) -> list[Finding]:
    """Everything that is wrong; the load is stopped by it, and the topic deleted."""
    recover(cluster)
    load.stop()
    with cluster.client(timeout=30.0) as client:
        contents = read_all(load, client)
        findings = check_stream(load.history, contents) + compare_replicas(cluster)
        client.delete_topic(load.name)
    return findings
