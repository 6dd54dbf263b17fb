"""What a restart may believe: the recovery rules, one by one, on a whole shard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage.errors import (
    Corrupt,
    IdentityMismatch,
    LogDamaged,
    SnapshotCorrupt,
    SuperblockUnreadable,
)
from shardnode.storage.options import Opened
from shardnode.storage.records import Anchor
from shardnode.storage.recovery import Recovered, recover
from shardnode.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    decode_segment_header,
    load_index,
)
from shardnode.storage.snapshots import SnapshotStore
from shardnode.storage.superblock import COPIES, SuperblockState
from tests.storage.kit import (
    NEW_FILES,
    OLD_FILES,
    SHARD,
    TINY,
    batches_in,
    chain_of,
    contents,
    crash_at_every_operation,
    disk,
    overwrite,
    position,
    read_all,
    record,
    run,
    segments,
    snapshot_contents,
    tree,
    write_snapshot,
)


def boot(files: SimFiles, *, salvage: bool = False) -> Recovered:
    return recover(files, SHARD, cluster=1, member=2, options=TINY, salvage=salvage)


def state(shard: Recovered) -> SuperblockState:
    assert shard.superblock.state is not None
    return shard.superblock.state


def shard_with(files: SimFiles, last: int, *, commit: int = 0, term: int = 1) -> Recovered:
    """A shard of `last` synced records, three to a batch, and this in its superblock."""
    shard = boot(files)
    for first in range(1, last + 1, 3):
        shard.log.append_batch(run(first, min(first + 2, last)))
        shard.log.sync()
    shard.superblock.store(replace(state(shard), term=term, vote=2, commit=commit))
    return shard


def test_journaled_is_not_committed() -> None:
    """C1: however far the log reaches, the commit index is the watermark that was stored."""
    files = disk()
    shard_with(files, 20, commit=4)
    files.crash()
    shard = boot(files)
    assert (shard.log.last_index, shard.commit) == (20, 4)
    files = disk()
    shard_with(files, 20)
    assert boot(files).commit == 0, "a group of one is no exception"


def test_the_watermark_may_come_from_the_log_and_is_never_ahead_of_it() -> None:
    """C1: batches carry a lower bound too; the higher of the stored ones counts."""
    files = disk()
    shard = shard_with(files, 9, commit=2)
    shard.log.append_batch(run(10, 11), commit=7)
    assert boot(files).commit == 7
    files.crash()
    assert boot(files).commit in (2, 7)
    shard = boot(files)
    shard.superblock.store(replace(state(shard), commit=9))
    assert boot(files).commit == 9


def test_a_restart_that_loses_power_again_and_again_believes_the_same() -> None:
    """C1: booting itself writes, and must not be able to spoil anything."""

    def check(files: SimFiles, _: bool) -> None:
        shard = boot(files)
        assert (shard.commit, state(shard).term, state(shard).vote) == (8, 3, 2)
        assert contents(shard.log) == run(1, 20)
        assert not shard.first_boot

    def build(files: SimFiles) -> None:
        shard_with(files, 20, commit=8, term=3)

    crash_at_every_operation(build, lambda files: boot(files), check)


def test_a_first_boot_that_loses_power_is_repeated_as_if_nothing_had_been() -> None:
    """C1, C3: at every operation there is either nothing, or a shard that boots."""

    def check(files: SimFiles, _: bool) -> None:
        shard = boot(files)
        assert (shard.commit, contents(shard.log), state(shard).term) == (0, [], 0)
        shard.log.append_batch(run(1, 2))
        shard.log.sync()
        files.crash()
        assert contents(boot(files).log) == run(1, 2)

    crash_at_every_operation(lambda _: None, lambda files: boot(files), check)


def test_a_term_found_in_the_log_is_not_a_confirmed_one() -> None:
    """C2: entries of term 9 were written here; nobody confirmed more than the stored term 3."""
    files = disk()
    shard = shard_with(files, 4, term=3)
    shard.log.append_batch(run(5, 6, term=9))
    shard.log.sync()
    files.crash()
    shard = boot(files)
    assert shard.log.last_term == 9
    assert (state(shard).term, state(shard).vote, shard.commit) == (3, 2, 0)


def test_an_absent_superblock_is_a_first_boot_once() -> None:
    """C3, first state."""
    files = disk()
    shard = boot(files)
    assert shard.first_boot
    assert shard.log.recovery.kind is Opened.CREATED
    files.crash()
    assert not boot(files).first_boot


@pytest.mark.parametrize("bad", COPIES)
def test_one_whole_superblock_copy_boots(bad: str) -> None:
    """C3, second state."""
    files = disk()
    shard_with(files, 4, commit=3, term=5)
    files.flip_bit(f"{SHARD}/{bad}")
    shard = boot(files)
    assert (state(shard).term, shard.commit, shard.first_boot) == (5, 3, False)


@pytest.mark.parametrize("salvage", [False, True])
def test_an_unreadable_superblock_refuses_to_boot(salvage: bool) -> None:
    """C3, third state; failure 6. Not even a salvage may guess a vote, and all files stay."""
    files = disk()
    shard_with(files, 4)
    for name in COPIES:
        files.flip_bit(f"{SHARD}/{name}")
    before = tree(files, SHARD)
    with pytest.raises(SuperblockUnreadable, match="must not boot"):
        boot(files, salvage=salvage)
    assert tree(files, SHARD) == before


@pytest.mark.parametrize("what", ["log", "snapshot", "damaged snapshot"])
def test_a_missing_superblock_beside_data_is_unreadable_and_not_absent(what: str) -> None:
    """C3: both copies gone is no first boot when there is something to forget."""
    files = disk()
    if what == "log":
        shard_with(files, 4)
        for name in COPIES:
            files.remove(f"{SHARD}/{name}")
    else:
        write_snapshot(SnapshotStore(files, SHARD), 4, OLD_FILES)
        if what == "damaged snapshot":
            files.flip_bit(f"{SHARD}/snapshots/{4:020}/manifest")
    before = tree(files, SHARD)
    with pytest.raises(SuperblockUnreadable, match="no superblock"):
        boot(files)
    assert tree(files, SHARD) == before


def test_the_chain_continues_across_a_snapshot() -> None:
    """C4: after the front is gone, the next record still links to the snapshot's checksum."""
    files = disk()
    shard = shard_with(files, 40, commit=30)
    covered = position(shard.log, 30)
    assert covered.chain == chain_of(0, run(1, 30))
    meta = write_snapshot(shard.snapshots, *covered[:1], OLD_FILES, covered.term, covered.chain)
    shard.log.truncate_front(30)
    first = shard.log.first_index
    assert 1 < first <= 31
    files.crash()
    shard = boot(files)
    assert (shard.snapshot, shard.log_was_reset, shard.log.first_index) == (meta, False, first)
    assert shard.log.anchor == Anchor(first - 1, 1, chain_of(0, run(1, first - 1)))
    assert shard.log.chain(30) == meta.chain
    shard.log.append_batch(run(41, 42))
    assert shard.log.chain(42) == chain_of(meta.chain, run(31, 42)) == chain_of(0, run(1, 42))


