"""What `inspect` shows of directories and of each kind of file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shardnode.offline.inspect import Wanted, inspect
from shardnode.raft import RAFT_PARTITION, Membership
from shardnode.shard.entries import encode_entry
from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.wire.codec import Body
from shardnode.wire.errors import InvalidRequest, NotFound
from shardnode.wire.kinds import Compare, Kind, Operation
from shardnode.wire.placement import KEY_VALUE_PARTITION
from shardnode.wire.requests import Cas, Put, SessionOpen, Transact
from tests.offline.kit import NAMESPACE, ShardWriter, flip

CLIENT = bytes(range(16))


def rows(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    return list(inspect(path, Wanted(**wanted)))


def of(found: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [row for row in found if row["row"] == what]


def test_directory_is_summed_up(sound: Path) -> None:
    found = rows(sound)
    (node,) = of(found, "node")
    assert (node["cluster"], node["shards"]) == ("main", 2)
    assert [row["shard"] for row in of(found, "superblock")] == [0, 0, 1, 1]
    log = of(found, "log")[1]
    assert (log["first"], log["last"], log["segments"]) == (1, 55, len(of(found, "segment")) // 2)
    assert [row["keys"] for row in of(found, "keys")] == [243, 243]
    (partition, _) = of(found, "partition")
    assert (partition["first_offset"], partition["end_offset"]) == (0, 25)
    assert {row["name"] for row in of(found, "stored")} >= {"sessions", "topics", "streams"}
    assert of(found, "snapshot")[0]["index"] == 53
    assert {row["name"] for row in of(found, "part")} >= {"keys", "sessions", "effects"}


def test_one_shard_of_a_directory(sound: Path) -> None:
    assert {row["shard"] for row in rows(sound, shard=1) if "shard" in row} == {1}
    assert rows(sound / "shard-1") == [row for row in rows(sound, shard=1) if "shard" in row]
    with pytest.raises(NotFound, match="one of its shards 0, 1, found 7"):
        rows(sound, shard=7)


def test_records_in_a_range_of_the_log(sound: Path) -> None:
    found = rows(sound, shard=0, first=2, last=6)
    assert [row["index"] for row in found] == [2, 3, 4, 5, 6]
    assert [row["entry"] for row in found] == [
        "partitions_set",
        "put_many",
        "put_many",
        "put_many",
        "append",
    ]
    assert (found[1]["keys"], found[1]["first_key"]) == (20, b"key/0/0")
    assert found[2]["ttl_ms"] == 60_000
    assert found[1]["time"] == datetime.fromtimestamp(0.003, UTC)
    assert (found[4]["partition"], found[4]["messages"]) == ("0/0/5", 2)
    assert rows(sound, shard=0, first=56) == []


def test_records_of_one_partition_and_the_batches_of_a_stream(sound: Path) -> None:
    (begin,) = rows(sound, shard=0, partition=RAFT_PARTITION)
    assert begin["entry"] == "begin of a term"
    found = rows(sound, shard=0, partition=NAMESPACE, last=20)
    batches, records = of(found, "batch"), of(found, "record")
    assert [row["index"] for row in batches] == [row["index"] for row in records]
    assert [row["offset"] for row in batches] == [0, 2, 4, 6]
    assert batches[1]["first_value"] == b"message 1 " * 30


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Everything that may be asked of a key."""
    writer = ShardWriter(tmp_path)

    def ask(kind: Kind, body: Body) -> None:
        payload = encode_entry(
            writer.index + 1, kind, body.encode(), client_id=CLIENT, sequence=writer.index + 1
        )
        writer.add(KEY_VALUE_PARTITION, payload)

    ask(Kind.SESSION_OPEN, SessionOpen(60_000))
    ask(Kind.PUT, Put(b"k", b"one"))
    writer.put({b"other": b"k", b"k": b"two"}, ttl_ms=99_000)
    ask(Kind.CAS, Cas(b"k", b"three", 3))
    transaction = Transact(
        compare_kinds=bytes([Compare.VALUE_EQUAL]),
        compare_keys=[b"k"],
        compare_operands=[b"three"],
        then_kinds=bytes([Operation.PUT, Operation.DELETE]),
        then_keys=[b"k", b"other"],
        then_values=[b"four", None],
        then_ttls_ms=[0, 0],
        otherwise_kinds=bytes([Operation.DELETE]),
        otherwise_keys=[b"k"],
        otherwise_values=[None],
        otherwise_ttls_ms=[0],
    )
    ask(Kind.TRANSACT, transaction)
    writer.put({b"nothing": b"of it"})
    writer.delete([b"k"])
    writer.put({b"k": b"five"})
    writer.add(RAFT_PARTITION, Membership.of([1, 2], [], [3]).encode())
    writer.close()
    return tmp_path / "shard-1"


