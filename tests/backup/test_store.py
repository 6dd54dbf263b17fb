"""Destinations: a name holds all of its bytes or does not exist, wherever that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardnode.backup.store import FolderStore, Store, open_store
from shardnode.wire.errors import Conflict, InvalidRequest, NotFound, Unavailable


def object_store() -> Store:
    obstore = pytest.importorskip("obstore")
    from shardnode.backup.objects import ObjectStore

    return ObjectStore("memory:///backups", obstore.store.MemoryStore())


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FolderStore(tmp_path / "a" / "b") if request.param == "folder" else object_store()


def test_what_is_put_is_there_whole_or_not_at_all(store: Store) -> None:
    assert [*store.list("")] == []
    assert store.exists("x/y") is None
    with pytest.raises(NotFound, match="x/y"):
        store.get("x/y")
    store.put("x/y", b"one")
    store.put("x/y", b"three")
    store.put("x/z/empty", b"")
    store.put("w", b"1")
    store.settle()
    assert (store.get("x/y"), store.exists("x/y"), store.exists("x/z/empty")) == (b"three", 5, 0)
    assert store.exists("x") is None, "a folder is no object"
    assert sorted(store.list("")) == ["w", "x/y", "x/z/empty"]
    assert sorted(store.list("x/")) == ["x/y", "x/z/empty"]
    assert [*store.list("nothing/")] == []


def test_a_name_in_a_folder_comes_after_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    store.put("k", b"old")

    def die(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(OSError, match="No space"):
        store.put("k", b"new content")
    assert store.get("k") == b"old"
    assert [*store.list("")] == ["k"], "what was begun is no name"


def test_one_backup_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    store, other = FolderStore(tmp_path / "b"), FolderStore(tmp_path / "b")
    with store.alone():
        store.put("k", b"v")
        with pytest.raises(Conflict, match="another backup under way"), other.alone():
            pass
        assert [*store.list("")] == ["k"]
    (tmp_path / "b" / "k.99.tmp").write_bytes(b"left by one that was killed")
    with other.alone():
        assert sorted(os.listdir(tmp_path / "b")) == ["LOCK", "k"]
    with object_store().alone():
        pass


def test_a_word_of_the_command_line_is_a_folder_or_a_url(tmp_path: Path) -> None:
    for word in (str(tmp_path / "b"), f"file://{tmp_path / 'b'}"):
        store = open_store(word)
        store.put("k", b"v")
        assert (tmp_path / "b" / "k").read_bytes() == b"v"
    pytest.importorskip("obstore")
    with pytest.raises(InvalidRequest, match="expected the URL of an object store"):
        open_store("nonsense://bucket")


def test_an_object_store_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = object_store()
    exceptions = pytest.importorskip("obstore.exceptions")

    def fail(*_: object) -> None:
        raise exceptions.GenericError("no route to it\nDebug source: …")

    monkeypatch.setattr("obstore.put", fail)
    with pytest.raises(Unavailable, match="k: no route to it") as error:
        store.put("k", b"")
    assert "\n" not in error.value.message
