"""What a restore adds to a log makes its shard that of another cluster, of one node."""

from __future__ import annotations

from shardnode.raft import RAFT_PARTITION, Membership
from shardnode.shard.entries import RESTORED, kind_of, stamp_of
from shardnode.shard.rebirth import EFFECTS_PART, closing_entries, read_effects
from shardnode.shard.replica import Request
from shardnode.shard.topics import RESTORED_VERSIONS
from shardnode.wire.control import MemberAdd, TopicCreate
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import CONTROL_PARTITION, KEY_VALUE_PARTITION, member_id
from shardnode.wire.requests import Put
from tests.shard.desk import Counter


def test_the_closing_entries_stand_behind_the_cut_in_a_term_of_their_own() -> None:
    member = member_id(0, 4)
    numbers = {CONTROL_PARTITION: 17, KEY_VALUE_PARTITION: 90}
    config, control = closing_entries(0, member, index=120, term=6, numbers=numbers, stamp_ms=5_000)
    assert config[:4] == (121, 7, RAFT_PARTITION, 121)
    assert Membership.decode(config.payload) == Membership.of([member])
    assert control[:4] == (122, 7, CONTROL_PARTITION, 18)
    assert (kind_of(control.payload), stamp_of(control.payload)) == (RESTORED, 5_000)
    others = closing_entries(3, member_id(3, 4), index=120, term=6, numbers={}, stamp_ms=0)
    assert [entry.partition for entry in others] == [RAFT_PARTITION], "the wish is shard 0's"


def test_a_snapshot_tells_its_numbers_and_its_highest_stamp() -> None:
    counter = Counter()
    for number in range(5):
        counter.ask(Kind.PUT, Put(b"k%d" % number, b"v"))
    counter.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", 1))
    parts = counter.effects.snapshot()
    numbers, stamp_ms = read_effects(b"".join(parts[EFFECTS_PART]))
    assert numbers == dict(counter.effects.partition_indexes)
    assert stamp_ms == counter.effects.stamp
    assert counter.effects.keyvalue.stamp_ms < stamp_ms, "the last entry was not about keys"


def test_no_node_of_before_is_wanted_and_this_one_says_anew_where_it_is() -> None:
    counter = Counter()
    control, service = counter.effects.control, counter.service
    counter.ask(Kind.MEMBER_ADD, MemberAdd(2, "tcp://10.0.0.2:7400"))
    counter.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", 1))
    before, topics = control.wish, control.topics.version
    assert [*before.members] == [1, 2]
    (_, restored) = closing_entries(
        0, 1, index=1, term=1, numbers={}, stamp_ms=counter.effects.stamp
    )
    counter.replica.propose([Request(0, CONTROL_PARTITION, restored.payload)])
    counter.drain()
    assert (control.wish.version, control.wish.members) == (before.version + 1, {})
    assert service.known_wish.members == {}, "nobody hears of it"
    assert control.topics.version == topics + RESTORED_VERSIONS
    assert len(control.topics) == 1
    service.duties._begun_term = 0  # as after an election
    counter.drain()
    counter.drain()
    assert control.wish.members == {1: "tcp://127.0.0.1:1"}
    assert service.known_wish == control.wish
    assert control.epoch == 1, "the table stays"


def test_a_wish_is_told_once_what_was_known_to_be_committed_is_redone() -> None:
    counter = Counter()
    service = counter.service
    assert service.known_wish.members
    service._redone_index = counter.effects.applied_index + 1
    assert service.known_wish.version == 0
    counter.ask(Kind.PUT, Put(b"k", b"v"))
    assert service.known_wish.members


def test_a_member_that_recovers_tells_no_wish_before_it_has_what_its_leader_had() -> None:
    counter = Counter()
    service, raft = counter.service, counter.replica.raft
    raft.recovering, raft.recovery_target = True, counter.effects.applied_index + 2
    assert service.known_wish.version == 0
    raft.recovering = False
    assert service.known_wish.version == 0, "it is there, and not applied"
    for _ in range(2):
        counter.ask(Kind.PUT, Put(b"k", b"v"))
    assert service.known_wish.members
