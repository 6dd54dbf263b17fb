"""Every queue of the core has a bound, and what is refused changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.raft import Busy, Membership, Options
from shardnode.raft.messages import Append, Message
from tests.raft.host import CLUSTER, Host
from tests.raft.kit import HEARTBEAT_MS, RESEND_MS, TIMEOUT_MS, Group, all_of, heartbeat, vote


def leader(group: Group, **bounds: int) -> Host:
    """Member 1 leads 1 2 3 with these options."""
    group.options = replace(Options(), **bounds)
    host = group.start(1, 2, 3).elect(1)
    group.drop()
    return host


def appends_to(host: Host, member: int) -> list[Append]:
    return [message for message in all_of(Append, host.sent) if message.target == member]


# -- proposals ----------------------------------------------------------------------------------


def test_entries_beyond_the_bound_are_refused_until_some_are_committed(group: Group) -> None:
    host = leader(group, uncommitted_entries_max=3)
    group.propose(1, b"a", b"b")
    with pytest.raises(Busy, match="uncommitted entries: 2 of at most 3") as refusal:
        host.propose(b"c", b"d")
    assert (refusal.value.lag, refusal.value.limit) == (2, 3)
    assert host.raft.log.last_index == 3, "a batch is taken as a whole or not at all"
    group.settle()
    assert group.propose(1, b"c", b"d", b"e") == 4


def test_bytes_beyond_the_bound_are_refused_until_some_are_committed(group: Group) -> None:
    host = leader(group, uncommitted_bytes_max=10)
    group.propose(1, b"12345678")
    with pytest.raises(Busy, match="uncommitted bytes: 8 of at most 10"):
        host.propose(b"123")
    assert group.propose(1, b"12") == 3
    group.settle()
    assert group.propose(1, b"1234567890") == 4


def test_idle_leader_takes_any_one_batch(group: Group) -> None:
    leader(group, uncommitted_bytes_max=4, uncommitted_entries_max=2)
    assert group.commit(1, b"more than four bytes", b"b", b"c") == 4


def test_room_comes_back_when_the_disk_refuses(group: Group) -> None:
    group.options = Options(uncommitted_bytes_max=4)
    host = group.start(1).elect(1)
    host.disk_full = True
    group.propose(1, b"1234")
    host.disk_full = False
    assert group.commit(1, b"5678") == 2


def test_room_comes_back_with_a_new_leadership(group: Group) -> None:
    host = leader(group, uncommitted_bytes_max=4)
    group.isolate(1)
    group.propose(1, b"1234")
    group.elect(2)
    group.heal()
    group.advance(TIMEOUT_MS)
    group.elect(1)
    assert group.commit(1, b"5678") == host.raft.log.last_index


def test_refused_proposal_leaves_nothing_behind(group: Group) -> None:
    host = leader(group, uncommitted_bytes_max=4)
    group.propose(1, b"1234")
    for _ in range(3):
        with pytest.raises(Busy):
            host.propose(b"5")
    assert host.drain() == []


# -- reads --------------------------------------------------------------------------------------


def test_reads_beyond_the_bound_are_refused_until_some_are_served(group: Group) -> None:
    host = leader(group, pending_reads_max=2)
    group.isolate(1)
    host.read(1)
    host.read(2)
    with pytest.raises(Busy, match="reads under way: 2 of at most 2"):
        host.raft.read_index(3)
    group.heal()
    host.drain()
    group.settle()
    assert len(host.served) == 2
    host.read(3)


# -- what is sent -------------------------------------------------------------------------------


def test_append_stays_within_its_bounds(group: Group) -> None:
    host = leader(group, append_entries_max=3, append_bytes_max=20)
    group.propose(1, *[b"x"] * 4, b"y" * 15, b"z" * 15, b"larger than any append may be")
    sizes = [[len(entry.payload) for entry in m.entries] for m in appends_to(host, 2)]
    assert sizes == [[1, 1, 1], [1, 15], [15], [29]]


def test_window_bounds_what_is_under_way(group: Group) -> None:
    host = leader(group, inflight_appends_max=4)
    for number in range(20):
        group.propose(1, b"%d" % number)
    assert len(group.under_way(1, 2)) == 4
    assert len(host.raft.progress[2].inflight) == 4


def test_member_out_of_reach_is_sent_no_entries(group: Group) -> None:
    host = leader(group)
    group.isolate(3)
    group.commit(1, b"a")
    group.advance(2 * TIMEOUT_MS)
    sent: list[Append] = []
    for _ in range(10):
        host.tick(HEARTBEAT_MS)
        sent += appends_to(host, 3)
        group.settle()
    assert [message.entries for message in sent] == [()] * (10 * HEARTBEAT_MS // RESEND_MS)


def test_one_ready_applies_a_bounded_amount(group: Group) -> None:
    host = leader(group, apply_bytes_max=10)
    host.propose(*[b"four"] * 5)
    batches: list[int] = []
    raft = host.raft
    for member in (2, 3):
        raft.progress[member].match = raft.log.last_index
    while (ready := raft.ready()) is not None:
        if ready.must_persist:
            host.disk.log.append_batch(ready.entries)
            raft.persisted(ready.persist_index, ready.persist_term)
        if ready.committed:
            batches.append(len(ready.committed))
            raft.applied(ready.committed[-1].index)
    assert batches == [2, 2, 1]


# -- strangers ----------------------------------------------------------------------------------

SHARD_2 = 2 << 48


@pytest.mark.parametrize(
    "message",
    [
        replace(vote(2, 1, 9), cluster=CLUSTER + 1),
        vote(2, 3, 9),
        vote(1, 1, 9),
        vote(SHARD_2 | 2, 1, 9),
        replace(heartbeat(2, 1, 9), cluster=0),
    ],
    ids=["another cluster", "another member", "itself", "another shard", "no cluster"],
)
def test_stranger_s_message_is_dropped_and_counted(group: Group, message: Message) -> None:
    host = group.start(1, 2, 3)[1]
    assert host.receive(message) == []
    assert (host.raft.counters["stranger"], host.raft.term) == (1, 0)


def test_message_that_makes_no_sense_in_this_role_is_counted(group: Group) -> None:
    host = group.start(1, 2, 3)[1]
    group[2].receive(heartbeat(1, 2, 1))
    [reply] = group.under_way(2, 1)
    host.receive(reply)
    assert host.raft.counters["unexpected"] == 1
    assert host.raft.membership == Membership.of([1, 2, 3])
