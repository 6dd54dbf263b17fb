"""Tasks that write to a real node: what is repeated has no second effect, and nothing is lost."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import Row

from shardnode import Client, Conflict, InvalidRequest, SessionExpired, Unavailable
from shardnode.pipeline import write_sender
from shardnode.pipeline.options import parse
from shardnode.pipeline.write_identity import Author
from shardnode.pipeline.write_input import connection_to_spark, whole
from shardnode.pipeline.write_sender import Sender
from shardnode.pipeline.writes import Wrote, stream_writer
from shardnode.testing.node import NodeUnderTest
from tests.pipeline.write_kit import (
    KEYS,
    batch_task,
    batches,
    keys_batch,
    keys_stream,
    schema,
    stream_task,
)

HEADERS = {"key": "binary", "value": "binary", "headers": "headers", "partition": "int"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(3, folder=tmp_path_factory.mktemp("writes-node")) as running:
        yield running


@pytest.fixture
def db(node: NodeUnderTest) -> Iterator[Client]:
    with node.client(timeout=30.0) as client:
        yield client


def rows_of(prefix: bytes, count: int, seed: int = 1) -> list[tuple[bytes, bytes]]:
    rng = Random(seed)
    return [(prefix + b"%05d" % n, rng.randbytes(rng.randint(0, 40))) for n in range(count)]


def kept(db: Client, prefix: bytes) -> dict[bytes, tuple[bytes | None, int]]:
    return {e.key: (e.value, e.version) for e in db.scan(prefix=prefix)}


def messages(db: Client, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition, bounds in enumerate(db.topic(topic).all_bounds()):
        at = bounds.first
        while at < bounds.end:
            page = db.topic(topic).read(partition, at, 10_000)
            found.update(message.value for message in page)
            at += len(page)
    return found


def end_sessions(node: NodeUnderTest, wrote: Wrote) -> None:
    """As if they had expired."""
    with Sender(parse({"connect": node.address}), Author(b"x" * 16, 0)) as sender:
        sender.close_sessions(wrote.sessions)


def test_a_task_that_is_run_again_changes_no_version(node: NodeUnderTest, db: Client) -> None:
    rows = rows_of(b"again/", 2_000)
    writer = keys_batch(node.address, batchRows="300")
    batch_task(writer, batches(KEYS, rows[:1_500], 100))
    half = kept(db, b"again/")
    db.put(b"again/00000", b"somebody else")
    batch_task(writer, batches(KEYS, rows, 700))
    found = kept(db, b"again/")
    assert found[b"again/00000"][0] == b"somebody else"
    repeated = [key for key in half if found[key] == half[key]]
    assert len(repeated) >= 1_500 - 3 * 300, "all but the last cut of each shard"
    assert {key: value for key, (value, _) in found.items()} == {
        **dict(rows),
        b"again/00000": b"somebody else",
    }
    wrote = batch_task(writer, batches(KEYS, rows))
    assert kept(db, b"again/") == found
    writer.commit([wrote])
    with pytest.raises(SessionExpired, match="the job has ended"):
        batch_task(writer, batches(KEYS, rows))
    other = keys_batch(node.address)
    batch_task(other, batches(KEYS, rows))
    assert kept(db, b"again/") != found, "another job writes anew"


def test_the_order_of_rows_in_a_request_does_not_matter(node: NodeUnderTest, db: Client) -> None:
    rows = rows_of(b"order/", 1_000)
    writer = keys_stream(node.address)
    stream_task(writer, batches(KEYS, rows), 4, b"order")
    found = kept(db, b"order/")
    stream_task(writer, batches(KEYS, Random(3).sample(rows, len(rows))), 4, b"order")
    assert kept(db, b"order/") == found
    stream_task(writer, batches(KEYS, rows), 5, b"order")
    assert all(version > found[key][1] for key, (_, version) in kept(db, b"order/").items())
    with pytest.raises(InvalidRequest, match="not acknowledged"):
        stream_task(writer, batches(KEYS, rows), 4, b"order")


def test_of_a_key_that_comes_again_the_last_row_counts(node: NodeUnderTest, db: Client) -> None:
    rng = Random(9)
    rows = [(b"last/%d" % rng.randrange(40), b"%d" % n) for n in range(3_000)]
    batch_task(keys_batch(node.address, batchRows="7"), batches(KEYS, rows))
    assert {key: value for key, (value, _) in kept(db, b"last/").items()} == dict(rows)


def test_a_task_with_more_requests_than_a_session_keeps_goes_on_in_another(
    node: NodeUnderTest, db: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_sender, "SESSION_WRITES_MAX", 3)
    rows = rows_of(b"volumes/", 500)
    writer = keys_batch(node.address, batchRows="10")
    wrote = batch_task(writer, batches(KEYS, rows))
    assert len(wrote.sessions) > 9
    found = kept(db, b"volumes/")
    batch_task(writer, batches(KEYS, rows))
    assert kept(db, b"volumes/") == found


def test_each_row_may_have_its_own_time_to_live(node: NodeUnderTest, db: Client) -> None:
    columns = {**KEYS, "ttl": "decimal(10,2)"}
    rows: list[tuple[Any, ...]] = [(b"ttl/%04d" % n, b"v", n) for n in range(10, 2_500)]
    rows += [(b"ttl/none", b"v", None)]
    batch_task(keys_batch(node.address, columns), batches(columns, rows))
    found = {e.key: e.expires_at for e in db.scan(prefix=b"ttl/")}
    assert len(found) == len(rows)
    assert found.pop(b"ttl/none") is None
    now = datetime.now(UTC)
    for key, at in found.items():
        assert at is not None
        left = int(key[4:]) - (at - now).total_seconds()
        assert -5 < left < 60
    batch_task(keys_batch(node.address, columns, ttl="77"), batches(columns, rows))
    entry = db.get_entry(b"ttl/none")
    assert entry is not None
    assert entry.expires_at is not None


def test_keys_end_when_they_ended_where_they_were_read(node: NodeUnderTest, db: Client) -> None:
    columns = {**KEYS, "version": "bigint", "expires_at": "timestamp", "slot": "int"}
    at = datetime.now(UTC) + timedelta(hours=5)
    rows: list[tuple[Any, ...]] = [
        (b"until/a", b"v", 1, at, 0),
        (b"until/b", b"v", 1, None, 0),
        (b"until/c", b"v", 1, at - timedelta(hours=6), 0),
    ]
    writer = keys_batch(node.address, columns)
    batch_task(writer, batches(columns, rows))
    first, second = db.get_entry(b"until/a"), db.get_entry(b"until/b")
    assert first is not None
    assert second is not None
    assert first.expires_at is not None
    assert abs(first.expires_at - at) < timedelta(seconds=5)
    assert second.expires_at is None
    batch_task(writer, batches(columns, rows))
    assert db.get_entry(b"until/a") == first, "later, and the same"
    while db.get(b"until/c") is not None:
        continue


def test_equal_messages_are_all_there_and_none_when_repeated(
    node: NodeUnderTest, db: Client
) -> None:
    db.create_topic("pure/equal", partitions=2)
    rows = [(None, b"same")] * 500 + [(b"k", b"same")] * 500
    writer = keys_batch(node.address, topic="pure/equal", batchRows="50")
    for _ in range(2):
        batch_task(writer, batches(KEYS, rows))
        assert messages(db, "pure/equal") == {b"same": 1_000}
    batch_task(writer, batches(KEYS, rows), partition=1)
    assert messages(db, "pure/equal") == {b"same": 2_000}


def test_rows_of_a_key_stay_in_order(node: NodeUnderTest, db: Client) -> None:
    db.create_topic("pure/order", partitions=3)
    rows = [(b"key%d" % (n % 9), b"%d" % n) for n in range(3_000)]
    writer = keys_batch(node.address, topic="pure/order", batchRows="20", compression="zstd")
    batch_task(writer, batches(KEYS, rows))
    for partition in range(3):
        found = db.topic("pure/order").read(partition, 0, 10_000)
        numbers = [int(message.value) for message in found]
        assert numbers == sorted(numbers)


def test_a_micro_batch_is_known_when_its_sessions_are_long_gone(
    node: NodeUnderTest, db: Client
) -> None:
    db.create_topic("pure/days", partitions=3)
    rows = rows_of(b"days/", 900)
    writer = keys_stream(node.address, topic="pure/days", batchRows="40")
    for batch in range(3):
        wrote = stream_task(writer, batches(KEYS, rows), batch, b"days")
        end_sessions(node, wrote)
    expected = Counter(value for _, value in rows * 3)
    for _ in range(2):
        again = stream_task(writer, batches(KEYS, rows), 2, b"days")
        assert messages(db, "pure/days") == expected
        end_sessions(node, again)
    with pytest.raises(Conflict, match=r"micro-batch 1 of this query .* micro-batch 2 already"):
        stream_task(writer, batches(KEYS, rows), 1, b"days")
    assert messages(db, "pure/days") == expected
    keys = keys_stream(node.address)
    end_sessions(node, stream_task(keys, batches(KEYS, rows), 0, b"days keys"))
    stream_task(keys, batches(KEYS, rows_of(b"days/", 900, seed=2)), 1, b"days keys")
    assert {k: v for k, (v, _) in kept(db, b"days/").items()} == dict(rows_of(b"days/", 900, 2))


def test_a_topic_that_was_made_anew_gets_what_the_one_of_before_had(
    node: NodeUnderTest, db: Client
) -> None:
    """Its sessions still know the requests, but what those wrote went with the old topic."""
    rows = rows_of(b"anew/", 300)
    writer = keys_stream(node.address, topic="pure/anew", batchRows="40")
    for _ in range(2):
        db.create_topic("pure/anew", partitions=3)
        for _ in range(2):
            stream_task(writer, batches(KEYS, rows), 4, b"anew")
            assert messages(db, "pure/anew") == Counter(value for _, value in rows)
        db.delete_topic("pure/anew")


def test_other_rows_in_the_place_of_those_of_before_are_not_lost(
    node: NodeUnderTest, db: Client
) -> None:
    db.create_topic("pure/others", partitions=1)
    writer = keys_stream(node.address, topic="pure/others", batchRows="10")
    expected: Counter[bytes] = Counter()
    for seed in range(5):
        rows = [(b"k", b"%d/%d" % (seed, n)) for n in range(35)]
        wrote = stream_task(writer, batches(KEYS, rows), 7, b"others")
        end_sessions(node, wrote)
        expected.update(value for _, value in rows)
        assert messages(db, "pure/others") == expected


def test_headers_and_partitions_are_written(node: NodeUnderTest, db: Client) -> None:
    db.create_topic("pure/headers", partitions=4)
    rows: list[tuple[Any, ...]] = [
        (b"k", b"%d" % n, [{"key": "h", "value": b"%d" % n}] * (n % 3) or None, n % 4)
        for n in range(12_000)
    ]
    writer = keys_batch(node.address, HEADERS, topic="pure/headers")
    batch_task(writer, batches(HEADERS, rows, 999))
    for partition in range(4):
        page = db.topic("pure/headers").read(partition, 0, 10_000)
        assert [int(m.value) for m in page] == [n for n in range(12_000) if n % 4 == partition]
        assert all(m.headers.pairs == (("h", m.value),) * (int(m.value) % 3) for m in page)
        assert all(m.key == b"k" for m in page)
    with pytest.raises(InvalidRequest, match=r"'partition', row 1 .*: expected 0 to 3.*found 4"):
        batch_task(writer, batches(HEADERS, [(None, b"", None, 3), (None, b"", None, 4)]))
    with pytest.raises(InvalidRequest, match=r"'headers' .* found null"):
        batch_task(writer, batches(HEADERS, [(None, b"", [{"key": "h", "value": None}], 3)]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((None, b"v"), r"'key', row 2 of partition 5 of Spark: expected bytes or text, found null"),
        ((b"k", None), r"'value', row 2 of partition 5 of Spark with key b'k': .* found null"),
        ((b"", b"v"), r"'key', row 2 .*: expected 1 to 480 bytes \(key_bytes_max\), found 0"),
        ((b"k" * 481, b"v"), r"'key', row 2 .* with key b'k+'…: expected 1 to 480 .* found 481"),
        ((b"k", bytes(4 * 1024**2 + 1)), r"'value', row 2 .* with key b'k': .*\(value_bytes_max\)"),
    ],
)
def test_a_row_that_cannot_be_is_named(node: NodeUnderTest, row: Any, message: str) -> None:
    rows = [(b"good", b"v"), (b"good2", b"v"), row]
    with pytest.raises(InvalidRequest, match=message):
        batch_task(keys_batch(node.address), batches(KEYS, rows, 2), partition=5)


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), float("inf"), 1e12])
def test_a_time_to_live_that_cannot_be_is_named(node: NodeUnderTest, ttl: float) -> None:
    columns = {**KEYS, "ttl": "double"}
    with pytest.raises(InvalidRequest, match=r"column 'ttl', row 1 .* with key b'b': expected sec"):
        batch_task(
            keys_batch(node.address, columns),
            batches(columns, [(b"a", b"", None), (b"b", b"", ttl)]),
        )


def test_rows_of_a_spark_without_record_batches_for_streams_are_taken(
    node: NodeUnderTest, db: Client
) -> None:
    columns = {"key": "string", "value": "binary", "ttl": "int"}
    writer = stream_writer(parse({"connect": node.address}), schema(columns))
    made = Row(*columns)
    rows = [made(f"rows/{n}", bytearray(b"v%d" % n), None) for n in range(100)]
    stream_task(writer, iter(rows), 0, b"rows")
    found = {key: value for key, (value, _) in kept(db, b"rows/").items()}
    assert found == {b"rows/%d" % n: b"v%d" % n for n in range(100)}


def test_an_empty_task_does_not_even_connect() -> None:
    writer = keys_batch("127.0.0.1:1")
    assert batch_task(writer, []) == Wrote()
    writer.commit([Wrote(), None])


def test_a_topic_or_a_node_that_is_not_there_is_told(node: NodeUnderTest) -> None:
    with pytest.raises(Exception, match="pure/nowhere"):
        batch_task(keys_batch(node.address, topic="pure/nowhere"), batches(KEYS, [(b"k", b"v")]))
    with pytest.raises(Unavailable, match=r"nothing listens at 127\.0\.0\.1:1"):
        batch_task(keys_batch("127.0.0.1:1"), batches(KEYS, [(b"k", b"v")]))


def test_rows_that_end_with_the_connection_have_not_ended(tmp_path: Path) -> None:
    more, over = io.BufferedReader(io.BytesIO(b"\xff")), io.BufferedReader(io.BytesIO(b""))
    assert list(whole([1, 2], more)) == [1, 2]
    assert list(whole([1, 2], None)) == [1, 2]
    found: list[int] = []
    with pytest.raises(Unavailable, match="ended before their time"):
        found.extend(whole([1, 2], over))
    assert connection_to_spark() is None

    def main(infile: Any) -> Any:
        return infile and connection_to_spark()

    path = tmp_path / "connection"
    path.write_bytes(b"x")
    with path.open("rb") as opened:
        assert main(opened) is opened
