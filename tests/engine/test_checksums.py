"""A bit that flips inside LMDB is an error for whoever reads it, and never a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from shardnode.shard.effects import Effects
from shardnode.storage.engine import EngineOptions, LmdbEngine
from shardnode.storage.engine_lmdb import LmdbReader
from shardnode.storage.engine_store import are_sound_times, time_rows
from shardnode.storage.engine_values import HEADER_BYTES, are_sound, keep
from shardnode.storage.errors import KeysCorrupt

ROOMY = EngineOptions(table_bytes=1 << 20)
KEYS = [b"k%d" % number for number in range(9)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    engine = LmdbEngine(str(tmp_path), ROOMY)
    engine.put_many(KEYS, [keep(5, 77, key, b"value") for key in KEYS], 100)
    engine.expire_later(77, 5, KEYS)
    engine.begin_flush(5, {"sessions": b"who is there", "leases": b""})
    while not engine.flush_slice(100):
        pass
    engine.commit_flush()
    engine.close()
    return tmp_path


def spoil(path: Path, database: bytes, key: bytes, at: int) -> None:
    """One bit of what LMDB has under a key becomes another."""
    (generation,) = path.glob("0*")
    with lmdb.open(str(generation), max_dbs=3) as env:
        opened = env.open_db(database)
        with env.begin(write=True, db=opened) as txn:
            data = bytearray(txn.get(key) or b"")
            data[at] ^= 4
            txn.put(key, bytes(data))


READERS: dict[str, Callable[[LmdbEngine], object]] = {
    "get": lambda engine: engine.get(KEYS[3]),
    "get_many": lambda engine: engine.get_many([b"none", *KEYS]),
    "scan": lambda engine: list(engine.scan(b"", None, reverse=False)),
    "scan back": lambda engine: list(engine.scan(b"", None, reverse=True)),
    "pin": lambda engine: list(engine.pin()),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("at", [0, 8, HEADER_BYTES - 1, HEADER_BYTES, -1])
def test_damaged_value_is_never_given_out(path: Path, how: str, at: int) -> None:
    spoil(path, b"keys", KEYS[3], at)
    engine = LmdbEngine(str(path), ROOMY)
    with pytest.raises(KeysCorrupt, match="kept of the key b'k3'"):
        READERS[how](engine)
    assert engine.get_many(KEYS[4:]) == [keep(5, 77, key, b"value") for key in KEYS[4:]]
    engine.close()


def test_damaged_value_is_not_given_to_another_member(path: Path) -> None:
    spoil(path, b"keys", KEYS[3], -1)
    reader = LmdbReader(str(path))
    with pytest.raises(KeysCorrupt, match="kept of the key b'k3'"):
        list(reader.batches(4))
    reader.close()


@pytest.mark.parametrize(("name", "at"), [("sessions", 0), ("sessions", -1), ("leases", 3)])
def test_damaged_blob_is_an_error(path: Path, name: str, at: int) -> None:
    spoil(path, b"blobs", name.encode(), at)
    engine = LmdbEngine(str(path), ROOMY)
    with pytest.raises(KeysCorrupt, match=f"the stored blob '{name}'"):
        engine.blob(name)
    engine.close()


def test_blob_under_another_name_is_an_error(path: Path) -> None:
    (generation,) = path.glob("0*")
    with lmdb.open(str(generation), max_dbs=3) as env:
        opened = env.open_db(b"blobs")
        with env.begin(write=True, db=opened) as txn:
            txn.put(b"groups", txn.get(b"sessions") or b"")
    engine = LmdbEngine(str(path), ROOMY)
    with pytest.raises(KeysCorrupt, match="the stored blob 'groups'"):
        engine.blob("groups")
    engine.close()


def test_damaged_index_refuses_the_files(path: Path) -> None:
    spoil(path, b"blobs", b"index", -1)
    with pytest.raises(KeysCorrupt, match="the stored blob 'index'"):
        Effects(LmdbEngine(str(path), ROOMY))


def test_damaged_time_to_live_is_an_error(path: Path) -> None:
    spoil(path, b"times", time_rows(77, 5, KEYS[:1])[0][0], 2)
    engine = LmdbEngine(str(path), ROOMY)
    assert engine.due(76, 100) == ([], [])
    with pytest.raises(KeysCorrupt, match="the index of times to live"):
        engine.due(77, 100)
    engine.close()


def test_checksums_cover_every_bit_and_the_key() -> None:
    kept = keep(3, 4, b"key", b"value")
    assert are_sound([b"key", b"other"], [kept, keep(3, 4, b"other", b"")])
    assert not are_sound([b"kez"], [kept])
    flipped = [bytearray(kept) for _ in range(8 * len(kept))]
    for bit, each in enumerate(flipped):
        each[bit // 8] ^= 1 << bit % 8
    assert not any(are_sound([b"key"], [bytes(each)]) for each in flipped)
    (row,) = time_rows(9, 3, [b"key"])
    assert are_sound_times([row[0]], [row[1]])
    assert not are_sound_times([row[0][:-1] + b"z"], [row[1]])
    assert not are_sound_times([row[0]], [bytes(reversed(row[1]))])
