"""What `repair` does about each kind of damage, alone and among peers: nothing is removed, and
nothing is lost without a word."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode.offline.places import find_place
from shardnode.offline.repair import Plan, Remedy, make_plan, relative_path
from shardnode.offline.repair_do import carry_out
from shardnode.offline.verify import verify
from shardnode.raft import Entry, Membership
from shardnode.shard.boot import ReplicaSettings, boot
from shardnode.shard.effects import open_effects
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.files import ReadOnlyFiles, RealFiles
from shardnode.storage.superblock import Superblock
from shardnode.wire.errors import InvalidRequest
from tests.offline.kit import MEMBER, SEGMENTS, ShardWriter, flip, write_identity

PEERS = Membership.of([MEMBER, MEMBER + 1, MEMBER + 2])
SHARD = "shard-1"


@pytest.fixture
def among_peers(tmp_path: Path) -> Path:
    write_identity(tmp_path / "data")
    writer = ShardWriter(tmp_path / "data")
    writer.membership = PEERS.encode()
    writer.fill()
    writer.close()
    return tmp_path / "data"


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    write_identity(tmp_path / "data")
    writer = ShardWriter(tmp_path / "data")
    writer.fill()
    writer.close()
    return tmp_path / "data"


def plan_for(data: Path, path: Path) -> Plan:
    return make_plan(find_place(data), path.relative_to(data).as_posix())


def repair(data: Path, path: Path) -> Plan:
    plan = plan_for(data, path)
    moved = carry_out(data, plan)
    assert all((data / each).exists() for each in moved)
    return plan


def one(data: Path, pattern: str, place: int = 0) -> Path:
    return sorted((data / SHARD).glob(pattern))[place]


def spoil(path: Path) -> Path:
    flip(path, path.stat().st_size // 3)
    return path


def spoil_keys(data: Path) -> Path:
    """A value that is in use."""
    path = one(data, "kv/*/data.mdb")
    content = path.read_bytes()
    value = content.rindex(b"after the snapshot")
    flip(path, value + 2)
    return path


def quarantined(data: Path) -> set[str]:
    return {path.name for path in (data / SHARD / "quarantine").iterdir()}


def start(data: Path, bootstrap: Membership, *, repair: bool = False) -> tuple[int, bool, int]:
    """What a worker would find: (last index of the log, recovering, keys)."""
    effects = open_effects(str(data / SHARD), "lmdb", {})
    settings = ReplicaSettings(SHARD, 7, MEMBER, bootstrap, log=SEGMENTS, repair=repair)
    booted = boot(settings, RealFiles(data), effects)
    for first in range(effects.applied_index + 1, booted.commit + 1):
        effects.apply([Entry._make(*booted.log.read(first, first))])
    keys = sum(len(some) for some in effects.engine.scan(b"", None, reverse=False))
    last = booted.log.last_index
    effects.flush(bootstrap.encode())
    effects.close()
    booted.log.close()
    return last, booted.hard_state.recovering, keys


# -- what costs nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("superblock.a", "written again"),
        ("log/*3.idx", "makes it again"),
        ("snapshots/*/sessions", "does without"),
        ("snapshots/*/manifest", "does without"),
    ],
)
def test_file_that_can_be_spared_is_set_aside_alone(alone: Path, pattern: str, what: str) -> None:
    path = spoil(one(alone, pattern))
    plan = repair(alone, path)
    assert (plan.remedy, plan.lost) == (Remedy.SPARE, "")
    assert what in plan.then
    assert {path.name, path.parent.name} & quarantined(alone)
    assert verify(alone).is_sound
    assert start(alone, Membership.of([MEMBER]))[2] == 243
    assert verify(alone).is_sound


def test_members_are_taken_from_the_configuration_then(data: Path) -> None:
    path = spoil(data / "members.json")
    plan = repair(data, path)
    assert plan.remedy is Remedy.SPARE
    assert (data / "quarantine" / "members.json").exists()
    assert verify(data).is_sound


def test_keys_are_made_again_from_snapshot_and_log(alone: Path) -> None:
    path = spoil_keys(alone)
    assert not verify(alone).is_sound
    plan = repair(alone, path)
    assert (plan.remedy, plan.lost) == (Remedy.REMAKE, "")
    assert quarantined(alone) == {"kv", "partitions"}
    assert verify(alone).is_sound
    assert start(alone, Membership.of([MEMBER]))[2] == 243
    verdict = verify(alone)
    assert (verdict.is_sound, verdict.shards[0].partitions) == (True, 1)


def test_partition_is_made_again_with_its_keys(among_peers: Path) -> None:
    plan = repair(among_peers, spoil(one(among_peers, "partitions/*/*/*1-*.seg")))
    assert plan.remedy is Remedy.REMAKE
    assert start(among_peers, PEERS, repair=True) == (55, False, 243)
    assert verify(among_peers).is_sound


# -- what peers give back -------------------------------------------------------------------------


def cut_front(data: Path) -> None:
    """The log does not reach back to any snapshot, nor to the beginning."""
    shutil.rmtree(data / SHARD / "snapshots")
    for path in sorted((data / SHARD / "log").glob("*"))[:8]:
        path.unlink()
    assert verify(data).is_sound


def test_keys_that_only_peers_have_are_fetched_with_everything_else(among_peers: Path) -> None:
    cut_front(among_peers)
    plan = repair(among_peers, spoil_keys(among_peers))
    assert (plan.remedy, plan.lost) == (Remedy.REFETCH, "")
    assert quarantined(among_peers) == {"kv", "partitions", "log"}
    state = Superblock.load(RealFiles(among_peers), SHARD).state
    assert state is not None
    assert (state.term, state.vote) == (1, MEMBER)
    assert start(among_peers, PEERS, repair=True) == (0, True, 0)


def test_log_keeps_what_can_be_read_and_the_member_does_not_vote(among_peers: Path) -> None:
    path = spoil(one(among_peers, "log/*.seg", 6))
    plan = repair(among_peers, path)
    assert (plan.remedy, plan.lost) == (Remedy.SALVAGE, "")
    assert len(quarantined(among_peers)) > 3
    verdict = verify(among_peers)
    assert (verdict.is_sound, verdict.shards[0].recovering) == (True, True)
    last, recovering, _ = start(among_peers, PEERS, repair=True)
    assert (last < 55, recovering) == (True, True)


def test_log_that_was_emptied_is_fetched(among_peers: Path) -> None:
    shutil.rmtree(among_peers / SHARD / "log")
    plan = repair(among_peers, among_peers / SHARD / "log")
    assert plan.remedy is Remedy.SALVAGE
    assert verify(among_peers).shards[0].recovering


def test_member_without_a_superblock_joins_again(among_peers: Path) -> None:
    for name in ("superblock.a", "superblock.b"):
        spoil(among_peers / SHARD / name)
    plan = repair(among_peers, among_peers / SHARD / "superblock.b")
    assert (plan.remedy, plan.lost) == (Remedy.SPARE, "")
    assert not (among_peers / SHARD).exists()
    assert (among_peers / "quarantine" / SHARD / "log").exists()


def test_state_that_was_found_to_be_wrong_is_fetched(among_peers: Path) -> None:
    path = among_peers / SHARD / "fenced"
    path.write_text("another hash")
    assert repair(among_peers, path).remedy is Remedy.REFETCH
    assert "fenced" in quarantined(among_peers)
    assert verify(among_peers).is_sound


# -- what nobody gives back -----------------------------------------------------------------------


def test_log_of_a_single_node_ends_where_it_can_be_read(tmp_path: Path) -> None:
    """The keys are behind: what is in the sound part of the log is applied, the rest is lost."""
    data = tmp_path / "data"
    write_identity(data)
    writer = ShardWriter(data)
    writer.put({b"early": b"x"})
    writer.flush()
    for number in range(40):
        writer.put({b"%d" % number: bytes(400)})
    writer.close(clean=False)
    plan = repair(data, spoil(one(data, "log/*.seg", -2)))
    assert plan.remedy is Remedy.CUT
    assert f"entries after index {plan.log_end}, known to reach " in plan.lost
    assert verify(data).is_sound
    last, recovering, keys = start(data, Membership.of([MEMBER]))
    assert (last, recovering, 20 < last < 41) == (plan.log_end, False, True)
    assert keys == plan.log_end - 1, "the last one waits for an election, as after any start"


def test_log_of_a_single_node_goes_on_after_its_keys(alone: Path) -> None:
    """They hold everything: only the history is gone."""
    plan = repair(alone, spoil(one(alone, "log/*.seg", 2)))
    assert (plan.remedy, plan.log_end) == (Remedy.AFTER_KEYS, 55)
    assert "none is known of" in plan.lost
    assert verify(alone).is_sound
    assert start(alone, Membership.of([MEMBER])) == (55, False, 243)
    assert len(quarantined(alone)) > 5


def test_log_goes_on_from_the_snapshot_when_that_is_where_the_keys_are(tmp_path: Path) -> None:
    """One history, also for who fetches that snapshot."""
    write_identity(tmp_path / "data")
    writer = ShardWriter(tmp_path / "data")
    writer.fill()
    writer.snapshot()
    writer.close()
    repair(tmp_path / "data", spoil(one(tmp_path / "data", "log/*.seg", 2)))
    assert verify(tmp_path / "data").is_sound
    assert start(tmp_path / "data", Membership.of([MEMBER]))[0] == writer.index


def test_keys_of_a_single_node_that_nothing_covers_are_not_touched(alone: Path) -> None:
    cut_front(alone)
    path = spoil_keys(alone)
    with pytest.raises(InvalidRequest, match="expected peers to fetch from, found none"):
        plan_for(alone, path)
    assert path.exists()


def test_superblock_of_a_single_node_costs_everything(alone: Path) -> None:
    for name in ("superblock.a", "superblock.b"):
        spoil(alone / SHARD / name)
    plan = plan_for(alone, alone / SHARD / "superblock.a")
    assert plan.lost == "everything in it"


def test_log_and_keys_that_are_both_damaged_need_a_backup(alone: Path) -> None:
    spoil_keys(alone)
    path = spoil(one(alone, "log/*.seg", 2))
    with pytest.raises(InvalidRequest, match="restore it from a backup"):
        plan_for(alone, path)


# -- what is refused ------------------------------------------------------------------------------


def test_sound_file_is_not_touched(alone: Path) -> None:
    with pytest.raises(InvalidRequest, match="found nothing wrong with it"):
        plan_for(alone, one(alone, "log/*.seg"))


def test_identity_is_not_set_aside(data: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"write node\.json again"):
        plan_for(data, spoil(data / "node.json"))


def test_byte_behind_a_sealed_segment_needs_nothing(alone: Path) -> None:
    path = one(alone, "log/*.seg", 2)
    with path.open("ab") as file:
        file.write(b"\0\0\1")
    assert "nothing reads this byte" in verify(alone).damage[0].means
    assert repair(alone, path).remedy is Remedy.LEAVE
    assert path.exists()


def names(data: Path) -> Iterator[tuple[str, Path]]:
    name = "shard-1/superblock.a"
    yield name, data
    yield "superblock.a", data / "shard-1"
    yield str(data / name), data


def test_file_may_be_named_from_wherever_one_stands(data: Path) -> None:
    place = find_place(data)
    for name, directory in names(data):
        assert relative_path(place, name, directory) == "shard-1/superblock.a"
    missing = "shard-1/log/00000000000000000009.seg"
    assert relative_path(place, missing, data) == missing
    with pytest.raises(InvalidRequest, match="expected a file below"):
        relative_path(place, "/etc/passwd", data)


def test_what_keys_hold_can_be_read_without_lmdb(alone: Path) -> None:
    files = ReadOnlyFiles(alone)
    keys = OfflineKeys(files, f"{SHARD}/kv/00000000000000000001/data.mdb")
    assert (keys.index, keys.count) == (55, 243)
    keys.close()
