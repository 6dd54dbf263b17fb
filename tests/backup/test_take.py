"""Taking a backup: what is copied, what is not, and what becomes of it when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode.backup import blobs, chunks, copying
from shardnode.backup.blobs import WrongContent
from shardnode.backup.check import check_backups
from shardnode.backup.copying import PATIENCE_S
from shardnode.backup.format import MARK, backup_of
from shardnode.backup.pace import Pace
from shardnode.backup.restore import RestoreOptions
from shardnode.backup.store import FolderStore
from shardnode.backup.take import TakeOptions, all_backups
from shardnode.client.cuts import Cut
from shardnode.wire.cuts import CutOpen, CutOpened
from shardnode.wire.errors import Conflict, Corrupt, NotFound, Unavailable
from tests.backup.kit import (
    CLUSTER,
    Shard,
    Source,
    check_equal,
    check_shard,
    folder_store,
    restored,
    take,
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """With bounds as small as its data."""
    monkeypatch.setattr(blobs, "PART_BYTES", 5_000)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(copying, "FRESH_BYTES", 10_000)
    with Source(tmp_path / "source", 2) as source:
        yield source


def fill(shard: Shard, count: int = 30, size: int = 1_000, seed: int = 0) -> None:
    for number, key in enumerate(shard.keys(count)):
        shard.put({key: bytes([number + seed]) * size})


def test_a_second_backup_copies_the_log_since_the_first(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
        fill(shard, 20)
    first = take(source, store)
    assert all(cut.base is not None for cut in first.manifest.cuts)
    assert first.moved.fetched > 50_000
    source.shards[1].put({source.shards[1].keys(1)[0]: b"new"})
    second = take(source, store)
    assert second.moved.fetched < 1_000
    assert [cut.base for cut in second.manifest.cuts] == [cut.base for cut in first.manifest.cuts]
    third = take(source, store)
    assert third.moved.fetched < 300, "hardly anything happened"
    for taken in (first, second, third):
        backup = taken.manifest.id
        _, opened = restored(store, tmp_path / backup, RestoreOptions(backup=backup))
        check_equal(source, taken.manifest, opened)
        for each in opened:
            each.close()
    assert check_backups(store).problems == []


def test_an_object_store_does_as_well(source: Source, tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from shardnode.backup.objects import ObjectStore

    store = ObjectStore("memory:///main", obstore.store.MemoryStore())
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
    first = take(source, store)
    source.shards[0].put({source.shards[0].keys(1)[0]: b"new"})
    second = take(source, store, TakeOptions(full=True))
    assert second.moved.reused > 20_000
    assert [each.id for each in all_backups(store)[0]] == [first.manifest.id, second.manifest.id]
    _, opened = restored(store, tmp_path / "r")
    check_equal(source, second.manifest, opened)
    for each in opened:
        each.close()
    assert check_backups(store).problems == []


def test_a_full_backup_reuses_files_that_are_the_same(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
        fill(shard, 20)
    first = take(source, store)
    second = take(source, store, TakeOptions(full=True))
    assert second.moved.reused == sum(
        cut.base.size for cut in first.manifest.cuts if cut.base is not None
    )
    assert second.moved.fetched < 5_000, "the manifests of the snapshots, and no log"


def test_a_new_base_is_taken_when_much_log_has_gathered(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardnode.backup import take as module

    monkeypatch.setattr(module, "LOG_BYTES_MAX", 10_000)
    store = folder_store(tmp_path)
    shard = source.shards[0]
    fill(shard, 5)
    first = take(source, store).manifest.cuts[0]
    assert first.base is None, "the log alone, while it is short"
    fill(shard, 30)
    shard.cut_log()
    fill(shard, 20)
    second = take(source, store).manifest.cuts[0]
    third = take(source, store).manifest.cuts[0]
    assert second.base is None or third.base is not None
    assert third.base is not None


def test_many_small_backups_are_put_together(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNKS_MAX", 5)
    store = folder_store(tmp_path)
    counts = []
    for number in range(20):
        for shard in source.shards:
            shard.put({shard.keys(1)[0]: b"%d" % number})
        taken = take(source, store)
        counts.append(len(taken.manifest.cuts[0].log))
    assert max(counts) <= 7
    assert counts.count(1) >= 3, "now and then all of it is one"
    first = all_backups(store)[0][0].cuts[0].index
    for index in range(first, taken.manifest.cuts[0].index + 1, 3):
        options = RestoreOptions(to_index={0: index})
        _, opened = restored(store, tmp_path / f"r{index}", options)
        check_shard(source.shards[0], opened[0], index)
        for each in opened:
            each.close()


def test_an_interrupted_backup_goes_on_with_what_it_had(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
        fill(shard, 20)
    whole = take(source, folder_store(tmp_path / "other")).moved.fetched
    left = 40
    requests = [0]

    def interrupt(_shard: int) -> None:
        requests[0] += 1
        if requests[0] == left:
            source.meddle = lambda _: None
            raise KeyboardInterrupt

    source.meddle = interrupt
    with pytest.raises(KeyboardInterrupt):
        take(source, store)
    assert all_backups(store) == ([], []), "nothing counts yet"
    taken = take(source, store)
    assert 0 < taken.moved.fetched < whole * 0.8
    _, opened = restored(store, tmp_path / "r")
    check_equal(source, taken.manifest, opened)
    for each in opened:
        each.close()
    assert check_backups(store).problems == []


def test_a_destination_belongs_to_one_cluster(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    fill(source.shards[0], 3)
    take(source, store)
    other = Source(tmp_path / "other", 2)
    topology = other.topology()
    other.topology = lambda: type(topology)(  # type: ignore[method-assign]
        topology.cluster, 1, topology.nodes, (), topology.table, CLUSTER + 1
    )
    with other, pytest.raises(Conflict, match="choose another destination"):
        take(other, store)
    stranger = FolderStore(tmp_path / "stranger")
    stranger.put("thesis.txt", b"mine")
    with pytest.raises(Conflict, match=r"expected backups or nothing, found thesis\.txt"):
        take(source, stranger)
    assert stranger.exists(MARK) is None


def test_another_history_is_refused(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    fill(source.shards[0], 8)
    take(source, store)
    with Source(tmp_path / "rolled back", 2) as other:
        fill(other.shards[0], 5, seed=100)
        with pytest.raises(Conflict, match="shard 0 has another history than the newest backup"):
            take(other, store)


def test_a_shard_that_nobody_serves_is_given_up_after_a_while(
    source: Source, tmp_path: Path
) -> None:
    fill(source.shards[0], 3)

    def fail(shard: int) -> None:
        if shard == 1:
            source.pass_time(10)
            raise Unavailable("no leader")

    source.meddle = fail
    with pytest.raises(Unavailable, match="no leader"):
        take(source, folder_store(tmp_path))
    assert source.requests > PATIENCE_S, "it was tried again and again"


def test_what_comes_wrong_is_asked_for_again_but_not_for_ever(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
        fill(shard, 20)
    times = [2]
    sound = source.file

    def file(cut: Cut, name: str, size: int, offset: int = 0) -> Iterator[bytes]:
        for number, piece in enumerate(sound(cut, name, size, offset)):
            if name == "keys" and times[0] and number == 0:
                times[0] -= 1
                yield piece[:-1] + bytes([piece[-1] ^ 1])
            else:
                yield piece

    monkeypatch.setattr(source, "file", file)
    store = folder_store(tmp_path)
    taken = take(source, store)
    assert taken.moved.lost == 2
    _, opened = restored(store, tmp_path / "r")
    check_equal(source, taken.manifest, opened)
    for each in opened:
        each.close()
    times[0] = 1_000_000
    with pytest.raises(Corrupt, match="what came is damaged") as error:
        take(source, folder_store(tmp_path / "other"))
    assert isinstance(error.value.__cause__, WrongContent)


def test_a_snapshot_that_cannot_be_built_is_told(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = CutOpened(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, "the disk is full")
    asked: list[CutOpen] = []

    def open_(_shard: int, ask: CutOpen) -> CutOpened:
        asked.append(ask)
        return opened

    monkeypatch.setattr(source, "open", open_)
    with pytest.raises(Unavailable, match="could not build a snapshot: the disk is full"):
        take(source, folder_store(tmp_path))
    assert {ask.snapshot_min for ask in asked[1:] if ask.snapshot} >= {7}


def test_leases_are_renewed_however_slow_it_goes(source: Source, tmp_path: Path) -> None:
    for shard in source.shards:
        fill(shard)
    taken = take(source, folder_store(tmp_path), TakeOptions(bytes_per_s=100))
    assert taken.moved.lost == 0
    assert taken.seconds > 300
    assert sum(shard.counter.service.counters["cuts_expired"] for shard in source.shards) == 0


def test_a_pace_is_kept_and_never_sleeps_long() -> None:
    now, naps, signs = [0.0], [], [0]

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    def alive() -> None:
        signs[0] += 1

    pace = Pace(1_000, clock=lambda: now[0], sleep=sleep, alive=alive)
    for _ in range(20):
        pace.moved(500)
    assert now[0] == pytest.approx(10, abs=0.6)
    now[0] += 100
    pace.moved(1_000)
    pace.moved(1_000)
    assert now[0] == pytest.approx(111.75, abs=0.6), "what was not used is not saved up"
    pace.moved(50_000)
    assert max(naps) <= 1.0
    assert signs[0] > 60
    Pace(0, clock=lambda: now[0], sleep=sleep, alive=alive).moved(1 << 40)


def test_what_is_wrong_in_a_destination_is_all_told(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for shard in source.shards:
        fill(shard)
        shard.cut_log()
        fill(shard, 20)
    take(source, store)
    sound = check_backups(store)
    assert (sound.problems, sound.unused) == ([], 0)
    assert sound.bytes > 50_000
    keys = sorted(key for key in store.list("") if key != MARK)
    for key in keys:
        data = store.get(key)
        store.put(key, data[:-1] + bytes([data[-1] ^ 1]) if data else b"x")
        if key.endswith("/whole"):
            continue  # it says nothing that a reader relies upon
        named = key if backup_of(key) or "/log/" in key else key.rpartition("/")[0]
        problems = [error.message for error in check_backups(store).problems]
        assert any(named in problem for problem in problems), f"{key} was not noticed"
        store.put(key, data)
    for key in keys:
        data = store.get(key)
        (tmp_path / "backup" / key).unlink()
        found = check_backups(store)
        if backup_of(key) or key.endswith("/whole"):
            assert found.backups == [] or key.endswith("/whole")
        else:
            assert [key in error.message for error in found.problems].count(True) == 1
        store.put(key, data)
    with pytest.raises(NotFound):
        check_backups(folder_store(tmp_path / "nothing"))