def test_history_of_a_key_is_what_was_asked_and_what_it_is_now(history: Path) -> None:
    *asked, now = rows(history, key=b"k")
    assert [(row["index"], row["does"], row.get("value")) for row in asked] == [
        (2, "put", b"one"),
        (3, "put", b"two"),
        (4, "put", b"three"),
        (5, "put", b"four"),
        (5, "delete", None),
        (7, "delete", None),
        (8, "put", b"five"),
    ]
    assert (asked[0]["client"], asked[0]["sequence"]) == (CLIENT.hex(), 2)
    assert asked[2]["if_version"] == 3
    assert asked[3]["if"] == "comparisons hold"
    assert (now["row"], now["value"], now["version"], now["as_of"]) == ("key", b"five", 8, 9)
    assert rows(history, key=b"k", first=8)[0]["index"] == 8
    assert rows(history, key=b"never") == []


def test_members_and_sessions_are_shown(history: Path) -> None:
    (record,) = rows(history, first=9)
    assert (record["entry"], record["voters"], record["learners"]) == ("members", [1, 2], [3])
    (session,) = of(rows(history), "session")
    assert (session["client"], session["replies"]) == (CLIENT.hex(), [2, 4, 5])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("node.json", {"node"}),
        ("members.json", {"members"}),
        ("shard-1/superblock.b", {"superblock"}),
        ("shard-1/log/00000000000000000003.seg", {"segment", "batch", "record"}),
        ("shard-1/log/00000000000000000001.idx", {"entry"}),
        ("shard-1/kv/*/data.mdb", {"keys", "stored", "key", "partition", "effects", "applied"}),
        ("shard-1/partitions/*/*/*1-*.seg", {"segment", "batch", "footer"}),
        ("shard-1/partitions/*/*/*2-*.seg", {"segment", "batch"}),
        ("shard-1/snapshots/*/manifest", {"snapshot", "part"}),
        ("shard-1/snapshots/*/keys", {"key"}),
        ("shard-1/snapshots/*/effects", {"stored", "effects", "applied"}),
        ("shard-1/snapshots/*/stream-*1-*.seg", {"segment", "batch", "footer"}),
    ],
)
def test_each_kind_of_file_is_shown(sound: Path, name: str, kinds: set[str]) -> None:
    path = min(sound.glob(name))
    assert {row["row"] for row in rows(path)} >= kinds


def test_keys_come_in_order_with_large_ones_among_them(sound: Path) -> None:
    (path,) = (sound / "shard-1" / "kv").glob("*/data.mdb")
    keys = [row["key"] for row in of(rows(path), "key")]
    assert keys == sorted(keys)
    assert len(keys) == 243
    (large,) = rows(path, key=b"large/7")
    assert large["value"] == b"l" * 9_000
    assert rows(path, key=b"large/77") == []


def test_rows_end_where_a_file_is_damaged(data: Path) -> None:
    segment = data / "shard-1" / "log" / "00000000000000000002.seg"
    flip(segment, 200)
    found = inspect(segment, Wanted())
    assert next(found)["row"] == "segment"
    with pytest.raises(Corrupt, match=r"00000000000000000002.seg at byte 64"):
        list(found)
    with pytest.raises(LogDamaged):
        rows(data, shard=1, first=1)
    flip(data / "shard-1" / "superblock.a", 3)
    with pytest.raises(Corrupt, match=r"superblock\.a"):
        rows(data / "shard-1" / "superblock.a")


def test_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InvalidRequest, match="expected a file of a node's directory"):
        rows(tmp_path / "notes.txt")
