"""Slot and shard of a key as expressions of the JVM: no Python runs for a row.

One rule: they give what `wire.placement` gives, for every key of bytes. Spark's `xxhash64` is the
same hash with the same seed; the tag between braces is found in the key's bytes read as Latin-1, in
which every byte is one character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.wire.placement import SLOT_SHIFT, PlacementTable, initial_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TAG = r"^[^{]*\{([^}]+)\}"


def slot_of(key: Column | str) -> Column:
    """The slot of a key column (binary or text)."""
    from pyspark.sql import functions as f

    column = (f.col(key) if isinstance(key, str) else key).cast("binary")
    tag = f.regexp_extract(f.decode(column, "ISO-8859-1"), _TAG, 1)
    hashed = f.when(tag != "", f.encode(tag, "ISO-8859-1")).otherwise(column)
    return f.shiftrightunsigned(f.xxhash64(hashed), SLOT_SHIFT).cast("int")


def shard_of(key: Column | str, table: PlacementTable | int) -> Column:
    """The shard of a key column by a placement table, or by that of a new cluster of so many."""
    from pyspark.sql import functions as f

    placed = initial_table(table) if isinstance(table, int) else table
    sole = placed.sole_owner()
    if sole is not None:
        return f.lit(sole).cast("int")
    owners = f.lit(placed.owners)
    # One byte for each slot, as two hexadecimal digits: `substring` of a literal is not folded.
    digits = f.hex(f.substring(owners, slot_of(key) + f.lit(1), f.lit(1)))
    return f.conv(digits, 16, 10).cast("int")


def by_shard(
    df: DataFrame, table: PlacementTable | int, *, key: str = "key", partitions: int = 0
) -> DataFrame:
    """The rows with those of one shard together, in at least one Spark partition for each shard, or
    about `partitions` in all. They are in the order of keys there, so that a task that is run again
    writes the very same requests."""
    from pyspark.sql import functions as f

    shards = table if isinstance(table, int) else table.shards
    each = max(1, partitions // shards)
    part = shard_of(key, table) * f.lit(each)
    if each > 1:
        part += f.pmod(f.xxhash64(f.col(key).cast("binary")), f.lit(each)).cast("int")
    if hasattr(df, "repartitionById"):  # from Spark 4.1
        placed = df.repartitionById(shards * each, part)
    else:
        placed = df.repartition(shards * each, part)
    return placed.sortWithinPartitions(key)
