"""The keys of a stopped node, in LMDB: where to cut them, and reading a range in a task.

One rule: LMDB is opened without its lock and for reading alone, which leaves the directory as it
is, and only while `stopped.held` keeps nodes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from shardnode.pipeline.keys_columns import item_batch
from shardnode.pipeline.keys_plan import Changes, KeyRange, changes_of, part_counts, range_of
from shardnode.pipeline.options import Options
from shardnode.pipeline.stopped import held
from shardnode.storage.engine_lmdb import LmdbReader
from shardnode.storage.errors import StorageError
from shardnode.wire.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

BATCH_KEYS = 16_384


@dataclass(frozen=True, slots=True)
class TreeKeys:
    """The keys of one shard."""

    shard: int
    index: int
    """Of the log: with what it did up to here."""
    root: str
    """The data directory."""
    directory: str
    """Where LMDB has its files."""
    rows: int
    size: int
    bounds: Sequence[bytes]
    """Keys that cut the tree into parts of about equal size."""
    changed: Mapping[bytes, bytes]
    """What the log behind it did."""


@dataclass
class TreePart(InputPartition):
    """A range of keys."""

    shard: int
    index: int
    """Of the log: the cut of this shard."""
    root: str
    directory: str
    wanted: KeyRange
    changes: Changes


def plan_trees(shards: Sequence[TreeKeys], options: Options) -> Iterator[TreePart]:
    """The partitions of all of them."""
    wanted = range_of(options)
    if wanted.is_empty:
        return
    counts = part_counts([each.rows for each in shards], [each.size for each in shards], options)
    for each, count in zip(shards, counts, strict=True):
        changes = changes_of(each.changed, wanted)
        inner = [key for key in each.bounds if key in wanted and key > wanted.low]
        step = max(1, -(-len(inner) // max(1, count - 1)))
        cuts = [wanted.low, *(inner[::step] if count > 1 else ()), wanted.high]
        for low, high in pairwise(cuts):
            assert low is not None, "only the last bound is open"
            own = KeyRange(low, high)
            own_changes = changes.within(own)
            yield TreePart(each.shard, each.index, each.root, each.directory, own, own_changes)


def read_tree(part: TreePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of keys but for what the log changed."""
    hidden = frozenset(part.changes.keys)
    low, high = part.wanted
    with held(part.root):
        try:
            reader = LmdbReader(part.directory, lock=False)
            try:
                for batch in reader.batches(BATCH_KEYS, low, high):
                    shown = [item for item in batch if item[0] not in hidden] if hidden else batch
                    if shown:
                        keys, kept = zip(*shown, strict=True)
                        yield item_batch(keys, kept, part.shard, schema)
            finally:
                reader.close()
        except StorageError as error:
            raise Corrupt(f"shard {part.shard}: {error}; see `shardnode verify`") from error
    there = [item for item in zip(*part.changes, strict=True) if item[1]]
    if there:
        keys, kept = zip(*there, strict=True)
        yield item_batch(keys, kept, part.shard, schema)
