"""What jobs compute without Spark: manifests, distributions, pictures, the flows of a reshard."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest

from shardnode.pipeline import jobs_session
from shardnode.pipeline.jobs import JOBS, shown_bytes, shown_key
from shardnode.pipeline.jobs_manifest import (
    Contents,
    FileEntry,
    Manifest,
    decode,
    differences_of,
    encode,
    problems_of,
)
from shardnode.pipeline.jobs_reshard import flows_of
from shardnode.pipeline.jobs_sizes import (
    NO_SIZES,
    ShardSizes,
    Sizes,
    bucket_of,
    facts_of,
    high_of,
    label_of,
    low_of,
    sections_of,
    skew_of,
    together,
)
from shardnode.pipeline.jobs_svg import picture
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound
from shardnode.wire.placement import initial_table

FILES = (
    FileEntry("shard=0/part-a.parquet", 100, Contents(3, 30, -5)),
    FileEntry("shard=0/part-b.parquet", 10, Contents(0, 0, 0)),
    FileEntry("shard=2/part-c.parquet", 50, Contents(2, 20, 1 << 62)),
)
KEYS = Manifest(
    topic=None,
    partitions=0,
    cluster="main",
    cluster_id=(1 << 64) - 1,
    shards=3,
    epoch=1,
    source="127.0.0.1:7400",
    began="2030-01-01T00:00:00.000Z",
    ended="2030-01-01T00:00:01.000Z",
    columns="key binary",
    indexes={0: 7, 1: 9, 2: 1 << 60},
    prefix=b"\xff\x00",
    start=None,
    end=b"",
    files=FILES,
)
TOPIC = replace(KEYS, topic="a/b", partitions=2, indexes={}, spans=((0, 0, 5), (1, 3, 3)))


@pytest.mark.parametrize("manifest", [KEYS, TOPIC, replace(KEYS, cluster_id=None, files=())])
def test_a_manifest_is_read_back_as_it_was_and_has_what_programs_ask_for(
    manifest: Manifest,
) -> None:
    assert decode(encode(manifest), "x") == manifest
    plain = json.loads(encode(manifest))
    assert plain["kind"] == "shardnode-export"
    assert plain["indexes"] == {str(shard): index for shard, index in manifest.indexes.items()}
    assert sum(plain["shard_rows"].values()) == manifest.rows
    assert manifest.by_shard()[1] == (0, 0)


def test_a_manifest_that_was_changed_or_is_too_new_is_refused() -> None:
    changed = encode(KEYS).replace(b'"main"', b'"mine"')
    with pytest.raises(Corrupt, match="does not match its checksum"):
        decode(changed, "there")
    with pytest.raises(InvalidRequest, match="expected shardnode-export of format 1, found"):
        decode(encode(KEYS).replace(b'"format": 1', b'"format": 2'), "there")
    for data in (b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(Corrupt, match="expected the manifest of an export"):
            decode(data, "there")


def test_exports_differ_in_identity() -> None:
    assert KEYS.identity == replace(KEYS).identity
    assert KEYS.identity != replace(KEYS, began="2030-01-01T00:00:00.001Z").identity


def test_files_that_are_not_those_of_the_manifest_are_named() -> None:
    sizes = {each.path: each.size for each in FILES}
    assert problems_of(KEYS, sizes) == []
    sizes["shard=1/part-z.parquet"] = 1
    sizes["shard=2/part-c.parquet"] = 49
    del sizes["shard=0/part-a.parquet"]
    assert problems_of(KEYS, sizes) == [
        "shard=0/part-a.parquet is missing",
        "shard=1/part-z.parquet does not belong to the export",
        "shard=2/part-c.parquet: expected 50 bytes, found 49",
    ]


def test_rows_that_are_not_those_of_the_manifest_are_told_by_count_and_by_digest() -> None:
    contents = {each.path: each.contents for each in FILES if each.contents.rows}
    assert differences_of(KEYS, contents) == []
    a, _, c = (each.path for each in FILES)
    assert differences_of(KEYS, {**contents, a: Contents(2, 20, -5)}) == [
        f"{a}: expected its 3 rows, found 2 rows"
    ]
    assert differences_of(KEYS, {**contents, c: Contents(2, 20, 0)}) == [
        f"{c}: expected its 2 rows, found other rows"
    ]


def test_every_size_is_in_the_bucket_that_says_so() -> None:
    for size in [*range(300), 4095, 4096, 4097, 4 << 20]:
        bucket = bucket_of(size)
        assert low_of(bucket) <= size < high_of(bucket)
        assert bucket == (len(f"{size:b}") if size else 0), "as the JVM counts them"
    assert [label_of(bucket) for bucket in (0, 1, 2, 11)] == [
        "0 B",
        "1 B",
        "2 B to 4 B",
        "1.0 KiB to 2.0 KiB",
    ]


def test_histograms_are_added_without_gaps_and_skew_is_against_an_equal_share() -> None:
    assert together([{2: 1, 5: 3}, {2: 4}]) == {2: 5, 3: 0, 4: 0, 5: 3}
    assert together([{}, {}]) == {}
    assert skew_of([10, 10, 10]) == 1.0
    assert skew_of([30, 0, 0]) == 3.0
    assert skew_of([0, 0]) == 1.0


def shards() -> list[ShardSizes]:
    keys = Sizes(60, 2, 5, 6, 6, 6, {2: 1, 3: 9})
    values = Sizes(5_000, 0, 500, 900, 990, 999, {0: 2, 9: 3, 10: 5})
    return [
        ShardSizes(0, 10, 1, 9, 5462, keys, values),
        ShardSizes(1, 0, 0, 0, 5461, NO_SIZES, NO_SIZES),
    ]


def test_stats_add_up_for_programs_and_for_people() -> None:
    facts = facts_of(shards())
    assert (facts["rows"], facts["bytes"], facts["with_ttl"]) == (10, 5060, 1)
    assert facts["skew_rows"] == 2.0
    assert facts["shards"][0]["values"]["histogram"][0] == {"from": 0, "below": 1, "count": 2}
    assert json.loads(json.dumps(facts)) == facts
    told = repr(sections_of(shards(), "keys of cluster main"))
    assert "2.00 times the rows" in told
    assert "('512 B to 1.0 KiB', 5)" in told


def test_the_picture_is_svg_with_a_bar_for_each_bucket_and_depends_on_numbers_alone() -> None:
    text = picture(shards(), "cluster <a&b>")
    assert text == picture(shards(), "cluster <a&b>")
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    told = [each.text for each in root.iter(f"{space}title")]
    assert told[0] == "cluster <a&b>"
    assert "512 to 1023 B: 5" in told
    bars = [each for each in root.iter(f"{space}rect") if len(each)]
    tall = {each[0].text: float(each.get("height", "0")) for each in bars}
    assert tall["512 to 1023 B: 5"] > tall["256 to 511 B: 3"] > tall["0 to 0 B: 2"]
    assert tall["0 to 0 B: 2"] > 0
    assert "shard 1: 0 rows" in text


def test_flows_hold_every_slot_once_and_rows_where_they_are() -> None:
    flows = flows_of(initial_table(3), 5, {(0, 1): (4, 40), (0, 0): (6, 60)})
    assert sum(flow.slots for flow in flows) == 16_384
    slots = Counter((s * 3 >> 14, s * 5 >> 14) for s in range(16_384))
    assert {(flow.source, flow.target): flow.slots for flow in flows} == slots
    assert [(f.source, f.target, f.rows) for f in flows if f.rows] == [(0, 0, 6), (0, 1, 4)]
    same = flows_of(initial_table(4), 4, {})
    assert not any(flow.moves for flow in same)


def test_keys_and_bytes_are_shown_on_one_line() -> None:
    assert shown_key(b"user:1") == "user:1"
    assert shown_key(b"\xff\n") == "0xff0a"
    assert shown_key(b"a\nb") == "0x610a62"
    assert [shown_bytes(n) for n in (0, 1023, 1024, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
    ]


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_session, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'shardnode\[spark\]'"):
        jobs_session.require_spark()


def test_errors_of_tasks_are_ours_again() -> None:
    from pyspark.errors import PySparkException

    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        "  File x\nshardnode.wire.errors.NotFound: expected a topic a/b, found none\n at java…"
    )
    with (
        pytest.raises(NotFound, match=r"^expected a topic a/b, found none$"),
        jobs_session.own_errors(),
    ):
        raise PySparkException(text)
    damaged = "x\nshardnode.pipeline.topics_rows.Damaged: topic a/b, partition 0: look\n"
    with (
        pytest.raises(Corrupt, match=r"^topic a/b, partition 0: look$"),
        jobs_session.own_errors(),
    ):
        raise PySparkException(damaged)
    with (
        pytest.raises(jobs_session.SparkFailed, match="Spark failed: out of memory"),
        jobs_session.own_errors(),
    ):
        raise PySparkException("out of memory")


def test_every_job_has_a_command_and_every_command_a_job() -> None:
    from shardnode.cli.job import run_command

    assert set(run_command.commands) == set(JOBS)
