"""Reading a topic in batch: ranges of offsets that are pinned when the frame is loaded.

    partitions()   once for each load(): bounds, offsets, pieces
    read(piece)    in a task: pages of a shard, or of files, as record batches

One rule: a piece says all that a task must know, and two tasks with one piece give the same rows.
So a task that is run again, or a second action, sees what the first saw, whatever producers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shardnode.client.values import Bounds
from shardnode.pipeline import topics_shards
from shardnode.pipeline.schemas import arrow_schema
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_losses import log, lost
from shardnode.pipeline.topics_plan import Span, offsets_of, split, starts_of
from shardnode.pipeline.topics_rows import Damaged, Origin, Rows, Stored, record_batches
from shardnode.wire.errors import Compacted, InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shardnode.client.offsets import Start
    from shardnode.pipeline.options import Options
    from shardnode.pipeline.topics_shards import Topic
    from shardnode.wire.placement import PlacementTable


Pages = Callable[[int, int], Iterator[Iterator[Stored]]]
"""The batches that hold the offsets from one to before another one, page by page."""


@dataclass(frozen=True)
class Piece(InputPartition):
    """Offsets of one partition, for one task."""

    topic: str
    partition: int
    shard: int
    start: int
    end: int

    def opened(self, options: Options) -> AbstractContextManager[Pages]:
        """Where its messages come from."""
        raise NotImplementedError


@dataclass(frozen=True)
class ShardPiece(Piece):
    """… that a shard of a running node has."""

    namespace: int

    @contextmanager
    def opened(self, options: Options) -> Iterator[Pages]:
        with Shards(options) as shards:
            yield partial(topics_shards.pages, shards, self.namespace)


class TopicReader(DataSourceReader):
    """What Spark asks; it is sent to tasks, and so it holds options and no connection."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_access(options)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        if options.path is not None:
            from shardnode.pipeline.topics_files import plan_path

            return [*plan_path(options)]
        with Shards(options) as shards:
            topic = topics_shards.describe(shards, name_of(options))
            known = topics_shards.bounds(shards, topic)
            spans = resolve(options, topic.name, known, partial(topics_shards.times, shards, topic))
            return [*pieces(options, topic, spans, shards.table())]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_piece(self._options, self._schema, partition)


def check_access(options: Options) -> None:
    """Raise `InvalidRequest` where a way of reading was asked for that there is not."""
    if options.path is None and options.access == "local":
        raise InvalidRequest(
            "a topic of a running node is read from its shards, which is as fast as their files and"
            " knows what may be seen: give access auto or remote; local is for path, a stopped one"
        )
    if options.path is not None and options.access == "remote":
        raise InvalidRequest("path is read from its files: give access auto or local")


def resolve(
    options: Options,
    name: str,
    known: Sequence[Bounds],
    times: Callable[[Sequence[Start]], list[int]],
) -> list[Span]:
    """What was asked for, as offsets, for each partition."""
    count = len(known)
    starts = starts_of(options.startingoffsets, "earliest", count, "startingOffsets")
    ends = starts_of(options.endingoffsets, "latest", count, "endingOffsets")
    pairs = zip(offsets_of(starts, known, times), offsets_of(ends, known, times), strict=True)
    return [
        within(options, name, Span(number, *pair), there)
        for number, (pair, there) in enumerate(zip(pairs, known, strict=True))
    ]


def within(options: Options, name: str, span: Span, there: Bounds) -> Span:
    """A range that can be read; one that goes beyond the end is refused, and what retention has
    deleted of it is told."""
    number, start, end = span
    for what, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset > there.end:
            raise InvalidRequest(
                f"option {what}: expected an offset up to {there.end}, the end of partition"
                f" {number} of {name}, found {offset}"
            )
    gone = min(there.first, end)
    if start < gone:
        lost(name, number, start, gone, there.first, fail=options.failondataloss)
        start = gone
    return Span(number, start, max(start, end))


def pieces(
    options: Options, topic: Topic, spans: list[Span], table: PlacementTable
) -> Iterator[ShardPiece]:
    """For each task what it reads."""
    for number, start, end in split(spans, options.minpartitions, options.maxrecordsperpartition):
        space, shard = topic.namespace(number), topic.shard(number, table)
        yield ShardPiece(topic.name, number, shard, start, end, space)


def read_piece(
    options: Options, schema: StructType, piece: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece. Damaged batches are left out when data loss does not fail, and so is
    what retention takes away in the middle."""
    if not isinstance(piece, Piece) or piece.start >= piece.end:
        return
    rows = Rows(arrow_schema(schema), Origin(piece.topic, piece.partition, piece.shard))
    fail, offset, end = options.failondataloss, piece.start, piece.end
    with piece.opened(options) as pages:
        while offset < end:
            try:
                for page in pages(offset, end):
                    for batch in record_batches(rows, page, offset, end):
                        offset += batch.num_rows
                        yield batch
            except Damaged as error:
                if fail:
                    raise
                log.warning("%s; going on behind it, as failOnDataLoss is false", error)
                offset = error.after
            except Compacted as error:
                first = error.first_available or offset
                gone = min(max(first, offset + 1), end)
                lost(piece.topic, piece.partition, offset, gone, first, fail=fail)
                offset = gone


def name_of(options: Options) -> str:
    """That of the topic."""
    assert options.topic is not None, "the door opens this for a topic"
    return options.topic
