"""A replica that starts over gets everything back from its peers, and keeps what it had aside."""

from __future__ import annotations

import pytest

from shardnode.shard import rebuild
from shardnode.sim.disk import SimCrash
from shardnode.sim.machine import SimMachine
from shardnode.storage.errors import StorageError
from tests.shard.kit import OPEN, Group, put


def test_member_starts_over_without_voting_until_it_has_caught_up() -> None:
    group = Group(3)
    group.propose(OPEN, *(put(n, b"k%d" % n) for n in range(1, 20)))
    group.run(200)
    victim = next(host for host in group.hosts.values() if host is not group.leader())
    term = victim.up.raft.term
    rebuild.wish(victim.files, "shard-0", "bits flipped")
    victim.crash()
    assert rebuild.wished(victim.files, "shard-0") == "bits flipped"
    moved = rebuild.start_over(victim.files, "shard-0")
    assert "shard-0/quarantine/log" in moved
    assert rebuild.wished(victim.files, "shard-0") == ""
    victim.machine = SimMachine(lambda *_: None)
    replica = victim.boot()
    assert (replica.raft.recovering, replica.raft.term >= term) == (True, True)
    group.run(3_000)
    assert not replica.raft.recovering
    assert victim.machine.get(b"k19")[0] == b"v"
    assert victim.machine.applied_index == group.leader().machine.applied_index
    assert victim.files.listdir("shard-0/quarantine/log")


def test_alone_it_is_refused_because_nobody_could_give_anything_back() -> None:
    group = Group(1)
    group.propose(OPEN, put(1))
    host = group.hosts[1]
    rebuild.wish(host.files, "shard-0", "bits flipped")
    host.crash()
    rebuild.start_over(host.files, "shard-0")
    host.machine = SimMachine(lambda *_: None)
    with pytest.raises(StorageError):
        host.boot()


@pytest.mark.parametrize("operations", range(14))
def test_power_loss_in_the_middle_loses_neither_the_wish_nor_the_files(operations: int) -> None:
    group = Group(3)
    group.propose(OPEN, put(1))
    files = group.hosts[1].files
    names = set(files.listdir("shard-0/log"))
    rebuild.wish(files, "shard-0", "why")
    group.hosts[1].crash()
    files.fail_after(operations, "crash")
    try:
        rebuild.start_over(files, "shard-0")
    except SimCrash:
        files.crash()
        if rebuild.wished(files, "shard-0"):
            rebuild.start_over(files, "shard-0")
    assert names <= set(files.listdir("shard-0/quarantine/log"))
