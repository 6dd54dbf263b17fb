"""What changed of keys, as a stream: puts, deletions, expiries, in the order of each shard's log.

    initialOffset   where a new query begins: now, or at the first change that is still kept
    latestOffset    the log index up to which the next micro-batch goes, for each shard
    read            all changes of a shard with start < index ≤ end, and certainly all of them

A shard keeps its last changes in memory, some minutes of a busy one. A query that is stopped for
longer has lost some: that is an error, or a warning and onwards, as `failOnDataLoss` says. The way
back is to read the table in batch and to begin with a new checkpoint.

One rule: the rows of (start, end] are the same whoever reads them, and again: they are what entries
of the log did, and whoever reads goes on until the shard has told everything up to `end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shardnode.client.calls import ShardCall
from shardnode.pipeline.changes_plan import reach, starts_of
from shardnode.pipeline.columns import record_batch, timestamps_ms
from shardnode.pipeline.limits import AvailableNow, read_limit, rows_max_of
from shardnode.pipeline.options import EARLIEST, LATEST
from shardnode.pipeline.schemas import arrow_schema
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_losses import log
from shardnode.pipeline.topics_plan import from_json, to_json
from shardnode.wire import limits
from shardnode.wire.cursors import position_of, split_position
from shardnode.wire.errors import Compacted, InvalidRequest, Unavailable
from shardnode.wire.kinds import ChangeKind, Kind
from shardnode.wire.placement import slots_of_keys
from shardnode.wire.replies import Changes
from shardnode.wire.requests import Watch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from shardnode.pipeline.options import Options

WAIT_S = 1.0
"""How long a shard that has not heard of the end of a range yet may wait for it: a new leader."""

_NAMES = {kind.value: kind.name.lower() for kind in ChangeKind}


@dataclass(frozen=True)
class Stretch(InputPartition):
    """The changes of a shard with start < log index ≤ end."""

    shard: int
    start: int
    end: int


class ChangesStreamReader(DataSourceStreamReader, AvailableNow):
    """What Spark asks; only `read` is called in tasks."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._shards: Shards | None = None
        self._now: dict[int, int] = {}
        self._target: dict[int, int] | None = None
        self._last: dict[int, int] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        shards, now = self._look()
        starts = dict(enumerate(starts_of(self._options.startingoffsets, len(now))))
        for shard, index in starts.items():
            if index == LATEST:
                starts[shard] = now[shard]
            elif index == EARLIEST:
                starts[shard] = _first_kept(shards, shard) - 1
            elif index > now[shard]:
                raise InvalidRequest(
                    f"option startingOffsets: expected an index up to {now[shard]}, where the log"
                    f" of shard {shard} ends, found {index}"
                )
        self._last = starts
        return to_json(starts)

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Spark before 4.2 says neither; then what there is is the limit."""
        shards, now = self._look()
        since = from_json(start) if start is not None else self._last
        ends = now if self._target is None else self._target
        reached = {shard: max(end, since.get(shard, 0)) for shard, end in ends.items()}
        rows_max = rows_max_of(limit)
        if rows_max is not None:
            reached |= self._limited(shards, since, reached, rows_max)
        self._last = {**since, **reached}
        return to_json(self._last)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return read_limit(self._options)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """As of the last look."""
        return to_json(self._now) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, self._target = self._look()

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        since = from_json(start)
        return [
            Stretch(shard, since.get(shard, 0), to)
            for shard, to in sorted(from_json(end).items())
            if to > since.get(shard, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Stretch):
            return
        schema, shard = arrow_schema(self._schema), partition.shard
        with Shards(self._options) as shards:
            for page in pages(shards, self._options, partition):
                yield _rows(schema, shard, page)

    def stop(self) -> None:
        if self._shards is not None:
            self._shards.close()
            self._shards = None

    def _look(self) -> tuple[Shards, dict[int, int]]:
        """How far every shard is."""
        if self._shards is None:
            self._shards = Shards(self._options)
        ask = Watch(after=None)
        calls = [_call(shard, ask) for shard in range(self._shards.table().shards)]
        found = [_changes(answer) for answer, _ in self._shards.run_all(calls)]
        self._now = {shard: split_position(each.next)[0] for shard, each in enumerate(found)}
        return self._shards, self._now

    def _limited(
        self, shards: Shards, since: Mapping[int, int], ends: Mapping[int, int], rows_max: int
    ) -> dict[int, int]:
        """How far each shard may go so that there are about that many rows in all. What they are is
        read to count them: how many keys an entry has changed is told nowhere else."""
        reached, left = dict(ends), rows_max
        behind = [shard for shard, end in sorted(ends.items()) if end > since.get(shard, 0)]
        for number, shard in enumerate(behind):
            share = max(1, left // (len(behind) - number))
            stretch = Stretch(shard, since.get(shard, 0), ends[shard])
            indexes = _indexes(shards, self._options, stretch, share)
            reached[shard] = reach(indexes, share, ends[shard])
            left -= min(len(indexes), share)
        return reached


def pages(shards: Shards, options: Options, stretch: Stretch, limit: int = 0) -> Iterator[Changes]:
    """The changes of a stretch, page by page, until the shard has told all of them."""
    after, end = position_of(stretch.start) if stretch.start else 0, position_of(stretch.end)
    silent_s = 0.0
    while after < end:
        wait_ms = int(WAIT_S * 1000) if silent_s else 0
        ask = Watch(options.prefix, after, limit, wait_ms=wait_ms)
        try:
            answer, _ = shards.run(_call(stretch.shard, ask))
        except Compacted as error:
            after = _skip(options, stretch, after, error)
            continue
        found = _changes(answer)
        silent_s = 0.0 if found.next > after else silent_s + WAIT_S
        if silent_s > options.timeout:
            raise Unavailable(
                f"expected the changes of shard {stretch.shard} up to log index {stretch.end},"
                f" found that it is at {split_position(after)[0]}; is it the same cluster?"
            )
        after = found.next
        count = sum(position <= end for position in found.positions)
        if count:
            yield _first(found, count)


def _indexes(shards: Shards, options: Options, stretch: Stretch, enough: int) -> list[int]:
    """The log indexes of the changes of a stretch, until they are more than enough."""
    indexes: list[int] = []
    for page in pages(shards, options, stretch, min(enough + 1, limits.batch_keys_max)):
        indexes += [split_position(position)[0] for position in page.positions]
        if len(indexes) > enough:
            break
    return indexes


def _skip(options: Options, stretch: Stretch, after: int, error: Compacted) -> int:
    """Changes are gone: an error, or where to go on."""
    first = error.first_available or split_position(after)[0] + 1
    text = (
        f"the changes of shard {stretch.shard} from log index {split_position(after)[0] + 1} to"
        f" {first - 1} are no longer kept; the first that is has index {first}"
    )
    if options.failondataloss:
        raise Compacted(
            f"{text}. Read the table in batch and begin with a new checkpoint, or set"
            " failOnDataLoss to false to go on without them",
            first_available=first,
        ) from error
    log.warning("%s; going on there, as failOnDataLoss is false", text)
    return position_of(first - 1)


def _first_kept(shards: Shards, shard: int) -> int:
    """The first log index of which every change is still kept."""
    try:
        shards.run(_call(shard, Watch(after=0, limit=1)))
    except Compacted as error:
        return error.first_available or 1
    return 1


def _call(shard: int, ask: Watch) -> ShardCall:
    attempt_s = ask.wait_ms / 1000 + 2.0 if ask.wait_ms else 0.0
    return ShardCall(Kind.WATCH, ask.encode(), shard=shard, attempt_s=attempt_s)


def _changes(answer: object) -> Changes:
    assert isinstance(answer, Changes)
    return answer


def _first(found: Changes, count: int) -> Changes:
    """The first changes of a page."""
    if count == len(found.keys):
        return found
    return Changes(
        found.kinds[:count],
        found.keys[:count],
        found.values[:count],
        found.versions[:count],
        found.positions[:count],
        found.next,
        found.expires_at_ms[:count],
    )


def _rows(schema: pa.Schema, shard: int, found: Changes) -> pa.RecordBatch:
    count = len(found.keys)

    def expiries() -> pa.Array:
        if not any(found.expires_at_ms):
            return pa.nulls(count, pa.timestamp("us", "UTC"))
        times = [time or None for time in found.expires_at_ms]
        return timestamps_ms(pa.array(times, pa.int64()))

    columns: Mapping[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.array(found.keys, pa.binary()),
        "value": lambda: pa.array(found.values, pa.binary()),
        "version": lambda: pa.array(found.versions, pa.int64()),
        "expires_at": expiries,
        "shard": lambda: pa.repeat(pa.scalar(shard, pa.int32()), count),
        "slot": lambda: pa.array(slots_of_keys(found.keys), pa.int32()),
        "op": lambda: pa.array([_NAMES[kind] for kind in found.kinds], pa.string()),
    }
    return record_batch(schema, columns)
