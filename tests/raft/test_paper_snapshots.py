"""Snapshots, rule by rule: paper, 7 and figure 13."""

from __future__ import annotations

from dataclasses import replace

from shardnode.raft import Membership, SnapshotRef
from shardnode.raft.messages import Append, AppendReply, SnapshotOffer
from tests.raft.host import CLUSTER, Host
from tests.raft.kit import (
    HEARTBEAT_MS,
    RESEND_MS,
    TIMEOUT_MS,
    Group,
    all_of,
    append,
    only,
    run_of,
    terms_of,
)

MEMBERS = Membership.of([1, 2, 3])


def offer(snapshot: SnapshotRef, *, term: int = 9, stamp: int = 1) -> SnapshotOffer:
    return SnapshotOffer(CLUSTER, 2, 1, term, stamp, snapshot)


def follower(group: Group, *terms: int) -> Host:
    return group.add(1, voters=[1, 2, 3], terms=terms, term=9)


def lagging(group: Group) -> Host:
    """Member 1 leads and has compacted all of its log; member 3 missed it."""
    host = group.start(1, 2, 3).elect(1)
    group.isolate(3)
    group.commit(1, b"a", b"b")
    group.heal()
    host.compact()
    return group[3]


def test_leader_offers_a_snapshot_when_the_log_does_not_reach_back(group: Group) -> None:
    """7: the leader has already discarded the next entry that it needs to send."""
    behind = lagging(group)
    group.advance(RESEND_MS + HEARTBEAT_MS)
    assert behind.wanted is not None
    snapshot, source = behind.wanted
    assert (snapshot.index, snapshot.term, source) == (3, 1, 1)
    assert behind.install()
    group.settle()
    group.commit(1, b"c")
    assert behind.applied == group[1].applied


def test_leader_sends_the_log_while_it_still_reaches_back(group: Group) -> None:
    """7: a snapshot is the exception; entries kept behind it serve the slightly slow."""
    host = group.start(1, 2, 3).elect(1)
    group.isolate(3)
    group.commit(1, b"a", b"b")
    group.heal()
    host.compact(keep=2)
    group.advance(RESEND_MS + HEARTBEAT_MS)
    assert group[3].wanted is None
    assert group[3].applied == host.applied


def test_nothing_else_is_sent_while_a_snapshot_is_under_way(group: Group) -> None:
    """7: appends would be refused until it is installed; heartbeats go on."""
    lagging(group)
    group.advance(RESEND_MS + HEARTBEAT_MS)
    sent = group[1].tick(HEARTBEAT_MS)
    group.propose(1, b"c")
    sent += group[1].sent
    assert [m for m in all_of(Append, sent) if m.target == 3] == []


def test_offer_is_repeated_until_the_snapshot_is_installed(group: Group) -> None:
    """7, 5.5: the network may lose it."""
    behind = lagging(group)
    group.advance(RESEND_MS + HEARTBEAT_MS)
    behind.wanted = None
    group.advance(group.options.snapshot_resend_ms + HEARTBEAT_MS)
    assert behind.wanted is not None


def test_offer_of_an_older_term_is_refused(group: Group) -> None:
    """Figure 13, rule 1: reply immediately if term < currentTerm."""
    host = follower(group, 1)
    reply = only(AppendReply, host.receive(offer(SnapshotRef(5, 1, MEMBERS), term=8)))
    assert (reply.accepted, reply.term) == (False, 9)
    assert host.wanted is None


def test_snapshot_of_what_is_in_the_log_keeps_the_entries_that_follow(group: Group) -> None:
    """Figure 13, rule 6: same index and term there already: retain what follows, and reply."""
    host = follower(group, 1, 1, 2, 2)
    reply = only(AppendReply, host.receive(offer(SnapshotRef(3, 2, MEMBERS))))
    assert (reply.accepted, reply.match) == (True, 3)
    assert host.wanted is None
    assert terms_of(host) == [1, 1, 2, 2]
    assert host.raft.commit_index == 3


def test_snapshot_replaces_a_log_that_does_not_agree(group: Group) -> None:
    """Figure 13, rules 7 and 8: discard the log, and use the snapshot's configuration."""
    host = follower(group, 1, 1, 1, 1, 1)
    group.states[b"new"] = run_of(1, 1, 1, 3)
    members = Membership.of([1, 2, 3, 4])
    assert host.receive(offer(SnapshotRef(3, 3, members, b"new"))) == []
    assert host.install()
    assert only(AppendReply, host.sent).match == 3
    assert (terms_of(host), host.disk.log.anchor()) == ([], (3, 3))
    assert host.raft.membership == members
    assert (host.raft.commit_index, host.raft.applied_index) == (3, 3)
    host.receive(append(2, 1, 9, run_of(4, 9), prev=(3, 3), commit=4, stamp=2))
    assert [entry.index for entry in host.applied] == [1, 2, 3, 4]


def test_older_snapshot_never_lowers_what_is_applied(group: Group) -> None:
    """7: a snapshot that describes a prefix of the log brings nothing."""
    host = follower(group, 1, 1, 2, 2)
    host.receive(append(2, 1, 9, prev=(4, 2), commit=4))
    reply = only(AppendReply, host.receive(offer(SnapshotRef(2, 1, MEMBERS), stamp=2)))
    assert (reply.accepted, reply.match) == (True, 4)
    assert (host.wanted, host.raft.applied_index) == (None, 4)


def test_snapshot_that_was_overtaken_is_not_installed(group: Group) -> None:
    """7: while it was fetched, the log may have brought the same."""
    host = follower(group, 1)
    host.receive(offer(SnapshotRef(3, 2, MEMBERS)))
    host.receive(append(2, 1, 9, run_of(2, 2, 2), prev=(1, 1), commit=3, stamp=2))
    assert not host.install()
    assert terms_of(host) == [1, 2, 2]


def test_leader_that_truncated_again_offers_the_newer_snapshot(group: Group) -> None:
    """Reliability, 24: the one offered first is gone by the time it is asked for."""
    behind = lagging(group)
    group.advance(RESEND_MS + HEARTBEAT_MS)
    group.commit(1, b"c")
    newer = group[1].compact()
    group.advance(group.options.snapshot_resend_ms + HEARTBEAT_MS)
    assert behind.wanted == (newer, 1)
    assert behind.install()
    group.settle()
    assert behind.applied == group[1].applied


def test_leader_without_a_snapshot_waits_for_the_next_one(group: Group) -> None:
    """7: nothing can be offered yet; it is counted, and it heals by itself."""
    behind = lagging(group)
    snapshot = group[1].raft.snapshot
    assert snapshot is not None
    group[1].raft.snapshot = replace(snapshot, index=snapshot.index - 1)
    group.advance(TIMEOUT_MS)
    assert behind.wanted is None
    assert group[1].raft.counters["no_snapshot"] > 0
    group[1].raft.compacted(snapshot)
    group.advance(TIMEOUT_MS)
    assert behind.wanted == (snapshot, 1)


def test_restart_begins_with_the_snapshot_and_its_membership(group: Group) -> None:
    """7: the snapshot holds the last included index, term and configuration."""
    group.start(1, 2, 3).elect(1)
    group.change(1, [1, 2, 3], [4])
    group.settle()
    group.commit(1, b"a")
    before = list(group[1].applied)
    group[1].compact()
    host = group.restart(1)
    assert host.applied == before
    assert host.raft.membership == Membership.of([1, 2, 3], (), [4])
    assert host.raft.log.anchor_index == host.raft.applied_index == len(before)
