"""A replica does what consensus asks for in the right order, and comes back from every crash."""

from __future__ import annotations

from collections import Counter

import pytest

from shardnode.raft import Entry, NotLeader, Refused
from shardnode.shard.acks import Threshold
from shardnode.shard.replica import LAZY_ENTRIES, Fate, Request
from shardnode.shard.transfer import Piece, Pull
from shardnode.sim.machine import KV_PARTITION
from shardnode.storage.errors import LogDamaged
from tests.shard.kit import CLUSTER, OPEN, Group, Host, put


def test_write_is_answered_once_it_is_on_a_quorum_and_everyone_applies_it() -> None:
    group = Group(3)
    outcomes = group.propose(OPEN, put(1))
    assert [outcome.fate for outcome in outcomes] == [Fate.APPLIED, Fate.APPLIED]
    group.run(200)
    assert {host.machine.get(b"k")[0] for host in group.hosts.values()} == {b"v"}


def test_write_without_a_quorum_is_not_answered() -> None:
    group = Group(3)
    group.propose(OPEN)
    leader = group.leader()
    group.blocked |= set(group.hosts) - {leader.member}
    assert group.propose(put(1)) == []


def test_one_batch_costs_one_fsync_of_the_log() -> None:
    group = Group(1)
    group.propose(OPEN)
    log = group.leader().up.log
    synced, sync, syncs = log.durable_index, log.sync, 0

    def counted() -> None:
        nonlocal syncs
        syncs += 1
        sync()

    log.sync = counted  # type: ignore[method-assign]
    group.propose(*(put(sequence) for sequence in range(1, 6)))
    assert log.durable_index == synced + 5
    assert syncs == 1


def test_partition_numbers_are_dense_across_a_change_of_leader() -> None:
    group = Group(3)
    group.propose(OPEN, put(1), put(2))
    old = group.leader()
    old.crash()
    group.propose(put(3), put(4))
    old.boot()
    group.run(500)
    assert {host.machine.partition_indexes[KV_PARTITION] for host in group.hosts.values()} == {5}


def test_follower_refuses_proposals_and_names_the_leader() -> None:
    group = Group(3)
    leader = group.leader()
    group.run(100)
    follower = next(host for host in group.hosts.values() if host is not leader)
    with pytest.raises(NotLeader) as caught:
        follower.up.propose([Request(1, KV_PARTITION, b"")])
    assert caught.value.leader == leader.member


def test_proposals_that_another_leader_replaced_are_reported_as_lost() -> None:
    group = Group(3)
    group.propose(OPEN)
    old = group.leader()
    group.blocked = {old.member}
    old.up.propose([Request(99, KV_PARTITION, b"never")])
    old.pump()
    group.mail.clear()
    group.run(400)
    group.propose(put(1))
    group.blocked = set()
    group.run(700)
    fates = {outcome.token: outcome.fate for outcome in old.outcomes}
    assert fates[99] is Fate.LOST


def test_everything_acknowledged_survives_a_power_loss_of_all() -> None:
    group = Group(3, flush_every_entries=2, snapshot_every_entries=7, keep_entries=2)
    group.propose(OPEN)
    for sequence in range(1, 30):
        group.propose(put(sequence, b"k%d" % sequence))
    for host in group.hosts.values():
        host.crash()
        host.boot()
    group.leader()
    group.run(1000)
    for host in group.hosts.values():
        assert all(host.machine.get(b"k%d" % each)[0] == b"v" for each in range(1, 30))


def test_repeat_after_a_crash_gets_the_first_reply() -> None:
    group = Group(1, snapshot_every_entries=3, keep_entries=0)
    group.propose(OPEN)
    (first,) = group.propose(put(1))
    host = group.hosts[1]
    host.crash()
    host.boot()
    (again,) = group.propose(put(1))
    assert again.reply == first.reply
    assert again.index > first.index


