"""One bit, anywhere in any file: it is found and named, or it changes nothing that counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage.errors import (
    Corrupt,
    LogDamaged,
    SnapshotCorrupt,
    SuperblockUnreadable,
)
from shardnode.storage.options import Opened
from shardnode.storage.records import BATCH_HEADER_BYTES, Record
from shardnode.storage.recovery import recover
from shardnode.storage.segment import SEGMENT_HEADER_BYTES
from shardnode.storage.superblock import COPIES, SuperblockState
from tests.storage.kit import (
    OLD_FILES,
    SHARD,
    TINY,
    batches_in,
    contents,
    disk,
    disk_with,
    position,
    run,
    segments,
    snapshot_contents,
    tree,
    write_snapshot,
)

LAST = 30
SAMPLES = 500  # places per kind of bytes; all of them when there are fewer


class Held(NamedTuple):
    """All that a shard holds."""

    state: SuperblockState | None
    records: list[Record]
    snapshots: list[dict[str, bytes]]


def build(commit: int) -> SimFiles:
    """A shard with several segments, sidecars, a snapshot, and this commit watermark."""
    files = disk()
    shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
    for first in range(1, LAST, 3):
        shard.log.append_batch(run(first, first + 2))
        shard.log.sync()
    write_snapshot(shard.snapshots, 5, OLD_FILES, *position(shard.log, 5)[1:])
    assert shard.superblock.state is not None
    shard.superblock.store(replace(shard.superblock.state, term=3, vote=2, commit=commit))
    return files


def held(files: SimFiles) -> Held:
    """Boot, and read everything with every check there is."""
    shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
    for damaged in shard.snapshots.damaged:
        raise SnapshotCorrupt(damaged.detail, path=damaged.path)
    metas = shard.snapshots.list()
    found = [snapshot_contents(shard.snapshots, meta) for meta in metas]
    return Held(shard.superblock.state, contents(shard.log), found)


SOUND = build(commit=LAST)
IMAGE = tree(SOUND, "")
CONTENT = held(disk_with(IMAGE))
PATHS = segments(SOUND)
SNAPSHOT = f"{SHARD}/snapshots/{5:020}"


def places_of(kind: str) -> Iterator[tuple[str, int]]:
    """Every byte of one kind: the file, and where in it."""
    for path in PATHS:
        if kind == "segment header":
            yield from ((path, at) for at in range(SEGMENT_HEADER_BYTES))
        batches = batches_in(SOUND, path)
        for batch in batches:
            body = batch.offset + BATCH_HEADER_BYTES
            if kind == "batch header":
                yield from ((path, at) for at in range(batch.offset, body))
            elif kind == "record":
                yield from ((path, at) for at in range(body, batch.end))
        if kind == "zeros after the end":
            yield from ((path, at) for at in range(batches[-1].end, len(IMAGE[path])))
    whole = {
        "sidecar": [path for path in IMAGE if path.endswith(".idx")],
        "superblock copy": [f"{SHARD}/{name}" for name in COPIES],
        "manifest": [f"{SNAPSHOT}/manifest"],
        "snapshot data": [f"{SNAPSHOT}/{name}" for name in OLD_FILES],
    }
    for path in whole.get(kind, []):
        yield from ((path, at) for at in range(len(IMAGE[path])))


HARMLESS = ["zeros after the end", "sidecar", "superblock copy"]
DETECTED = ["segment header", "batch header", "record", "manifest", "snapshot data"]


def samples(kind: str) -> list[tuple[str, int]]:
    places = list(places_of(kind))
    assert len(places) > 50
    rng = random.Random(kind)
    chosen = rng.sample(places, min(SAMPLES, len(places)))
    return sorted({*chosen, places[0], places[-1]})


@pytest.mark.parametrize("kind", DETECTED)
def test_a_flipped_bit_is_found_and_the_file_is_named(kind: str) -> None:
    for number, (path, offset) in enumerate(samples(kind)):
        files = disk_with(IMAGE, seed=number)
        files.flip_bit(path, offset)
        spoiled = tree(files, "")
        try:
            found = held(files)
        except Corrupt as error:
            refused = error
        else:
            raise AssertionError(f"a flip at byte {offset} of {path} went unseen: {found}")
        if kind in ("manifest", "snapshot data"):
            assert isinstance(refused, SnapshotCorrupt)
            assert refused.path in (path, SNAPSHOT)
            assert path in str(refused)
        else:
            assert isinstance(refused, LogDamaged)
            assert refused.path == path
            assert refused.offset is not None
            assert refused.offset <= offset
            assert refused.first_bad_index == refused.valid_through + 1
        after = tree(files, "")
        assert {name: after[name] for name in spoiled} == spoiled, "evidence is left alone"


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_flipped_bit_where_it_cannot_matter_changes_nothing(kind: str) -> None:
    for number, (path, offset) in enumerate(samples(kind)):
        files = disk_with(IMAGE, seed=number)
        files.flip_bit(path, offset)
        assert held(files) == CONTENT, f"byte {offset} of {path}"


def test_a_flip_in_both_superblock_copies_is_unreadable() -> None:
    first, second = (samples_in_superblock(name) for name in COPIES)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        files = disk_with(IMAGE, seed=number)
        files.flip_bit(f"{SHARD}/{COPIES[0]}", one)
        files.flip_bit(f"{SHARD}/{COPIES[1]}", other)
        with pytest.raises(SuperblockUnreadable):
            held(files)


def samples_in_superblock(name: str) -> list[int]:
    rng = random.Random(name)
    return rng.sample(range(len(IMAGE[f"{SHARD}/{name}"])), 60)


@pytest.mark.parametrize("kind", ["batch header", "record"])
def test_a_flip_that_cannot_be_told_from_a_torn_write_is_reported_and_only_above_commit(
    kind: str,
) -> None:
    """The last batch, and nothing that proves it was durable: it is cut, and open says where."""
    image = tree(build(commit=20), "")
    last = batches_in(SOUND, PATHS[-1])[-1]
    cut = 0
    for number, (path, offset) in enumerate(samples(kind)):
        files = disk_with(image, seed=number)
        files.flip_bit(path, offset)
        if (path, offset) < (PATHS[-1], last.offset):
            with pytest.raises(LogDamaged):
                recover(files, SHARD, cluster=1, member=2, options=TINY)
            continue
        cut += 1
        shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
        report = shard.log.recovery
        assert (report.kind, report.path, report.offset) == (Opened.TORN, path, last.offset)
        assert contents(shard.log) == run(1, last.header.first - 1)
    assert cut > 3


def test_a_flip_met_by_a_reader_of_an_open_log_is_never_a_wrong_record() -> None:
    """A disk may lose a bit long after open: every read checks what it reads."""
    for number, (path, offset) in enumerate(samples("record") + samples("batch header")):
        files = disk_with(IMAGE, seed=number)
        log = recover(files, SHARD, cluster=1, member=2, options=TINY).log
        files.flip_bit(path, offset)
        refused: list[tuple[int, LogDamaged]] = []
        for index in range(1, LAST + 1):
            try:
                found = log.read(index, index)
            except LogDamaged as error:
                refused.append((index, error))
            else:
                assert found == run(index, index)
        assert len(refused) >= 3, "at least the records of its batch"
        for index, damage in refused:
            assert (damage.path, damage.first_bad_index) == (path, index)
