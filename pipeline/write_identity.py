"""The name of a write: who writes, and what. The same rows of the same task have the same name.

One rule: content is part of the name. Rows that were not written before never pass for a repeat,
whatever a task that is run again makes of its input; what is mistaken can only be a repeat for
something new.

    who      the job (drawn once for a batch write) or the query and its sink, and the Spark
             partition: together they name a session, and a producer
    when     the micro-batch; 0 for a batch write
    what     the digest of the rows, in any order, and how often this task has had it before

The number of a write in its session, and of an append of its producer:

             sequence    15 bits of the micro-batch | 1 | 47 bits of the digest
             producer    31 bits of the micro-batch | 32 bits of the digest

The bit between keeps these numbers apart from those that the client counts up for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import msgpack
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from shardnode.client.exchange import Identity

SESSION_WRITES_MAX = 4_000
"""A shard keeps 4,096 replies of a session; a task that writes more goes on in another one."""

_BATCH_BITS = 15
_BATCH_SHIFT = 48
_OURS = 1 << 47
_DIGEST_MASK = _OURS - 1
_PRODUCER_SHIFT = 32
_PRODUCER_MASK = (1 << _PRODUCER_SHIFT) - 1
_U64_MASK = (1 << 64) - 1
_MIX = Struct(">QQQ").pack
_ABSENT = 1
"""The seed in place of a key's digest, where there is no key."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes, and in which micro-batch."""

    job: bytes
    """Of a batch write or of a query, with its sink: 16 bytes."""
    partition: int
    """The partition of Spark."""
    batch: int = 0
    is_stream: bool = False

    def session(self, volume: int, era: int) -> bytes:
        """The client id of a session. `volume`: the how manieth of this task. `era`: how often the
        one of before had expired; only streams outlive their sessions."""
        name = [self.job, self.partition, self.batch >> _BATCH_BITS, volume, era]
        return bytes(xxh3_128_digest(msgpack.packb(name)))

    def identity(self, session: bytes, digest: int) -> Identity:
        """The name of a write in a session. What earlier micro-batches wrote is over."""
        floor = (self.batch & ((1 << _BATCH_BITS) - 1)) << _BATCH_SHIFT
        return Identity(session, floor | _OURS | digest & _DIGEST_MASK, floor)

    def producer(self, slot: int, variant: int) -> bytes:
        """The name of a producer. `slot`: the how manieth append of this task to a partition of the
        topic. `variant`: how often other rows were appended in its place."""
        name = [self.job, self.partition, slot, variant]
        return b"spark/" + bytes(xxh3_128_digest(msgpack.packb(name)))

    def producer_sequence(self, digest: int) -> int:
        """Grows with the micro-batch."""
        return self.batch << _PRODUCER_SHIFT | digest & _PRODUCER_MASK


def batch_of(producer_sequence: int) -> int:
    """The micro-batch that a producer's sequence belongs to."""
    return producer_sequence >> _PRODUCER_SHIFT


def job_of_query(query: str, sink: str) -> bytes:
    """The author of a query's writes to one sink, over all its restarts."""
    return bytes(xxh3_128_digest(msgpack.packb([query, sink])))


class Names:
    """The digests of one task's writes, each made its own."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, digest: int, place: int) -> int:
        """The name of rows with this digest that go to `place`, a shard or the namespace of a
        partition. Equal rows that come again are other rows."""
        both = xxh3_64_intdigest(_MIX(digest, place, 0))
        count = self._seen[both] = self._seen.get(both, -1) + 1
        return xxh3_64_intdigest(_MIX(digest, place, count))


def digest_of(
    values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, more: object = None
) -> int:
    """The digest of rows, whatever their order; of `more`, which is packed, the order counts."""
    if keys is None:
        total = sum(map(xxh3_64_intdigest, values))
    else:
        seeds = [_ABSENT if key is None else xxh3_64_intdigest(key) for key in keys]
        total = sum(map(xxh3_64_intdigest, values, seeds))
    mixed = 0 if more is None else xxh3_64_intdigest(msgpack.packb(more))
    return xxh3_64_intdigest(_MIX(total & _U64_MASK, len(values), mixed))
