"""The engine's files: room, damage, and replacing everything at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from shardnode.storage import engine_lmdb
from shardnode.storage.engine import EngineOptions, Item, LmdbEngine
from shardnode.storage.engine_values import keep, keep_many
from shardnode.storage.errors import Corrupt, NoSpace, SyncFailed

TINY = EngineOptions(map_bytes=1 << 17, map_bytes_max=1 << 18)


def fill(engine: LmdbEngine, count: int, size: int = 1_000, version: int = 1) -> None:
    keys = [b"%04d" % number for number in range(count)]
    engine.put_many(keys, keep_many(version, 0, keys, [bytes(size)] * count), size * count)


def flush(engine: LmdbEngine, index: int) -> None:
    if not engine.flushing:
        engine.begin_flush(index, {})
    while not engine.flush_slice(50):
        pass
    engine.commit_flush()


def count_of(engine: LmdbEngine) -> int:
    return sum(len(some) for some in engine.scan(b"", None, reverse=False))


def test_map_grows_when_it_is_full(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path), EngineOptions(map_bytes=1 << 17, map_bytes_max=1 << 30))
    fill(engine, 2_000)
    flush(engine, 1)
    assert (engine.index, count_of(engine)) == (1, 2_000)
    engine.close()
    engine = LmdbEngine(str(tmp_path), EngineOptions(map_bytes=1 << 17, map_bytes_max=1 << 30))
    assert count_of(engine) == 2_000
    engine.close()


def test_full_store_is_told_and_loses_nothing(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path), TINY)
    fill(engine, 50)
    flush(engine, 1)
    fill(engine, 1_000, version=2)
    for _ in range(3):
        with pytest.raises(NoSpace):
            flush(engine, 2)
    assert (engine.index, count_of(engine)) == (1, 1_000)
    engine.put_many([b"later"], [keep(3, 0, b"later", b"")], 5)
    assert count_of(engine) == 1_001
    engine.close()
    engine = LmdbEngine(str(tmp_path), EngineOptions(map_bytes=1 << 24))
    assert (engine.index, count_of(engine)) == (1, 50)
    engine.close()


def test_flush_works_once_there_is_room_again(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path), EngineOptions(map_bytes=1 << 17, map_bytes_max=1 << 30))
    fill(engine, 10)
    flush(engine, 1)
    pinned = engine.pin()
    fill(engine, 1_000, version=2)
    with pytest.raises(NoSpace):  # the map cannot move while somebody reads it
        flush(engine, 2)
    assert sum(map(len, pinned)) == 10
    flush(engine, 2)
    assert (engine.index, count_of(engine)) == (2, 1_000)
    engine.close()


@pytest.mark.parametrize(
    ("problem", "expected"), [(lmdb.DiskError, NoSpace), (lmdb.Error, SyncFailed)]
)
def test_commit_that_fails_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: type[Exception],
    expected: type[Exception],
) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 10)

    def fail(*_: Any) -> None:
        raise problem("mdb_txn_commit")

    with monkeypatch.context() as patch:
        patch.setattr(engine_lmdb._Environment, "finish", fail)
        with pytest.raises(expected):
            flush(engine, 1)
        assert (engine.index, engine.durable_index, count_of(engine)) == (0, 0, 10)
    if expected is NoSpace:  # a failed sync is never tried again
        flush(engine, 1)
        assert (engine.index, count_of(engine)) == (1, 10)
    engine.close()


def test_commit_goes_on_behind_the_loop_which_sees_everything_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 10)
    go_on = threading.Event()
    finish = engine_lmdb._Environment.finish

    def slow(*args: Any) -> None:
        go_on.wait()
        finish(*args)

    monkeypatch.setattr(engine_lmdb._Environment, "finish", slow)
    engine.begin_flush(1, {})
    while not engine.flush_slice(50):
        pass
    done: list[bool] = [engine.commit_flush(wait=False)]
    fill(engine, 20, version=2)
    assert (engine.index, engine.flushing, count_of(engine)) == (0, True, 20)
    done.append(engine.commit_flush(wait=False))
    go_on.set()
    done.append(engine.commit_flush())
    assert done == [False, False, True]
    assert (engine.index, engine.flushing, count_of(engine)) == (1, False, 20)
    engine.close()


def test_durable_is_the_commit_before_the_last_until_the_files_are_opened_again(
    tmp_path: Path,
) -> None:
    engine = LmdbEngine(str(tmp_path))
    seen = []
    for index in (3, 5, 9):
        flush(engine, index)
        seen.append((engine.index, engine.durable_index))
    assert seen == [(3, 0), (5, 3), (9, 5)]
    engine.close()
    engine = LmdbEngine(str(tmp_path))
    assert (engine.index, engine.durable_index) == (9, 9)
    engine.close()


def test_damaged_files_are_named_and_not_replaced(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 10)
    flush(engine, 1)
    engine.close()
    (data,) = tmp_path.glob("*/data.mdb")
    garbage = b"\xff" * data.stat().st_size
    data.write_bytes(garbage)
    with pytest.raises(Corrupt):
        LmdbEngine(str(tmp_path))
    assert data.read_bytes() == garbage


class Stop(BaseException):
    """The process dies here."""


def other_items() -> Iterator[Sequence[Item]]:
    yield [(b"x", keep(7, 0, b"x", b"")), (b"y", keep(7, 0, b"y", b""))]


def dying_items() -> Iterator[Sequence[Item]]:
    yield [(b"x", keep(7, 0, b"x", b""))]
    raise Stop


def test_replacing_that_fails_leaves_everything(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 10)
    flush(engine, 1)
    fill(engine, 12, version=2)
    with pytest.raises(Stop):
        engine.replace(7, {}, dying_items())
    assert (engine.index, count_of(engine)) == (1, 12)
    assert len(list(tmp_path.iterdir())) == 1
    flush(engine, 2)
    engine.replace(7, {"b": b"1"}, other_items())
    assert (engine.index, count_of(engine), engine.blob("b")) == (7, 2, b"1")
    engine.close()


@pytest.mark.parametrize("renamed", [False, True])
def test_crash_while_replacing_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 10)
    flush(engine, 1)

    def die(src: str, dst: str, rename: Any = os.rename) -> None:
        if renamed:
            rename(src, dst)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        with pytest.raises(Stop):
            engine.replace(7, {}, other_items())
    engine.close()
    engine = LmdbEngine(str(tmp_path))
    assert (engine.index, count_of(engine)) == ((7, 2) if renamed else (1, 10))
    assert len(list(tmp_path.iterdir())) == 1
    engine.close()


def test_pinned_items_stay_while_others_are_committed(tmp_path: Path) -> None:
    engine = LmdbEngine(str(tmp_path))
    fill(engine, 2_000, size=10)
    flush(engine, 1)
    pinned = engine.pin()
    first = next(pinned)
    for index in range(2, 6):
        fill(engine, 2_100, size=10, version=index)
        flush(engine, index)
    items = [*first, *(item for some in pinned for item in some)]
    assert items == [(key, keep(1, 0, key, bytes(10))) for key, _ in items]
    assert len(items) == 2_000
    engine.close()
