"""Is what the node has what it should have? Replicas with each other, or another table with it.

    --replicas    every replica of every shard, at one index
    --path        a backup, the directory of a stopped node, or an export, with the node
    --by values   … of another cluster, such as one that an export was imported into

The node makes a snapshot of its own state for this, and that is what is compared. A backup is
brought to the same index by the node's log, if that reaches back to it; then rows must be equal.
Else, and for a directory or an export, the version of a row tells whether it was written since.

One rule: exit code 0 means that every row was looked at and none is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardnode.backup.format import MARK
from shardnode.client.cuts import Cut, CutReader
from shardnode.pipeline.jobs import Say, Section, Summary, Table, shown_key, silent
from shardnode.pipeline.jobs_compare import (
    COLUMNS,
    VERDICTS,
    WRONG,
    Difference,
    Rule,
    compared,
    counts_of,
    sample_of,
)
from shardnode.pipeline.jobs_frames import (
    Owner,
    Pinned,
    frame_of,
    indexes_of,
    options_of,
    owner_of,
    pin,
    schema_of,
)
from shardnode.pipeline.jobs_import import checked
from shardnode.pipeline.jobs_place import Place, has_manifest
from shardnode.pipeline.jobs_replicas import open_replicas, pairs_of
from shardnode.pipeline.keys_cut import ShardKeys, Wish, open_cuts, records_of
from shardnode.pipeline.keys_path import Later, nothing_later, open_backup
from shardnode.pipeline.keys_scan import KeyReader, plan
from shardnode.pipeline.keys_source import PIN_MS
from shardnode.storage.records import Anchor, Record
from shardnode.wire.cuts import CutOpen
from shardnode.wire.errors import Compacted, Conflict, InvalidRequest
from shardnode.wire.placement import initial_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardnode.pipeline.jobs_manifest import Manifest
    from shardnode.pipeline.options import Options

By = Literal["auto", "versions", "values"]

OF_KEYS = ("prefix", "start", "end", "keyEncoding")


@dataclass(frozen=True, slots=True)
class Verify:
    """What is to be compared."""

    node: Mapping[str, str]
    """As options of the data source: where it is, and which keys."""
    path: str | None = None
    """What it is compared with; None: its replicas with each other."""
    by: By = "auto"
    """auto: by versions, if both are of one cluster."""
    deleted_ok: bool = False
    """Whether rows that the node has not got any more pass for deleted, where it cannot tell."""
    sample: int = 10
    """How many of the rows that are wrong are shown."""


class Result(NamedTuple):
    """What a comparison of two tables has found."""

    left: str
    right: str
    by: str
    indexes: Mapping[int, int]
    """Of the other table."""
    exact: Sequence[int]
    counts: Mapping[int, Mapping[str, int]]
    """Shard → verdict → rows."""
    sample: Sequence[Difference]


def verify(spark: SparkSession, ask: Verify, say: Say = silent) -> Summary:
    """Compare."""
    options = options_of(ask.node)
    if options.topic is not None or options.path is not None:
        raise InvalidRequest("expected a running node and its keys, found a topic, or a directory")
    if ask.path is None:
        return _summary(_replicas(spark, ask, options, say), ask)
    if has_manifest(spark, ask.path):
        return _export(spark, ask, options, say)
    beside = options_of({**_of_keys(ask.node), "path": ask.path})
    is_backup = os.path.exists(os.path.join(ask.path, MARK))

    def opened(later: Later) -> Pinned:
        if is_backup:
            return planned(spark, beside, list(open_backup(str(beside.path), later)))
        return pin(spark, beside, COLUMNS)

    return _summary([_with_node(spark, ask, options, opened, owner_of(beside), say)], ask)


# -- with another table ---------------------------------------------------------------------------


def _export(spark: SparkSession, ask: Verify, options: Options, say: Say) -> Summary:
    assert ask.path is not None, "it lies somewhere"
    place = Place(spark, ask.path)
    manifest = place.manifest()
    say("checking the export")
    rows = checked(spark, place, manifest)
    if manifest.topic is not None:
        facts = {"with": ask.path, "rows": manifest.rows, "topic": manifest.topic, "differences": 0}
        told = (
            f"{ask.path} has all {manifest.rows} messages of {manifest.topic} as they were"
            " exported; messages are not compared with the node"
        )
        return Summary("verify", facts, [told])
    if options.prefix or options.start is not None or options.end is not None:
        raise InvalidRequest(
            "prefix, start, end: an export is compared over the keys it was made of"
        )
    of_range = {"prefix": manifest.prefix, "start": manifest.start, "end": manifest.end}
    given = {name: key.hex() for name, key in of_range.items() if key}
    node = options_of({**ask.node, **given, **({"keyEncoding": "hex"} if given else {})})
    pinned = Pinned(rows.select(*COLUMNS), manifest.indexes)
    found = _with_node(spark, ask, node, lambda _: pinned, _owner(manifest), say)
    return _summary([found], ask)


def _owner(manifest: Manifest) -> Owner:
    return Owner(manifest.cluster, manifest.cluster_id, initial_table(manifest.shards))


def _with_node(
    spark: SparkSession,
    ask: Verify,
    options: Options,
    other: Callable[[Later], Pinned],
    whose: Owner,
    say: Say,
) -> Result:
    """`other`: the table beside the node's, which may be brought to an index by a log."""
    assert ask.path is not None, "there is something to compare with"
    say("opening the cut of the node")
    node_is = owner_of(options)
    by = _how(ask.by, whose, node_is)
    reader = CutReader(options.connect)
    try:
        wishes = [Wish(shard, log_bytes_max=0) for shard in range(node_is.table.shards)]
        node = planned(spark, options, open_cuts(reader, options, wishes))
        say(f"opening {ask.path}")
        behind = log_behind(reader, node.indexes) if by == "versions" else nothing_later
        table = other(behind)
    finally:
        reader.finish()
    exact: list[int] = []
    rule = Rule(None)
    if by == "versions":
        exact = [n for n, index in table.indexes.items() if node.indexes.get(n) == index]
        rule = Rule(table.indexes, exact)
    say("comparing")
    verdicts = compared(table.frame, node.frame, rule)
    counts = counts_of(verdicts)
    sample = _sample(verdicts, counts, ask)
    name = f"cluster {node_is.cluster}"
    return Result(ask.path, name, by, table.indexes, exact, counts, sample)


