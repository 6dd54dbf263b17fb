"""A frame whose cut is known to who asked for it.

`spark.read` plans in a process of Python's own, and the cut that it pins is seen by nobody. A job
has to say which cut it read, so it plans here, in the driver, with the same readers, and hands the
plan to Spark as a source of its own.

One rule: the rows of a frame are those of the cut beside it, because both come from one plan.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from shardnode.backup.format import MARK
from shardnode.backup.store import FolderStore
from shardnode.backup.take import all_backups
from shardnode.client.cuts import CutReader
from shardnode.pipeline.keys_scan import KeyPart, KeyReader
from shardnode.pipeline.keys_tree import TreePart
from shardnode.pipeline.options import Options, check, parse
from shardnode.pipeline.schemas import whole_schema
from shardnode.pipeline.stopped import identity_of
from shardnode.pipeline.topics_plan import Span
from shardnode.pipeline.topics_scan import Piece, TopicReader
from shardnode.wire.errors import InvalidRequest, NotFound
from shardnode.wire.placement import PlacementTable, initial_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Owner(NamedTuple):
    """Whose rows they are."""

    cluster: str
    cluster_id: int | None
    table: PlacementTable


@dataclass(frozen=True, slots=True)
class Pinned:
    """A frame, and the cut of which its rows are."""

    frame: DataFrame
    indexes: Mapping[int, int]
    """Of keys: shard → index of its log."""
    spans: tuple[Span, ...] = ()
    """Of a topic: the offsets of each partition."""


def options_of(given: Mapping[str, str]) -> Options:
    """What a job reads, as the data source understands it; raises `InvalidRequest`."""
    options = parse(given)
    check(given, "read")
    return options


def pin(spark: SparkSession, options: Options, columns: Sequence[str] = ()) -> Pinned:
    """A frame of now; of all columns if none are named."""
    schema = schema_of(options, columns)
    reader: DataSourceReader
    if options.topic is not None:
        reader = TopicReader(options, schema)
        parts = list(reader.partitions())
        return Pinned(frame_of(spark, reader, parts, schema), {}, spans_of(parts))
    reader = KeyReader(options, schema)
    parts = reader.partitions()
    if not parts:
        raise InvalidRequest(
            "expected prefix, start and end to leave some keys, found that no key can be between"
            " them; end is exclusive"
        )
    return Pinned(frame_of(spark, reader, parts, schema), indexes_of(parts))


def schema_of(options: Options, columns: Sequence[str] = ()) -> StructType:
    """Those of the columns that are named."""
    from pyspark.sql.types import StructType

    whole = whole_schema(options)
    return StructType([whole[name] for name in columns]) if columns else whole


def indexes_of(parts: Sequence[Any]) -> dict[int, int]:
    """The cut that partitions of keys were planned from."""
    found = {each.shard: each.index for each in parts if isinstance(each, KeyPart | TreePart)}
    return dict(sorted(found.items()))


def spans_of(parts: Sequence[Any]) -> tuple[Span, ...]:
    """The offsets that pieces of a topic have together."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for each in parts:
        assert isinstance(each, Piece)
        starts[each.partition] = min(starts.get(each.partition, each.start), each.start)
        ends[each.partition] = max(ends.get(each.partition, each.end), each.end)
    return tuple(Span(number, starts[number], ends[number]) for number in sorted(starts))


def frame_of(
    spark: SparkSession,
    reader: DataSourceReader,
    parts: Sequence[InputPartition],
    schema: StructType,
) -> DataFrame:
    """The rows of partitions that were planned already."""
    own_name = f"shardnode-cut-{uuid.uuid4().hex}"

    class Planned(DataSource):
        """Spark sends the class to its workers by value, with what it holds."""

        @classmethod
        def name(cls) -> str:
            return own_name

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
            return _Handed(reader, parts)

    spark.dataSource.register(Planned)
    return spark.read.format(own_name).load()


class _Handed(DataSourceReader):
    """What Spark asks; the plan is there."""

    def __init__(self, reader: DataSourceReader, parts: Sequence[InputPartition]) -> None:
        self._reader = reader
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        return list(self._parts)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """A task gets its own partition, and not those of all others once more."""
        return {"_reader": self._reader, "_parts": ()}


def owner_of(options: Options) -> Owner:
    """The cluster of a node, of a directory or of a backup."""
    if options.path is None:
        reader = CutReader(options.connect)
        try:
            found = reader.topology()
        finally:
            reader.finish()
        return Owner(found.cluster, found.cluster_id or None, found.table)
    if not os.path.exists(os.path.join(options.path, MARK)):
        identity = identity_of(options.path)
        return Owner(identity.cluster, identity.cluster_id, initial_table(identity.shards))
    from pathlib import Path

    backups, _ = all_backups(FolderStore(Path(options.path)))
    if not backups:
        raise NotFound(f"expected a complete backup in {options.path}, found no manifest of one")
    last = backups[-1]
    table = PlacementTable.decode(bytes.fromhex(last.table))
    return Owner(last.cluster, last.cluster_id, table)
