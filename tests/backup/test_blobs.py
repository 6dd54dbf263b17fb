"""Files in a destination: written once, gone on with after an interruption, never wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from shardnode.backup import blobs
from shardnode.backup.blobs import WrongContent, has_file, keep_file, read_file
from shardnode.backup.format import file_key
from shardnode.backup.store import FolderStore
from shardnode.storage.manifest import SnapshotFile
from shardnode.wire.errors import Corrupt, Unavailable


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PART_BYTES", 100)


def described(data: bytes, name: str = "keys") -> SnapshotFile:
    return SnapshotFile(name, len(data), xxh3_64_intdigest(data))


def content(size: int, seed: int) -> bytes:
    draw = random.Random(seed)
    return draw.randbytes(size)


class Sender:
    """Gives a file in pieces, and notes where it was asked to begin."""

    def __init__(self, data: bytes, fails_at: int | None = None) -> None:
        self.data, self.fails_at = data, fails_at
        self.asked: list[int] = []

    def __call__(self, offset: int) -> Iterator[bytes]:
        self.asked.append(offset)
        for start in range(offset, len(self.data), 30):
            if self.fails_at is not None and start >= self.fails_at:
                raise Unavailable("gone")
            yield self.data[start : start + 30]


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 1_234])
def test_what_is_kept_is_read_back(tmp_path: Path, size: int) -> None:
    store, data = FolderStore(tmp_path), content(size, size)
    file = described(data)
    assert not has_file(store, 0, file)
    keep_file(store, 0, file, Sender(data))
    assert has_file(store, 0, file)
    assert b"".join(read_file(store, 0, file)) == data
    assert not has_file(store, 1, file), "each shard has its own"


@pytest.mark.parametrize("fails_at", [0, 60, 120, 500, 1_190])
def test_an_interrupted_file_goes_on_behind_its_last_whole_part(
    tmp_path: Path, fails_at: int
) -> None:
    store, data = FolderStore(tmp_path), content(1_234, 1)
    file = described(data)
    with pytest.raises(Unavailable):
        keep_file(store, 0, file, Sender(data, fails_at))
    assert not has_file(store, 0, file)
    sender = Sender(data)
    keep_file(store, 0, file, sender)
    assert sender.asked == [-(-fails_at // 30) * 30 // 100 * 100]
    assert b"".join(read_file(store, 0, file)) == data


def test_parts_that_are_wrong_are_found_before_the_file_counts(tmp_path: Path) -> None:
    store, data = FolderStore(tmp_path), content(1_000, 1)
    file = described(data)
    with pytest.raises(Unavailable):
        keep_file(store, 0, file, Sender(data, 500))
    part = f"{file_key(0, file)}/000002"
    store.put(part, bytes(100))
    with pytest.raises(WrongContent):
        keep_file(store, 0, file, Sender(data))
    assert not has_file(store, 0, file)
    keep_file(store, 0, file, Sender(data), afresh=True)
    assert b"".join(read_file(store, 0, file)) == data


@pytest.mark.parametrize("size", [50, 500])
def test_wrong_content_never_gets_the_name(tmp_path: Path, size: int) -> None:
    store, data = FolderStore(tmp_path), content(size, 1)
    file = described(data)
    for wrong in (data[:-1], data[:-1] + b"?", b""):
        with pytest.raises(WrongContent):
            keep_file(store, 0, file, Sender(wrong), afresh=True)
        assert not has_file(store, 0, file)


@pytest.mark.parametrize("size", [50, 500])
def test_damage_is_named(tmp_path: Path, size: int) -> None:
    store, data = FolderStore(tmp_path), content(size, 1)
    file = described(data)
    keep_file(store, 0, file, Sender(data))
    names = [key for key in store.list("") if not key.endswith("whole")]
    for key in names:
        sound = store.get(key)
        for broken in (sound[:-1], sound[:-1] + bytes([sound[-1] ^ 4])):
            store.put(key, broken)
            with pytest.raises(Corrupt, match=file_key(0, file)):
                list(read_file(store, 0, file))
        (tmp_path / key).unlink()
        with pytest.raises(Corrupt, match=f"{key}: it is missing"):
            list(read_file(store, 0, file))
        store.put(key, sound)
    assert b"".join(read_file(store, 0, file)) == data
