"""The log in chunks: whole records, each of them proven, whatever pieces they came in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shardnode.backup import chunks
from shardnode.backup.chunks import ChunkWriter, read_chunk, read_log
from shardnode.backup.format import Chunk, chunk_key
from shardnode.backup.store import FolderStore
from shardnode.shard.entries import encode_entry
from shardnode.storage.errors import Corrupt as BadRecords
from shardnode.storage.records import ORIGIN, Anchor, Record, encode_body
from shardnode.wire.errors import Corrupt
from shardnode.wire.placement import KEY_VALUE_PARTITION, RAFT_PARTITION


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 500)


def record(index: int, seed: int = 0) -> Record:
    draw = random.Random(index * 31 + seed)
    if index % 7 == 1:
        return Record(index, 1 + index // 20, RAFT_PARTITION, index, b"")
    payload = encode_entry(1_000 + index, 2, draw.randbytes(draw.randrange(200)))
    return Record(index, 1 + index // 20, KEY_VALUE_PARTITION, index, payload)


def as_bytes(records: list[Record], previous: Anchor) -> bytes:
    body = encode_body(records, previous, max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
    return b"".join(map(bytes, body.buffers))


RECORDS = [record(index) for index in range(1, 61)]
LOG = as_bytes(RECORDS, ORIGIN)


def stored(store: FolderStore, data: bytes, start: Anchor, piece: int = 64) -> list[Chunk]:
    """As a backup does it: read on behind each chunk."""
    found: list[Chunk] = []
    position = start
    while data:
        writer = ChunkWriter(position)
        for at in range(0, len(data), piece):
            writer.take(data[at : at + piece])
            if writer.is_full:
                break
        chunk = writer.store(store, 0)
        found.append(chunk)
        position = writer.position
        data = data[chunk.size :]
    return found


@pytest.mark.parametrize("piece", [1, 47, 64, 1_000, 100_000])
def test_chunks_hold_the_records_whatever_pieces_they_came_in(tmp_path: Path, piece: int) -> None:
    store = FolderStore(tmp_path)
    found = stored(store, LOG, ORIGIN, piece)
    assert [chunk.first for chunk in found[1:]] == [chunk.last + 1 for chunk in found[:-1]]
    records = [proven.record for proven in read_log(store, 0, found, ORIGIN)]
    assert records == RECORDS
    for chunk in found:
        stamps = [1_000 + i for i in range(chunk.first, chunk.last + 1) if i % 7 != 1]
        assert (chunk.stamp_first_ms, chunk.stamp_last_ms) == (stamps[0], stamps[-1])


def test_the_same_log_gives_the_same_names(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    first = stored(store, LOG, ORIGIN)
    before = {key: (tmp_path / key).stat().st_mtime_ns for key in store.list("")}
    assert stored(store, LOG, ORIGIN, piece=17) == first
    assert {key: (tmp_path / key).stat().st_mtime_ns for key in store.list("")} == before


def test_a_log_can_be_read_from_inside_of_a_chunk_and_over_overlapping_ones(
    tmp_path: Path,
) -> None:
    store = FolderStore(tmp_path)
    proven = list(read_log(store, 0, stored(store, LOG, ORIGIN), ORIGIN))
    middle = proven[24].position
    start = proven[9].position
    ends = [each.position for each in proven]
    offset = len(as_bytes(RECORDS[:10], ORIGIN))
    overlapping = stored(store, LOG[offset:], start)
    whole = [*stored(store, LOG, ORIGIN)[:3], *overlapping]
    path = sorted(whole, key=lambda chunk: chunk.last)
    found = list(read_log(store, 0, path, middle))
    assert [each.record for each in found] == RECORDS[25:]
    assert [each.position for each in found] == ends[25:]


def test_another_history_is_never_mixed_in(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    ours = stored(store, LOG, ORIGIN)
    others = stored(store, as_bytes([record(i, seed=1) for i in range(1, 61)], ORIGIN), ORIGIN)
    mixed = [*ours[:2], *[chunk for chunk in others if chunk.last > ours[1].last]]
    with pytest.raises(Corrupt, match=r"history|continue"):
        list(read_log(store, 0, mixed, ORIGIN))
    with pytest.raises(Corrupt, match="history"):
        list(read_log(store, 0, ours, Anchor(3, 1, 12345)))
    with pytest.raises(BadRecords):
        ChunkWriter(Anchor(0, 0, 99)).take(LOG)


def test_damage_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    chunk = stored(store, LOG, ORIGIN)[1]
    key = chunk_key(0, chunk)
    sound = store.get(key)
    draw = random.Random(3)
    cases = [sound[:-1], sound + b"x", b"", sound[:-1] + b"?"]
    for _ in range(50):
        place = draw.randrange(len(sound))
        cases.append(
            sound[:place] + bytes([sound[place] ^ 1 << draw.randrange(8)]) + sound[place + 1 :]
        )
    for broken in cases:
        if broken == sound:
            continue
        store.put(key, broken)
        with pytest.raises(Corrupt, match=key):
            list(read_chunk(store, 0, chunk))
    (tmp_path / key).unlink()
    with pytest.raises(Corrupt, match=f"{key}: it is missing"):
        list(read_chunk(store, 0, chunk))