def test_the_chain_continues_after_an_installed_snapshot() -> None:
    """C4: a log that was reset to a snapshot begins with that snapshot's position."""
    files = disk()
    shard = shard_with(files, 5, commit=5)
    write_snapshot(shard.snapshots, 100, NEW_FILES, term=7, chain=4242)
    shard.log.reset(Anchor(100, 7, 4242))
    shard.log.append_batch(run(101, 103, term=8))
    shard.log.sync()
    files.crash()
    shard = boot(files)
    assert (shard.log.anchor, shard.commit) == (Anchor(100, 7, 4242), 100)
    assert shard.log.chain(103) == chain_of(4242, run(101, 103, term=8))


def test_a_snapshot_of_another_history_is_refused() -> None:
    """C4: one (index, term) has one chain; a different one is two histories in one directory."""
    files = disk()
    shard = shard_with(files, 10, commit=8)
    write_snapshot(shard.snapshots, 8, OLD_FILES, term=1, chain=666)
    with pytest.raises(Corrupt, match="two histories"):
        boot(files)


def test_an_installation_that_loses_power_is_finished_at_boot() -> None:
    """C4: the snapshot is published and the log not yet reset, or at any other point."""

    def build(files: SimFiles) -> None:
        shard_with(files, 20, commit=10)

    def install(files: SimFiles) -> None:
        shard = boot(files)
        write_snapshot(shard.snapshots, 100, NEW_FILES, term=7, chain=4242)
        shard.log.reset(Anchor(100, 7, 4242))

    def check(files: SimFiles, completed: bool) -> None:
        shard = boot(files)
        if shard.snapshot is None:
            assert not completed
            assert (contents(shard.log), shard.commit) == (run(1, 20), 10)
        else:
            assert snapshot_contents(shard.snapshots, shard.snapshot) == NEW_FILES
            assert (shard.log.anchor, shard.commit) == (Anchor(100, 7, 4242), 100)
        files.crash()
        assert boot(files).log.anchor == shard.log.anchor

    crash_at_every_operation(build, install, check)


