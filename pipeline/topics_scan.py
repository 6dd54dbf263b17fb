"""Reading a topic in batch: ranges of offsets that are pinned when the frame is loaded.

    partitions()   once for each load(): bounds, offsets, pieces
    read(piece)    in a task: pages of a shard, or of files, as record batches

One rule: a piece says all that a task must know, and two tasks with one piece give the same rows.
So a task that is run again, or a second action, sees what the first saw, whatever producers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shardnode.client.values import Bounds
from shardnode.pipeline import topics_shards
from shardnode.pipeline.schemas import arrow_schema
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_losses import log, lost
from shardnode.pipeline.topics_plan import Span, split, starts_of
from shardnode.pipeline.topics_rows import Damaged, Origin, Rows, record_batches
from shardnode.wire.errors import Compacted, InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shardnode.pipeline.options import Options
    from shardnode.pipeline.topics_shards import Topic
    from shardnode.wire.placement import PlacementTable


@dataclass(frozen=True, slots=True)
class Piece(InputPartition):
    """Offsets of one partition, for one task."""

    topic: str
    partition: int
    namespace: int
    shard: int
    start: int
    end: int


class TopicReader(DataSourceReader):
    """What Spark asks; it is sent to tasks, and so it holds options and no connection."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_access(options)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Shards(options) as shards:
            topic = topics_shards.describe(shards, _name(options))
            spans = resolve(shards, options, topic)
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


def resolve(shards: Shards, options: Options, topic: Topic) -> list[Span]:
    """What was asked for, as offsets, for each partition."""
    known = topics_shards.bounds(shards, topic)
    said = (options.startingoffsets, "earliest", topic.partitions, "startingOffsets")
    starts = topics_shards.offsets_of(shards, topic, starts_of(*said), known)
    said = (options.endingoffsets, "latest", topic.partitions, "endingOffsets")
    ends = topics_shards.offsets_of(shards, topic, starts_of(*said), known)
    return [
        within(options, topic.name, Span(number, start, end), there)
        for number, (start, end, there) in enumerate(zip(starts, ends, known, strict=True))
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
) -> Iterator[Piece]:
    """For each task what it reads."""
    for number, start, end in split(spans, options.minpartitions, options.maxrecordsperpartition):
        shard = topic.shard(number, table)
        yield Piece(topic.name, number, topic.namespace(number), shard, start, end)


def read_piece(
    options: Options, schema: StructType, piece: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece. Damaged batches are left out when data loss does not fail, and so is
    what retention takes away in the middle."""
    if not isinstance(piece, Piece) or piece.start >= piece.end:
        return
    rows = Rows(arrow_schema(schema), Origin(piece.topic, piece.partition, piece.shard))
    fail, end = options.failondataloss, piece.end
    with Shards(options) as shards:
        offset = piece.start
        while offset < end:
            try:
                for page in topics_shards.pages(shards, piece.namespace, offset, end):
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


def _name(options: Options) -> str:
    assert options.topic is not None, "the door opens this for a topic"
    return options.topic
