"""The streams of crash cycles: what a partition may hold after a crash, and who appends to it.

The one rule: a partition has one producer, which has one batch under way. What was acknowledged is
there at its offset until retention takes it, once and in order; behind it may be the one batch
whose fate is not known, whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from shardnode.client import AsyncClient, Compacted, ShardnodeError
from shardnode.testing.history import NO_EFFECT

TOPIC = "crash/stream"
PARTITIONS = 4
RETENTION_BYTES = 256 << 10
"""Segments of 64 KiB: some are sealed, trimmed and removed in every cycle."""

BATCH_MAX = 12
MESSAGE_BYTES = (16, 4_000)
READ_MESSAGES = 10_000


class StreamModel:
    """One partition."""

    def __init__(self) -> None:
        self.first = 0
        """Where it begins, as far as was seen."""
        self._sure: list[bytes] = []
        """The messages from `first` on that must be there."""
        self._maybe: list[bytes] = []

    @property
    def in_doubt(self) -> bool:
        return bool(self._maybe)

    @property
    def end(self) -> int:
        return self.first + len(self._sure)

    def trying(self, batch: list[bytes]) -> None:
        self._maybe = batch

    def refused(self) -> None:
        """It certainly had no effect."""
        self._maybe = []

    def done(self, offset: int) -> str:
        """The batch was acknowledged at that offset; what is wrong with that."""
        wrong = "" if offset == self.end else f"acknowledged at {offset}, its end was {self.end}"
        self._sure += self._maybe
        self._maybe = []
        return wrong

    def found(self, first: int, messages: list[bytes]) -> str:
        """What is wrong with all that it holds; afterwards that is the truth."""
        wrong = self._judge(first, messages)
        self.first, self._sure, self._maybe = first, messages, []
        return wrong

    def _judge(self, first: int, messages: list[bytes]) -> str:
        if first < self.first:
            return f"it began at {self.first} and begins at {first}"
        sure = self._sure[first - self.first :]
        for number, (wanted, found) in enumerate(zip(sure, messages, strict=False)):
            if wanted != found:
                return f"offset {first + number}: expected {wanted[:24]!r}, found {found[:24]!r}"
        rest = messages[len(sure) :]
        if len(messages) < len(sure):
            return f"expected messages up to {self.end}, found them up to {first + len(messages)}"
        if rest and rest != self._maybe:
            return f"expected {self.end} as its end, or one batch more, found {len(rest)} messages"
        return ""


class Producer:
    """Appends to one partition, until it is cancelled or does not know what became of a batch."""

    def __init__(self, model: StreamModel, partition: int, tag: str, random: Random) -> None:
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._model = model
        self._partition = partition
        self._tag = tag.encode()
        self._random = random
        self._count = 0

    async def run(self, client: AsyncClient) -> None:
        topic = client.topic(TOPIC)
        while not self._model.in_doubt:
            batch = [self._message() for _ in range(self._random.randint(1, BATCH_MAX))]
            self._model.trying(batch)
            try:
                position = await topic.append(batch, partition=self._partition)
            except ShardnodeError as error:
                self.outcomes[f"append {type(error).__name__}"] += 1
                if isinstance(error, NO_EFFECT):
                    self._model.refused()
                continue
            self.outcomes["append ok"] += 1
            if wrong := self._model.done(position.offset):
                self.problems.append(f"partition {self._partition}: {wrong}")

    def _message(self) -> bytes:
        self._count += 1
        head = b"%s-%d-%d " % (self._tag, self._partition, self._count)
        return head * (self._random.randint(*MESSAGE_BYTES) // len(head) + 1)


async def produce(address: str, producers: list[Producer], timeout_s: float) -> None:
    """All producers, of a topic that is made when it is not there."""
    async with AsyncClient(address, timeout=timeout_s) as client:
        try:
            await client.create_topic(
                TOPIC, PARTITIONS, retention_bytes=RETENTION_BYTES, exist_ok=True
            )
        except ShardnodeError:
            return  # the node died of its failpoint
        await asyncio.gather(*(producer.run(client) for producer in producers))


async def compare_streams(client: AsyncClient, models: list[StreamModel]) -> list[str]:
    """What is wrong with all partitions, read when nobody can append any more."""
    problems = []
    if TOPIC not in await client.list_topics():
        if any(model.end for model in models):
            problems.append(f"topic {TOPIC} is gone")
        return problems
    for partition, model in enumerate(models):
        if wrong := model.found(*await _read_partition(client, partition)):
            problems.append(f"partition {partition}: {wrong}")
    return problems


async def _read_partition(client: AsyncClient, partition: int) -> tuple[int, list[bytes]]:
    """(first offset, all messages from there on); retention may trim while they are read."""
    topic = client.topic(TOPIC)
    while True:
        first, end = await topic.bounds(partition)
        messages: list[bytes] = []
        try:
            while (at := first + len(messages)) < end:
                page = await topic.read(partition, at, READ_MESSAGES)
                assert page, f"partition {partition} ends at {end} and has nothing at {at}"
                messages += [message.value for message in page]
        except Compacted:
            continue
        return first, messages
