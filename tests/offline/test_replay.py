"""What checksums cannot tell: a state that was stored well and is not what the log makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import msgpack
import pytest

from shardnode.offline.verify import Verdict, verify
from shardnode.storage.engine_blobs import seal, unseal
from shardnode.storage.engine_values import keep
from tests.offline.kit import ShardWriter, write_identity

SHARD = "shard-1"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_identity(tmp_path / "data")
    writer = ShardWriter(tmp_path / "data")
    writer.fill()
    writer.close()
    return tmp_path / "data"


def replayed(data: Path) -> Verdict:
    assert verify(data).is_sound, "without looking at the log, nothing is wrong"
    return verify(data, replay=True)


def write(data: Path, database: bytes, key: bytes, value: bytes | None) -> None:
    """A change that LMDB keeps well."""
    (path,) = (data / SHARD / "kv").glob("0*")
    with lmdb.open(str(path), max_dbs=3) as env:
        opened = env.open_db(database)
        with env.begin(write=True, db=opened) as txn:
            if value is None:
                assert txn.delete(key)
            else:
                txn.put(key, value)


def test_sound_state_is_what_the_log_makes(made: Path) -> None:
    assert replayed(made).damage == []
    shutil.rmtree(made / SHARD / "snapshots")
    assert replayed(made).damage == [], "from the beginning of the log"


def test_snapshot_takes_the_place_of_a_log_that_was_cut(made: Path) -> None:
    segments = sorted((made / SHARD / "log").glob("*.seg"))
    for path in segments[:4]:
        path.unlink()
        path.with_suffix(".idx").unlink()
    verdict = replayed(made)
    assert (verdict.damage, verdict.notes) == ([], [])
    shutil.rmtree(made / SHARD / "snapshots")
    assert "was not made again" in replayed(made).notes[0].what


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        (b"key/3/8", None, "the key b'key/3/8' is missing"),
        (b"key/3/8", b"other", "the key b'key/3/8' has another value"),
        (b"key/3/88", b"new", "the key b'key/3/88' is stored"),
        (b"zzz", b"new", "the key b'zzz' is stored"),
    ],
)
def test_key_that_the_log_does_not_make_is_found(
    made: Path, key: bytes, value: bytes | None, what: str
) -> None:
    write(made, b"keys", key, None if value is None else keep(3, 0, key, value))
    (finding,) = replayed(made).damage
    assert what in finding.what


@pytest.mark.parametrize("name", ["keyvalue", "streams", "effects"])
def test_what_is_kept_beside_the_keys_is_compared(made: Path, name: str) -> None:
    (path,) = (made / SHARD / "kv").glob("0*")
    with lmdb.open(str(path), max_dbs=3) as env:
        opened = env.open_db(b"blobs")
        with env.begin(db=opened) as txn:
            blob = msgpack.unpackb(unseal(name, txn.get(name.encode()), ""))
    changed = {
        "keyvalue": [0, 99],
        "streams": [*blob[:-1], [[*row[:1], {"other": 1}, *row[2:]] for row in blob[-1]]]
        if name == "streams"
        else [],
        "effects": [*blob[:3], 4711, *blob[4:]],
    }[name]
    write(made, b"blobs", name.encode(), seal(name, msgpack.packb(changed)))
    (finding,) = replayed(made).damage
    assert "the log makes" in finding.what or "should hash to" in finding.what
