"""Two tables of keys, row by row, in the JVM: what is equal, what may differ, what may not.

    same        equal in value, version and end
    newer       the node has written it since
    expired     not in the node any more, and its time to live is over
    gone        not in the node: deleted since, or lost; its log does not tell any more
    missing     not in the node, which shows its state at the very same index
    different   another value, or another history
    extra       only in the node, though it should have been in the other table

One rule: a verdict says no more than is known. Versions are indexes of the log, so what was written
behind the other table's cut is told apart from what should be the same; deletions leave nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VERDICTS = ("same", "newer", "expired", "gone", "missing", "different", "extra")
WRONG = ("gone", "missing", "different", "extra")
COLUMNS = ("key", "value", "version", "expires_at", "shard")

END_TOLERANCE_S = 60
"""Where versions say nothing: a time to live that was written again ends a little later."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How rows are compared."""

    indexes: Mapping[int, int] | None
    """Shard → the index of the table that the node is compared with; None: by values alone, as
    with another cluster's, whose versions say nothing."""
    exact: Collection[int] = ()
    """Shards whose rows are of that very index on both sides."""


class Difference(NamedTuple):
    """A row that is wrong, for the sample."""

    key: bytes
    shard: int
    verdict: str
    left: int | None
    """The version in the other table."""
    right: int | None
    """… and in the node."""

    def to_json(self) -> dict[str, Any]:
        try:
            key: Any = self.key.decode()
        except UnicodeDecodeError:
            key = {"base64": b64encode(self.key).decode()}
        versions = {"version": self.left, "version_of_node": self.right}
        return {"key": key, "shard": self.shard, "verdict": self.verdict, **versions}


def compared(left: DataFrame, right: DataFrame, rule: Rule) -> DataFrame:
    """key, shard, verdict and both versions of every row of either; `right` is the node's."""
    mine, other = _brief(left, "l"), _brief(right, "r")
    joined = mine.join(other, f.col("l_key") == f.col("r_key"), "full_outer")
    shard = f.coalesce("l_shard", "r_shard")
    verdict = _by_value() if rule.indexes is None else _by_version(rule, shard)
    return joined.select(
        f.coalesce("l_key", "r_key").alias("key"),
        shard.alias("shard"),
        verdict.alias("verdict"),
        f.col("l_version").alias("left"),
        f.col("r_version").alias("right"),
    )


def _brief(table: DataFrame, side: str) -> DataFrame:
    """Values travel as their hash and length: a value may have megabytes."""
    columns = {
        "key": f.col("key"),
        "shard": f.col("shard"),
        "version": f.col("version"),
        "end": f.col("expires_at"),
        "value": f.struct(f.xxhash64("value"), f.octet_length("value")),
    }
    return table.select(*(column.alias(f"{side}_{name}") for name, column in columns.items()))


def _by_version(rule: Rule, shard: Column) -> Column:
    assert rule.indexes is not None, "versions are compared"
    known = rule.indexes
    cut = f.element_at(f.array(*(f.lit(known.get(n, 0)) for n in range(max(known) + 1))), shard + 1)
    exact = shard.isin(*rule.exact) if rule.exact else f.lit(False)
    is_newer = f.col("r_version") > cut
    is_same = (f.col("l_version") == f.col("r_version")) & _same_value() & _same_end()
    return (
        f.when(f.col("r_key").isNull() & exact, "missing")
        .when(f.col("r_key").isNull(), f.when(_is_over(), "expired").otherwise("gone"))
        .when(is_newer, "newer")
        .when(f.col("l_key").isNull(), "extra")
        .when(is_same, "same")
        .otherwise("different")
    )


def _by_value() -> Column:
    ends = (f.unix_seconds("l_end"), f.unix_seconds("r_end"))
    is_near = f.coalesce(f.abs(ends[0] - ends[1]) <= END_TOLERANCE_S, f.lit(False))
    return (
        f.when(f.col("r_key").isNull(), f.when(_is_over(), "expired").otherwise("missing"))
        .when(f.col("l_key").isNull(), "extra")
        .when(_same_value() & (_same_end() | is_near), "same")
        .otherwise("different")
    )


def _is_over() -> Column:
    return f.coalesce(f.col("l_end") <= f.current_timestamp(), f.lit(False))


def _same_value() -> Column:
    return f.col("l_value") == f.col("r_value")


def _same_end() -> Column:
    return f.col("l_end").eqNullSafe(f.col("r_end"))


def counts_of(table: DataFrame) -> dict[int, dict[str, int]]:
    """Shard → verdict → how many rows."""
    found: dict[int, dict[str, int]] = {}
    for row in table.groupBy("shard", "verdict").count().collect():
        found.setdefault(row["shard"], {})[row["verdict"]] = row["count"]
    return found


def sample_of(table: DataFrame, wrong: Collection[str], rows: int) -> list[Difference]:
    """Some of the rows that are wrong, the first by key."""
    chosen = table.where(f.col("verdict").isin(*wrong)).orderBy("key").limit(rows).collect()
    return [
        Difference(bytes(row["key"]), row["shard"], row["verdict"], row["left"], row["right"])
        for row in chosen
    ]