def log_behind(reader: CutReader, ends: Mapping[int, int]) -> Later:
    """The node's log behind a backup, up to the index that its keys were read at."""

    def later(shard: int, position: Anchor) -> tuple[int, Iterator[Record]]:
        end = ends.get(shard, 0)
        if end <= position.index:
            return position.index, iter(())
        ask = CutOpen(PIN_MS, after=position.index, after_chain=position.chain, snapshot=False)
        try:
            cut = reader.open(shard, ask)
        except (Compacted, Conflict):  # it does not reach back, or is another history
            return position.index, iter(())
        assert isinstance(cut, Cut), "a log alone is there at once"
        return end, records_of(reader, cut, position, end)

    return later


def _how(by: By, whose: Owner, node: Owner) -> str:
    """By versions or by values."""
    related = whose.cluster_id is not None and whose.cluster_id == node.cluster_id
    if by == "versions" and whose.table.shards != node.table.shards:
        raise InvalidRequest(
            f"expected as many shards to compare versions, found {whose.table.shards} and"
            f" {node.table.shards}; give --by values"
        )
    if by == "auto":
        return "versions" if related and whose.table.shards == node.table.shards else "values"
    return by


def planned(spark: SparkSession, options: Options, keys: Sequence[ShardKeys]) -> Pinned:
    """The rows of shards that are open already."""
    schema = schema_of(options, COLUMNS)
    parts = list(plan(keys, options))
    return Pinned(frame_of(spark, KeyReader(options, schema), parts, schema), indexes_of(parts))