def test_an_unsound_snapshot_does_not_replace_the_log() -> None:
    """C4, failure 6: before the log is given up for it, all of the snapshot is read."""
    files = disk()
    shard = shard_with(files, 20, commit=10)
    write_snapshot(shard.snapshots, 100, NEW_FILES, term=7, chain=4242)
    files.flip_bit(f"{SHARD}/snapshots/{100:020}/keys")
    before = {path: read_all(files, path) for path in segments(files)}
    with pytest.raises(SnapshotCorrupt):
        boot(files)
    assert {path: read_all(files, path) for path in segments(files)} == before


def entries(files: SimFiles, path: str) -> int:
    """How many entries the sparse index of a sealed segment has."""
    header = decode_segment_header(read_all(files, path)[:SEGMENT_HEADER_BYTES])
    index = load_index(files, Segment(header, path))
    assert index is not None
    return len(index)


def test_a_salvage_goes_on_without_the_unsound_snapshot_and_says_so() -> None:
    """C5, failure 6: the one before it serves, the log stays, and the member must not vote."""
    files = disk()
    shard = shard_with(files, 20, commit=10)
    older = write_snapshot(shard.snapshots, 5, OLD_FILES, *position(shard.log, 5)[1:])
    write_snapshot(shard.snapshots, 100, NEW_FILES, term=7, chain=4242)
    files.flip_bit(f"{SHARD}/snapshots/{100:020}/keys")
    shard = boot(files, salvage=True)
    assert (shard.snapshot, contents(shard.log)) == (older, run(1, 20))
    assert (state(shard).recovering, shard.log_was_reset, shard.commit) == (True, False, 5)
    assert [each.path for each in shard.snapshots.damaged] == [f"{SHARD}/snapshots/{100:020}"]