def test_lagging_member_is_brought_up_by_a_snapshot() -> None:
    group = Group(3, snapshot_every_entries=10, keep_entries=0)
    group.propose(OPEN)
    leader = group.leader()
    behind = next(host for host in group.hosts.values() if host is not leader)
    group.blocked = {behind.member}
    for sequence in range(1, 60):
        group.propose(put(sequence, b"k%d" % sequence, b"v" * 50))
    assert leader.up.log.anchor.index > behind.up.log.last_index
    group.blocked = set()
    group.run(2000)
    assert behind.machine.state() == group.leader().machine.state()
    assert behind.up.snapshots.list()


def test_snapshot_that_went_bad_at_the_leader_is_noticed_and_made_anew() -> None:
    group = Group(3, snapshot_every_entries=10, keep_entries=0)
    group.propose(OPEN)
    leader = group.leader()
    behind = next(host for host in group.hosts.values() if host is not leader)
    group.blocked = {behind.member}
    for sequence in range(1, 60):
        group.propose(put(sequence, b"k%d" % sequence, b"v" * 50))
    newest = max(meta.index for meta in leader.up.snapshots.list())
    leader.files.flip_bit(f"shard-0/snapshots/{newest:020}/keys")
    group.blocked = set()
    group.run(4000)
    assert behind.up.counters["snapshot_corrupt"] == 1
    assert leader.up.counters["snapshot_damaged"] == 1
    assert behind.machine.state() == leader.machine.state()


def test_strangers_pieces_and_pulls_are_dropped_and_counted() -> None:
    replica = Group(1).hosts[1].up
    replica.receive(Pull(CLUSTER + 1, 2, 1, 5, 0, 10))
    replica.receive(Piece(CLUSTER, 2, 9, 5, 0, b"x"))
    replica.receive(Piece(CLUSTER, 2, 1, 5, 0, b"x"))
    assert replica.counters == Counter(stranger=2, stale_piece=1)


def test_full_disk_refuses_writes_serves_reads_and_recovers() -> None:
    group = Group(1)
    group.propose(OPEN, put(1))
    host = group.leader()
    host.files.fail_after(0, "enospc")
    (outcome,) = group.propose(put(2))
    assert outcome.fate is Fate.LOST
    host.up.read(7)
    host.pump()
    assert [grant.context for grant in host.up.reads] == [7]
    for _ in range(200):
        group.run(20)
        try:
            (outcome,) = group.propose(put(3))
        except Refused:
            continue
        break
    assert outcome.fate is Fate.APPLIED


def salvaged() -> Group:
    """A group whose member 1 has an old version of index 10 in the part that survives damage."""
    group = Group(3)
    group.leader()
    group.run(200)
    host = group.hosts[1]
    log = host.up.log
    first = log.last_index + 1
    term = log.last_term
    old = [Entry(index, term, KV_PARTITION, index, b"old") for index in range(first, first + 6)]
    new = [e._replace(term=term + 1, payload=b"new" * 40) for e in old[3:]]
    log.append_batch(old, first - 1)
    log.sync()
    for entry in (*new, *(e._replace(index=e.index + 3) for e in new)):
        log.append_batch([entry], 0)
        log.sync()
    return group


def test_what_a_damaged_log_still_holds_is_not_taken_for_committed() -> None:
    """The intact part may end in what was overridden: watermarks of the lost part mean nothing."""
    group = salvaged()
    host = group.hosts[1]
    state = host.up.superblock.state
    assert state is not None
    last = host.up.log.last_index
    host.up.superblock.store(
        type(state)(state.cluster, state.member, state.term + 1, 0, last, 0, False)
    )
    proven = host.up.log.commit_watermark
    path = "shard-0/log/00000000000000000001.seg"
    assert host.files.exists("shard-0/log/00000000000000000002.seg")
    size = host.files.open(path).size()
    host.crash()
    data = host.files.open(path).pread(size, 0)
    host.files.flip_bit(path, data.index(b"new"))
    replica = host.boot()
    assert replica.raft.recovering
    assert replica.log.last_index < last
    assert replica.raft.commit_index <= max(proven, replica.log.commit_watermark)


