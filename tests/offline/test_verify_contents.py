"""Files that are sound in themselves and do not belong together, and LMDB of every shape."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.offline.verify import verify
from shardnode.raft import Entry
from shardnode.shard.entries import encode_entry
from shardnode.storage.audit import FINDINGS_MAX, Book
from shardnode.storage.audit_keys import audit_keys
from shardnode.storage.engine import EngineOptions, LmdbEngine
from shardnode.storage.engine_blobs import seal
from shardnode.storage.engine_values import keep_many
from shardnode.storage.files import ReadOnlyFiles, RealFiles
from shardnode.storage.records import Anchor
from shardnode.storage.snapshots import SnapshotStore
from shardnode.wire.kinds import Kind
from shardnode.wire.streams import Append, MessageBatch
from tests.offline.kit import NAMESPACE, ShardWriter

SMALL = EngineOptions(table_bytes=1 << 20, slice_keys=50, map_bytes=1 << 16, map_bytes_max=1 << 30)


def wrong(shard: Path) -> list[str]:
    return [f"{finding.path}: {finding.what}" for finding in verify(shard).damage]


def write_blob(shard: Path, name: str, blob: bytes) -> None:
    """Another blob with a checksum that is right."""
    (generation,) = (shard / "kv").glob("0*")
    with lmdb.open(str(generation), max_dbs=3) as env:
        blobs = env.open_db(b"blobs")
        with env.begin(write=True, db=blobs) as txn:
            txn.put(name.encode(), seal(name, blob))


def test_batch_of_a_partition_that_its_entry_does_not_know_is_damage(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    writer.make_partition()
    writer.append(b"as it was logged")
    bodies = [
        Append(NAMESPACE, 1, MessageBatch([value]).encode()).encode() for value in (b"one", b"two")
    ]
    logged, applied = (encode_entry(9, Kind.APPEND, body) for body in bodies)
    index = writer.add(NAMESPACE, logged, apply=False)
    writer.effects.apply([Entry(index, 1, NAMESPACE, 2, applied)])
    writer.append(b"also as it was logged")
    writer.close()
    (found,) = wrong(tmp_path / "shard-1")
    assert f"the batch of offset 1 was made by entry {index}" in found


def test_entry_that_was_overridden_is_not_compared(tmp_path: Path) -> None:
    """What another leader wrote at an index never took effect."""
    writer = ShardWriter(tmp_path)
    writer.make_partition()
    writer.append(b"first")
    index = writer.append(b"second")
    writer.log.close()
    log = writer.log.open(RealFiles(tmp_path), "shard-1")
    (record,) = log.read(index, index)
    log.truncate_back(index - 1)
    other = Append(NAMESPACE, 1, MessageBatch([b"never"]).encode()).encode()
    log.append_batch([(index, 2, NAMESPACE, 2, encode_entry(9, Kind.APPEND, other))])
    log.append_batch([(index, 3, *record[2:])])
    log.sync()
    writer.log = log
    writer.close()
    assert wrong(tmp_path / "shard-1") == []


def test_snapshot_of_another_history_is_damage(data: Path) -> None:
    store = SnapshotStore(RealFiles(data), "shard-1")
    (meta,) = store.list()
    store.write(meta.index - 1, meta.term, 12345, b"", {"keys": [b""]})
    (found,) = wrong(data / "shard-1")
    assert "continues chain 0000000000003039, the log has" in found


def test_installation_that_was_cut_off_is_sound(data: Path) -> None:
    """The snapshot is published, the log is not reset yet."""
    SnapshotStore(RealFiles(data), "shard-1").write(10_000, 4, 12345, b"", {"keys": [b""]})
    verdict = verify(data / "shard-1")
    assert verdict.is_sound
    assert "an installation was cut off" in verdict.notes[0].means


def test_log_that_continues_a_snapshot_is_one_history_with_it(tmp_path: Path) -> None:
    """The chain goes on across the boundary (C4)."""
    writer = ShardWriter(tmp_path)
    writer.fill()
    writer.snapshot()
    writer.log.reset(Anchor(writer.index, 1, writer.log.chain(writer.index)))
    writer.put({b"after": b"it"})
    writer.close()
    assert wrong(tmp_path / "shard-1") == []
    assert verify(tmp_path / "shard-1").shards[0].log_first == writer.index


@pytest.mark.parametrize("name", ["sessions", "leases", "topics", "groups", "keyvalue", "effects"])
def test_stored_state_that_makes_no_sense_is_damage(data: Path, name: str) -> None:
    write_blob(data / "shard-1", name, msgpack.packb([b"neither", 1, 2]))
    (found,) = wrong(data / "shard-1")
    assert f"the stored {name} do not make sense" in found


def test_stored_state_that_this_version_does_not_know_needs_only_its_checksum(data: Path) -> None:
    write_blob(data / "shard-1", "of-a-later-version", b"\xff\xff")
    assert wrong(data / "shard-1") == []


def test_effects_of_another_index_than_the_commit_says_are_damage(data: Path) -> None:
    write_blob(data / "shard-1", "effects", msgpack.packb([3, b"", [], 0]))
    assert "the effects are those of index 3" in wrong(data / "shard-1")[0]


def test_marks_of_partitions_that_make_no_sense_are_damage(data: Path) -> None:
    write_blob(data / "shard-1", "streams", msgpack.packb([0, 1, [[NAMESPACE, {}, b"", []]]]))
    assert "the marks of partitions are none" in wrong(data / "shard-1")[0]


# -- LMDB -----------------------------------------------------------------------------------------


def flush(engine: LmdbEngine, index: int) -> None:
    engine.begin_flush(index, {"blob": b"%d" % index * index})
    while not engine.flush_slice(50):
        pass
    engine.commit_flush()


def look(path: Path) -> tuple[Book, int]:
    book = Book()
    return book, audit_keys(ReadOnlyFiles(path), "shard", book).count


KEYS = st.lists(st.binary(min_size=1, max_size=480), min_size=1, max_size=60, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9_000)),
        st.tuples(st.just("delete"), KEYS, st.just(0)),
        st.tuples(st.just("flush"), st.just([]), st.just(0)),
        st.tuples(st.just("reopen"), st.just([]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_was_written_is_sound(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[bytes], int]]
) -> None:
    path = tmp_path_factory.mktemp("kv")
    engine = LmdbEngine(str(path / "shard" / "kv"), SMALL)
    model: set[bytes] = set()
    for index, (what, keys, size) in enumerate(steps, 1):
        if what == "put":
            sizes = [(size + 37 * number) % 9_001 for number in range(len(keys))]
            engine.put_many(keys, keep_many(index, 0, keys, list(map(bytes, sizes))), size)
            model.update(keys)
        elif what == "delete":
            engine.delete_many(keys)
            model.difference_update(keys)
        else:
            flush(engine, index)
            if what == "reopen":
                engine.close()
                engine = LmdbEngine(str(path / "shard" / "kv"), SMALL)
    flush(engine, len(steps) + 1)
    engine.close()
    book, count = look(path)
    assert list(map(str, book.findings)) == []
    assert count == len(model)
    shutil.rmtree(path)


def test_many_keys_in_a_random_order_are_sound_in_deep_trees(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path / "shard" / "kv"), EngineOptions())
    for index in range(1, 6):
        keys = [b"%d" % (number * 7_919 % 50_021) for number in range(index * 9_000)]
        engine.put_many(keys, keep_many(index, index * 9, keys, [b"v" * index] * len(keys)), 1)
        engine.expire_later(index * 9, index, keys)
        flush(engine, index)
    engine.close()
    book, count = look(tmp_path)
    assert (list(map(str, book.findings)), count) == ([], 45_000)


def test_file_that_was_cut_off_is_named(data: Path) -> None:
    (path,) = (data / "shard-1" / "kv").glob("*/data.mdb")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert "pages of 4096 bytes, the file has" in wrong(data / "shard-1")[0]


def test_file_of_noise_is_told_in_few_words(data: Path) -> None:
    (path,) = (data / "shard-1" / "kv").glob("*/data.mdb")
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 + 10] ^= 0xFF
        content[page * 4096 + 100 : page * 4096 + 3_000] = bytes(2_900)
    path.write_bytes(content)
    verdict = verify(data / "shard-1")
    assert 0 < len(verdict.damage) <= FINDINGS_MAX + 2


def test_page_that_was_written_to_another_place_is_found(data: Path) -> None:
    """A disk may write a page where it does not belong: both places are wrong then."""
    (path,) = (data / "shard-1" / "kv").glob("*/data.mdb")
    content = bytearray(path.read_bytes())
    leaves = [at for at in range(8192, len(content), 4096) if content[at + 10] == 2]
    for at in leaves[1:]:
        content[at : at + 4096] = content[leaves[0] : leaves[0] + 4096]
    path.write_bytes(content)
    assert any("expected page" in each for each in wrong(data / "shard-1"))


def test_files_that_are_only_looked_at_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    files = ReadOnlyFiles(tmp_path)
    file = files.open("file")
    for change in (
        lambda: files.create("other"),
        lambda: files.mkdir("other"),
        lambda: files.rename("file", "other"),
        lambda: files.remove("file"),
        lambda: files.remove_tree("file"),
    ):
        with pytest.raises(AssertionError, match="only looked at"):
            change()
    with pytest.raises(Exception, match="could not write"):
        file.pwritev([b"x"], 0)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"content"
