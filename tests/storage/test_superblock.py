"""Term and vote: never lost once stored, never guessed when they cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.errors import NoSpace, SuperblockUnreadable, SyncFailed
from shardnode.storage.superblock import (
    COPIES,
    SUPERBLOCK_BYTES,
    Superblock,
    SuperblockState,
    SuperblockStatus,
    encode_superblock,
)
from tests.storage.kit import SHARD, crash_at_every_operation, disk, overwrite, read_all

OLD = SuperblockState(1, 2, term=3, vote=2, commit=40, snapshot_index=30, recovering=False)
NEW = replace(OLD, term=4, vote=1, commit=45)
Damage = Callable[[SimFiles, str], None]
A, B = (f"{SHARD}/{name}" for name in COPIES)


def load(files: SimFiles) -> Superblock:
    return Superblock.load(files, SHARD)


def store(files: SimFiles, state: SuperblockState) -> None:
    load(files).store(state)


def spoil(files: SimFiles, path: str) -> None:
    files.flip_bit(path)


def remove(files: SimFiles, path: str) -> None:
    files.remove(path)
    files.sync_dir(SHARD)


def cut(files: SimFiles, path: str) -> None:
    file = files.open(path)
    file.truncate(SUPERBLOCK_BYTES - 1)
    file.datasync()


def test_a_store_that_loses_power_leaves_the_old_state_or_the_new() -> None:
    def check(files: SimFiles, completed: bool) -> None:
        found = load(files).state
        assert found == NEW if completed else found in (OLD, NEW)
        files.crash()
        assert load(files).state == found, "what was believed once must stay so"

    crash_at_every_operation(lambda files: store(files, OLD), lambda f: store(f, NEW), check)


def test_the_first_store_that_loses_power_leaves_nothing_or_the_state() -> None:
    def check(files: SimFiles, completed: bool) -> None:
        found = load(files).state
        assert found == OLD if completed else found in (None, OLD)

    crash_at_every_operation(lambda _: None, lambda files: store(files, OLD), check)


def test_term_and_vote_are_in_both_copies_when_store_returns() -> None:
    for lost in (A, B):
        files = disk()
        store(files, OLD)
        store(files, NEW)
        files.crash()
        files.flip_bit(lost)
        assert load(files).state == NEW


def test_no_copy_is_the_first_boot() -> None:
    superblock = load(disk())
    assert superblock.status is SuperblockStatus.ABSENT
    assert superblock.state is None


def test_two_good_copies_are_valid_and_the_newer_one_counts() -> None:
    for newer in (A, B):
        files = disk()
        store(files, OLD)
        assert load(files).status is SuperblockStatus.VALID
        overwrite(files, newer, 0, encode_superblock(NEW, sequence=9))
        superblock = load(files)
        assert (superblock.state, superblock.sequence) == (NEW, 9)
        assert read_all(files, A) == read_all(files, B) == encode_superblock(NEW, 9)


@pytest.mark.parametrize("damage", [spoil, remove, cut])
@pytest.mark.parametrize("bad", [A, B])
def test_one_good_copy_is_valid_and_repairs_the_other(bad: str, damage: Damage) -> None:
    files = disk()
    store(files, OLD)
    damage(files, bad)
    assert load(files).state == OLD
    files.crash()
    spoil(files, A if bad == B else B)
    assert load(files).state == OLD, "the copy that was bad has been made good, durably"


@pytest.mark.parametrize("first", [spoil, remove, cut])
@pytest.mark.parametrize("second", [spoil, cut])
def test_two_bad_copies_are_unreadable_and_nothing_is_changed(
    first: Damage, second: Damage
) -> None:
    """C3: one that exists and is not whole is never taken for absent."""
    files = disk()
    store(files, OLD)
    first(files, A)
    second(files, B)
    before = files.operations
    for _ in range(2):
        with pytest.raises(SuperblockUnreadable, match="must not boot") as refused:
            load(files)
        assert refused.value.path == A
        assert all(name in str(refused.value) for name in COPIES)
    assert files.operations == before


def test_two_copies_that_contradict_each_other_are_unreadable() -> None:
    files = disk()
    store(files, OLD)
    overwrite(files, B, 0, encode_superblock(replace(OLD, vote=1), sequence=1))
    with pytest.raises(SuperblockUnreadable, match="different content"):
        load(files)


def test_repair_that_loses_power_keeps_the_good_copy() -> None:
    def build(files: SimFiles) -> None:
        store(files, OLD)
        files.flip_bit(A)

    def check(files: SimFiles, _: bool) -> None:
        assert load(files).state == OLD

    crash_at_every_operation(build, lambda files: load(files), check)


def test_a_failed_fsync_ends_the_use_of_it() -> None:
    """Failure 8: what a failed fsync covered is unknown, and asking again would be a lie."""
    files = disk()
    store(files, OLD)
    superblock = load(files)
    files.fail_after(0, "fsync")
    with pytest.raises(SyncFailed):
        superblock.store(NEW)
    assert superblock.state == OLD
    with pytest.raises(SyncFailed, match="exit"):
        superblock.store(NEW)
    assert load(files).state in (OLD, NEW)


def test_a_full_disk_at_the_first_store_leaves_it_absent() -> None:
    """Failure 9, at the only moment when a superblock needs space."""
    files = disk()
    superblock = load(files)
    files.fail_after(0, "enospc")
    with pytest.raises(NoSpace):
        superblock.store(OLD)
    assert superblock.status is SuperblockStatus.ABSENT
    superblock.store(OLD)
    files.crash()
    assert load(files).state == OLD


@pytest.mark.parametrize(
    "state",
    [
        replace(OLD, term=2),
        replace(OLD, vote=1),
        replace(OLD, vote=0),
        replace(OLD, cluster=9),
        replace(OLD, member=9),
    ],
    ids=["term goes back", "second vote", "vote withdrawn", "other cluster", "other member"],
)
def test_what_may_never_be_stored_is_our_own_mistake(state: SuperblockState) -> None:
    files = disk()
    store(files, OLD)
    with pytest.raises(AssertionError):
        store(files, state)
    assert load(files).state == OLD


def test_nothing_works_while_the_power_is_gone() -> None:
    """The tests above rest on it: an operation after the crash point cannot slip through."""
    files = disk()
    superblock = load(files)
    files.fail_after(0, "crash")
    for _ in range(3):
        with pytest.raises(SimCrash):
            superblock.store(OLD)