# -- replicas -------------------------------------------------------------------------------------


def _replicas(spark: SparkSession, ask: Verify, options: Options, say: Say) -> list[Result]:
    say("opening a cut on every replica")
    reader = CutReader(options.connect)
    try:
        pairs = pairs_of(open_replicas(reader, options))
    finally:
        reader.finish()
    found = []
    for (first, other), (mine, theirs) in sorted(pairs.items()):
        say(f"comparing node {other} with node {first}")
        left, right = planned(spark, options, mine), planned(spark, options, theirs)
        table = compared(left.frame, right.frame, Rule(left.indexes, [*left.indexes]))
        counts = counts_of(table)
        names = (f"node {first}", f"node {other}")
        sample = _sample(table, counts, ask)
        found.append(Result(*names, "versions", left.indexes, [*left.indexes], counts, sample))
    return found


# -- what is told ---------------------------------------------------------------------------------


def wrong_of(ask: Verify) -> tuple[str, ...]:
    """The verdicts that are differences."""
    return tuple(each for each in WRONG if not (ask.deleted_ok and each == "gone"))


def _sample(
    table: DataFrame, counts: Mapping[int, Mapping[str, int]], ask: Verify
) -> list[Difference]:
    wrong = wrong_of(ask)
    there = any(each.get(verdict) for each in counts.values() for verdict in wrong)
    return sample_of(table, wrong, ask.sample) if there else []


def _summary(results: Sequence[Result], ask: Verify) -> Summary:
    wrong = wrong_of(ask)
    facts, sections, total = [], list[Section](), 0
    for result in results:
        count = sum(each.get(verdict, 0) for each in result.counts.values() for verdict in wrong)
        total += count
        facts.append(_facts(result, count))
        sections += _sections(result, count)
    if any("gone" in each for result in results for each in result.counts.values()):
        sections.append(
            "gone: deleted since, or lost. Only of a backup a log tells which, as far as the node's"
            " reaches back; give --deleted-ok to let them pass"
        )
    whole = {"differences": total, "comparisons": facts}
    return Summary("verify", whole, sections, differs=total > 0)


def _facts(result: Result, count: int) -> dict[str, Any]:
    shards = sorted({*result.counts, *result.indexes})
    return {
        "left": result.left,
        "right": result.right,
        "by": result.by,
        "differences": count,
        "shards": [
            {
                "id": shard,
                "index": result.indexes.get(shard),
                "exact": shard in result.exact,
                **{each: result.counts.get(shard, {}).get(each, 0) for each in VERDICTS},
            }
            for shard in shards
        ],
        "sample": [each.to_json() for each in result.sample],
    }


def _sections(result: Result, count: int) -> list[Section]:
    rows = sum(sum(each.values()) for each in result.counts.values())
    facts = _facts(result, count)["shards"]
    headings = ["shard", "index", "compared", *VERDICTS]
    how = {True: "at that index", False: "by version" if result.by == "versions" else "by value"}
    cells = [
        (s["id"], s["index"], how[s["exact"]], *(s[verdict] for verdict in VERDICTS)) for s in facts
    ]
    found: list[Section] = [
        f"{result.left} and {result.right}: {rows} rows, differences: {count}",
        Table(headings, cells),
    ]
    if result.sample:
        lines = [(shown_key(d.key), d.shard, d.verdict, d.left, d.right) for d in result.sample]
        versions = [f"version in {result.left}", f"in {result.right}"]
        found.append(Table(["key", "shard", "verdict", *versions], lines))
    return found


def _of_keys(node: Mapping[str, str]) -> dict[str, str]:
    """The options that mean the same for a directory."""
    return {name: text for name, text in node.items() if name in OF_KEYS}
