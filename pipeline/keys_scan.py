"""Reading the key-value table: what Spark calls, on the driver and in its tasks.

One rule: a frame is pinned when it is loaded. `partitions` runs once for each `load()`, opens the
cut, and says everything that tasks need in the partitions it returns; so two actions on one frame
see the same rows, whatever is written meanwhile.

Filters are never claimed: Spark's push-down into Python sources keeps a filter for later queries of
the same frame, and gives wrong counts. `prefix`, `start` and `end` say what to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shardnode.client.cuts import CutReader
from shardnode.pipeline.keys_columns import block_batch, item_batch, keys_of_block, without
from shardnode.pipeline.keys_cut import ShardKeys, open_cuts
from shardnode.pipeline.keys_lease import holding
from shardnode.pipeline.keys_plan import (
    Changes,
    KeyRange,
    changes_of,
    cut_rows,
    part_counts,
    range_of,
)
from shardnode.pipeline.keys_source import KeySource, Pin
from shardnode.pipeline.keys_tree import TreePart, read_tree
from shardnode.pipeline.options import Options
from shardnode.pipeline.schemas import arrow_schema
from shardnode.storage.errors import StorageError
from shardnode.storage.keyfile_reader import KeyFile
from shardnode.wire.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CHANGES_ROWS = 16_384
"""Changed keys in one batch."""


@dataclass
class KeyPart(InputPartition):
    """Rows of one shard's snapshot, and what changed in their range of keys."""

    shard: int
    index: int
    """Of the log: the cut of this shard."""
    source: KeySource | None
    begin: int
    end: int
    extent: tuple[int, int]
    """Where the blocks of these rows lie."""
    changes: Changes
    pins: Sequence[Pin]
    """Of all shards: who reads one of them keeps the others for the tasks that follow."""


class KeyReader(DataSourceReader):
    """The key-value table of a node, or of files, as of now."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        if options.path is not None:
            from shardnode.pipeline.keys_path import plan_path

            return list(plan_path(options))
        reader = CutReader(options.connect)
        try:
            return list(plan(open_cuts(reader, options), options))
        finally:
            reader.finish()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        if isinstance(partition, KeyPart):
            with holding(self._options.connect, partition.pins):
                yield from read_part(partition, schema)
        elif isinstance(partition, TreePart):
            yield from read_tree(partition, schema)


# -- on the driver ------------------------------------------------------------------------------


def plan(shards: Sequence[ShardKeys], options: Options) -> Iterator[KeyPart]:
    """The partitions of a cut; none when no key is wanted."""
    wanted = range_of(options)
    if wanted.is_empty:
        return
    exact = bool(options.maxrecordsperpartition)
    pins = [shard.pin for shard in shards if shard.pin is not None]
    counts = part_counts([each.rows for each in shards], [each.size for each in shards], options)
    for shard, count in zip(shards, counts, strict=True):
        changes = changes_of(shard.changed, wanted)
        if shard.source is None or not shard.rows:
            yield KeyPart(shard.shard, shard.index, None, 0, 0, (0, 0), changes, pins)
            continue
        with shard.source.opened() as pread:
            file = KeyFile(pread, shard.source.size)
            for begin, end, keys in _cut_up(file, count, wanted, exact):
                extent, own = file.extent(begin, end), changes.within(keys)
                yield KeyPart(shard.shard, shard.index, shard.source, begin, end, extent, own, pins)


def _cut_up(
    file: KeyFile, count: int, wanted: KeyRange, exact: bool
) -> Iterator[tuple[int, int, KeyRange]]:
    """Rows, and the keys that belong to them, of about so many partitions."""
    begin = file.row_of(wanted.low)
    end = file.rows if wanted.high is None else file.row_of(wanted.high)
    parts = max(1, min(count, end - begin))
    cuts = cut_rows(begin, end, parts, file.starts, exact)
    bounds = [wanted.low, *map(file.key_at, cuts[1:-1]), wanted.high]
    for (first, last), (low, high) in zip(pairwise(cuts), pairwise(bounds), strict=True):
        assert low is not None, "only the last bound is open"
        yield first, last, KeyRange(low, high)


# -- in tasks -----------------------------------------------------------------------------------


def read_part(part: KeyPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; raises `Corrupt` for bytes that are not as they were."""
    if part.source is not None and part.begin < part.end:
        try:
            yield from _read_file(part, part.source, schema)
        except StorageError as error:
            raise Corrupt(f"shard {part.shard}: {error}; load() again") from error
    keys, kept = part.changes
    there = [place for place, each in enumerate(kept) if each]
    for start in range(0, len(there), CHANGES_ROWS):
        places = there[start : start + CHANGES_ROWS]
        yield item_batch([keys[p] for p in places], [kept[p] for p in places], part.shard, schema)


def _read_file(part: KeyPart, source: KeySource, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with source.opened(*part.extent) as pread:
        file = KeyFile(pread, source.size)
        for number in file.block_numbers(part.begin, part.end):
            first = file.starts[number]
            begin, end = max(part.begin - first, 0), min(part.end, file.starts[number + 1]) - first
            block = file.block(number)
            batch = block_batch(block, part.shard, schema)
            hidden = part.changes.within(KeyRange(block.key(0), block.key(block.keys - 1) + b"\0"))
            rows = slice(begin, end)
            if hidden.keys:
                yield without(batch[rows], keys_of_block(block)[rows], hidden.keys)
            else:
                yield batch[rows]
