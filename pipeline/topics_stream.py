"""Reading a topic as a stream: how far a micro-batch goes, and what its tasks read.

    initialOffset   where a new query begins
    latestOffset    how far the next micro-batch goes: all there is, or as much as the limit allows
    partitions      (start, end] of a micro-batch as pieces; again the same ones when it is repeated
    read            as in batch

An offset is the next message of each partition, as JSON {"0": 23, "1": 5}. A partition that it
does not name was added later, and is read from its first message on.

One rule: everything a micro-batch depends on is in its two offsets. Only the connection, the target
of a trigger and what was told to the consumer group are kept here, in the driver's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shardnode.client.values import Bounds
from shardnode.pipeline import topics_shards
from shardnode.pipeline.limits import AvailableNow, read_limit, rows_max_of
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_losses import lost
from shardnode.pipeline.topics_plan import Span, from_json, offsets_of, spread, starts_of, to_json
from shardnode.pipeline.topics_progress import Progress, group_of
from shardnode.pipeline.topics_scan import check_access, name_of, pieces, read_piece, within
from shardnode.wire.errors import NotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from shardnode.pipeline.options import Options
    from shardnode.pipeline.topics_shards import Topic

Offsets = Mapping[str, int]


class TopicStreamReader(DataSourceStreamReader, AvailableNow):
    """What Spark asks. One lives in a process of the driver for as long as the query; others are
    sent to tasks, where only `read` is called."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_access(options)
        self._options = options
        self._schema = schema
        self._shards: Shards | None = None
        self._topic: Topic | None = None
        self._known: list[Bounds] = []
        self._target: dict[int, int] | None = None
        self._last: dict[int, int] = {}
        self._progress = Progress(options.group or group_of(name_of(options)))

    # -- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        shards, topic = self._look()
        said = self._options.startingoffsets
        wanted = starts_of(said, "latest", topic.partitions, "startingOffsets")
        times = partial(topics_shards.times, shards, topic)
        starts = offsets_of(wanted, self._known, times)
        spans = [
            within(self._options, topic.name, Span(number, start, there.end), there)
            for number, (start, there) in enumerate(zip(starts, self._known, strict=True))
        ]
        self._last = {span.partition: span.start for span in spans}
        return to_json(self._last)

    def latestOffset(  # noqa: N802
        self, start: Offsets | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Spark before 4.2 says neither; then what there is is the limit."""
        shards, topic = self._look()
        since = from_json(start) if start is not None else self._last
        self._progress.tell(shards, topic, since)
        spans = self._spans(since, self._ends())
        rows_max = rows_max_of(limit)
        backlogs = {span.partition: span.size for span in spans}
        if rows_max is not None:
            backlogs = spread(backlogs, rows_max, sum(since.values()))
        reached = {span.partition: span.start + backlogs[span.partition] for span in spans}
        self._last = {**since, **reached}
        return to_json(self._last)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return read_limit(self._options)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """As of the last look, which every micro-batch begins with."""
        return to_json({number: there.end for number, there in enumerate(self._known)}) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._look()
        self._target = {number: there.end for number, there in enumerate(self._known)}

    # -- a micro-batch ----------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        shards, topic = self._look()
        spans = [span for span in self._spans(from_json(start), from_json(end)) if span.size]
        return [*pieces(self._options, topic, spans, shards.table())] if spans else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_piece(self._options, self._schema, partition)

    def commit(self, end: Offsets) -> None:
        if self._shards is not None and self._topic is not None:
            self._progress.tell(self._shards, self._topic, from_json(end))

    def stop(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    # -- inside -----------------------------------------------------------------------------------

    def _look(self) -> tuple[Shards, Topic]:
        """What the topic is and holds now."""
        if self._shards is None:
            self._shards = Shards(self._options)
        topic, before = topics_shards.describe(self._shards, name_of(self._options)), self._topic
        if before is not None and (topic.stream, topic.number) != (before.stream, before.number):
            raise NotFound(
                f"topic {topic.name} was deleted, and is another one now; begin a new query, with a"
                " checkpoint of its own"
            )
        self._topic = topic
        self._known = topics_shards.bounds(self._shards, topic)
        return self._shards, topic

    def _ends(self) -> dict[int, int]:
        ends = {number: there.end for number, there in enumerate(self._known)}
        if self._target is None:
            return ends
        return {number: min(ends[number], to) for number, to in self._target.items()}

    def _spans(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[Span]:
        """What lies between two offsets, of what is still there."""
        topic = self._topic
        assert topic is not None, "the topic was looked at"
        fail, spans = self._options.failondataloss, []
        for number, to in sorted(end.items()):
            if number >= len(self._known):
                raise NotFound(
                    f"expected partition {number} of {topic.name}, as the checkpoint says, found"
                    f" {len(self._known)} partitions; the topic was made anew: begin a new query"
                )
            first, there_end = self._known[number]
            since = start.get(number, 0)
            if max(since, to) > there_end:
                raise NotFound(
                    f"topic {topic.name}, partition {number}: expected messages up to offset"
                    f" {max(since, to)}, as the checkpoint says, found that they end at"
                    f" {there_end}; the topic was made anew or restored: begin a new query"
                )
            gone = min(first, to)
            if since < gone:
                lost(topic.name, number, since, gone, first, fail=fail)
                since = gone
            spans.append(Span(number, since, max(since, to)))
        return spans