def test_damage_without_peers_refuses_to_boot() -> None:
    group = Group(1)
    group.propose(OPEN)
    for sequence in range(1, 40):
        group.propose(put(sequence, b"k", b"v" * 60))
    host = group.hosts[1]
    host.crash()
    host.files.flip_bit("shard-0/log/00000000000000000001.seg", 300)
    with pytest.raises(LogDamaged, match=r"00000000000000000001\.seg"):
        host.boot()


def test_effects_ahead_of_a_lost_log_stay_as_they_are_stored_until_it_has_caught_up() -> None:
    """Nobody knows the configuration at their index until the log has it again."""
    group = Group(3, flush_every_entries=1)
    group.propose(OPEN, put(1), put(2), put(3))
    group.run(200)
    leader = group.leader()
    host = next(host for host in group.hosts.values() if host is not leader)
    host.crash()
    for name in host.files.listdir("shard-0/log"):
        host.files.remove(f"shard-0/log/{name}")
    host.files.sync_dir("shard-0/log")
    stored = host.machine.membership
    replica = host.boot()
    assert replica.raft.recovering
    assert replica.catching_up
    flushes = 0

    def counted(_: bytes) -> None:
        nonlocal flushes
        flushes += 1

    host.machine.flush = counted  # type: ignore[method-assign, assignment]
    replica.pump()
    replica.close()
    assert (flushes, host.machine.membership) == (0, stored)


def test_those_who_wait_for_a_leader_that_lost_its_group_hear_that_nobody_knows() -> None:
    group = Group(3)
    group.propose(OPEN)
    leader = group.leader()
    group.blocked |= set(group.hosts) - {leader.member}
    group.propose(put(1))
    leader.outcomes.clear()
    group.run(3_000)
    assert [outcome.fate for outcome in leader.outcomes] == [Fate.UNKNOWN]


def test_follower_that_is_busy_applies_later_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    group.propose(OPEN)
    follower = next(host for host in group.hosts.values() if host is not group.leader())
    pump = follower.up.pump
    monkeypatch.setattr(follower.up, "pump", lambda: pump(lazy=True))
    before = follower.machine.applied_index
    group.propose(put(1))
    group.run(200)
    assert follower.up.lingers is True
    assert follower.machine.applied_index == before
    for sequence in range(2, 2 + LAZY_ENTRIES):
        group.propose(put(sequence))
    assert follower.machine.applied_index > before
    group.run(200)
    pump()
    assert follower.up.raft.applied_index == follower.up.raft.commit_index
    assert follower.machine.get(b"k")[0] == b"v"


def with_one_cut_off() -> tuple[Group, Host]:
    """A group whose leader wants all three to hold a write, and one of them hears nobody."""
    group = Group(3)
    group.propose(OPEN)
    leader = group.leader()
    leader.up.follow(KV_PARTITION, Threshold(3))
    group.blocked = {next(member for member in group.hosts if member != leader.member)}
    return group, leader


def test_partition_that_asks_for_all_members_is_answered_when_all_hold_it() -> None:
    group, leader = with_one_cut_off()
    assert group.propose(put(1)) == []
    assert leader.machine.get(b"k")[0] == b"v"
    group.blocked = set()
    leader.outcomes.clear()
    group.run(2_000)
    assert [outcome.fate for outcome in leader.outcomes] == [Fate.APPLIED]


def test_reply_that_was_held_back_is_unknown_when_leadership_ends() -> None:
    group, leader = with_one_cut_off()
    group.propose(put(1))
    leader.outcomes.clear()
    group.blocked = {leader.member}
    group.run(2_000)
    assert [outcome.fate for outcome in leader.outcomes] == [Fate.UNKNOWN]