def test_validation_accepts_what_the_writer_writes() -> None:
    """C5: batches of all sizes, several to an index entry, several segments, with sidecars."""
    files = disk()
    shard = boot(files)
    sizes = [0, 1, 2, 3, 400, *[0] * 12, 2000, 5, 5, 5, 5, 700]
    records = [record(n + 1, 1 + n // 20, sizes[n % len(sizes)]) for n in range(90)]
    at = 0
    while batch := records[at : at + at % 3 + 1]:
        shard.log.append_batch(batch)
        at += len(batch)
    shard.log.sync()
    paths = segments(files)
    assert len(paths) > 5
    assert max(len(batches_in(files, path)) for path in paths) > 5
    sealed = [(len(batches_in(files, path)), entries(files, path)) for path in paths[:-1]]
    assert any(batches > indexed > 1 for batches, indexed in sealed)
    shard = boot(files)
    assert shard.log.recovery.kind is Opened.CLEAN
    assert contents(shard.log) == records
    for each in records:
        assert shard.log.read(each.index, each.index) == [each]


def test_a_torn_tail_is_cut_and_damage_below_the_durable_mark_is_not() -> None:
    """C5: the same spoiled batch, above the commit watermark and below it."""
    for commit, torn in [(9, True), (10, False), (12, False)]:
        files = disk()
        shard = shard_with(files, 9, commit=9)
        shard.log.append_batch(run(10, 12))
        shard.log.sync()
        shard.superblock.store(replace(state(shard), commit=commit))
        path = segments(files)[-1]
        last = batches_in(files, path)[-1]
        overwrite(files, path, last.end - 1, b"?")
        if torn:
            shard = boot(files)
            assert shard.log.recovery.kind is Opened.TORN
            assert (contents(shard.log), shard.commit) == (run(1, 9), 9)
            continue
        before = tree(files, f"{SHARD}/log")
        with pytest.raises(LogDamaged, match="repair this member from its peers") as refused:
            boot(files)
        assert (refused.value.path, refused.value.offset) == (path, last.offset)
        assert (refused.value.valid_through, refused.value.durable_mark) == (9, commit)
        assert tree(files, f"{SHARD}/log") == before


def damage(files: SimFiles) -> tuple[str, int]:
    """30 durable records of which those from 16 to 18 are spoiled; where that is."""
    shard_with(files, 30, commit=20, term=3)
    path = segments(files)[1]
    bad = batches_in(files, path)[1]
    assert bad.header.first == 16
    overwrite(files, path, bad.offset + 200, b"?")
    return path, bad.offset


def test_salvage_keeps_what_is_intact_sets_the_rest_aside_and_says_so() -> None:
    """C5: what was cut is in quarantine, whole, and the superblock forbids to vote."""
    files = disk()
    path, offset = damage(files)
    before = {each: read_all(files, each) for each in segments(files)}
    with pytest.raises(LogDamaged):
        boot(files)
    shard = boot(files, salvage=True)
    report = shard.log.recovery
    assert (report.kind, report.path, report.offset) == (Opened.SALVAGED, path, offset)
    assert report.first_lost_index == 16
    assert contents(shard.log) == run(1, 15)
    assert shard.commit == 0, "the watermark spoke of a log that is lost"
    assert state(shard).recovering
    assert (state(shard).term, state(shard).vote) == (3, 2)
    aside = {name.rpartition("/")[2]: read_all(files, name) for name in report.quarantined}
    assert aside == {name.rpartition("/")[2]: before[name] for name in segments_from(before, path)}
    files.crash()
    shard = boot(files)  # no salvage needed any more
    assert (contents(shard.log), state(shard).recovering) == (run(1, 15), True)
    shard.log.append_batch(run(16, 40, term=2))
    shard.log.sync()
    files.crash()
    assert contents(boot(files).log) == [*run(1, 15), *run(16, 40, term=2)]


def segments_from(before: dict[str, bytes], path: str) -> list[str]:
    return [each for each in before if each >= path]


def test_a_salvage_that_loses_power_never_leaves_a_log_that_looks_whole() -> None:
    """C5: at every operation the log is still known to be damaged, or `recovering` is set."""

    def check(files: SimFiles, completed: bool) -> None:
        try:
            shard = boot(files)
        except LogDamaged:
            assert not completed
            shard = boot(files, salvage=True)
        assert state(shard).recovering
        assert contents(shard.log) == run(1, 15)
        kept = [data for name, data in tree(files, f"{SHARD}/quarantine").items() if data]
        assert len(kept) >= 2, "the damaged segment and the one after it"

    crash_at_every_operation(damage, lambda files: boot(files, salvage=True), check)


def test_an_emptied_log_needs_repair() -> None:
    """Failure 7: the superblock knows that there was a log."""
    files = disk()
    shard_with(files, 4)
    files.remove_tree(f"{SHARD}/log")
    with pytest.raises(LogDamaged, match="the log was emptied"):
        boot(files)
    shard = boot(files, salvage=True)
    assert (contents(shard.log), state(shard).recovering, shard.commit) == ([], True, 0)
    assert state(shard).term == 1
    assert state(boot(files)).recovering


def test_a_log_emptied_right_after_the_first_boot_needs_repair() -> None:
    """Failure 7: nothing but the boot itself has stored anything, and that is enough."""
    files = disk()
    shard = boot(files)
    shard.log.append_batch(run(1, 3))
    shard.log.sync()
    files.remove_tree(f"{SHARD}/log")
    with pytest.raises(LogDamaged, match="the log was emptied"):
        boot(files)


def test_a_salvage_of_a_sound_log_changes_nothing() -> None:
    files = disk()
    shard_with(files, 30, commit=20)
    shard = boot(files, salvage=True)
    assert (contents(shard.log), shard.commit) == (run(1, 30), 20)
    assert not state(shard).recovering
    assert not files.exists(f"{SHARD}/quarantine")


@pytest.mark.parametrize(("cluster", "member", "what"), [(9, 2, "cluster"), (1, 9, "member")])
def test_another_owner_is_refused_and_both_are_named(cluster: int, member: int, what: str) -> None:
    files = disk()
    shard_with(files, 4)
    with pytest.raises(IdentityMismatch, match=f"belongs to {what}") as refused:
        recover(files, SHARD, cluster=cluster, member=member, options=TINY)
    assert refused.value.given == 9
    assert refused.value.stored in (1, 2)
