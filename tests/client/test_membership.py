"""A member of a group by itself, and several with the tables of a real coordinator between them."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from shardnode.client.calls import Call, KeyCall
from shardnode.client.consumers import Consumption
from shardnode.client.membership import BEATS, Membership
from shardnode.client.offsets import to_start
from shardnode.client.partition_calls import HoldCall, Taken
from shardnode.client.topic_calls import DescribeCall
from shardnode.shard.groups import Groups, Place
from shardnode.shard.offsets import Offsets
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import (
    Conflict,
    Corrupt,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    SessionExpired,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.groups import GroupAssigned, GroupHeartbeat, GroupJoin, GroupLeave
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import pack_namespace
from tests.client.kit import end

TTL_S = 9.0
PATIENCE_S = 5.0
FOUND = TopicFound("default/t", 1, 2, 4, 0, 0, 1)


def space(number: int) -> int:
    return pack_namespace(1, 2, number)


class Alone:
    """One member, whose calls a test answers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state = Consumption()
        self.member = Membership(
            self.state,
            group="g",
            member="m",
            topic="default/t",
            session_s=TTL_S,
            start=to_start("earliest"),
            patience_s=PATIENCE_S,
        )

    def calls(self) -> list[Call[Any]]:
        return [call for call, _ in self.member.new_calls(self.now)]

    def one(self) -> Any:
        [call] = self.calls()
        return call

    def answer(self, call: Call[Any], outcome: object) -> bool:
        end(call, outcome)
        return self.member.absorb(self.now)

    def assign(self, call: Call[Any], generation: int, *numbers: int) -> list[Call[Any]]:
        """Answer a join or a heartbeat; the calls that follow."""
        spaces = [space(number) for number in numbers]
        self.answer(call, GroupAssigned("m", generation, spaces, int(TTL_S * 1000)))
        return self.calls()

    def is_settled(self) -> bool:
        return self.state.is_settled

    def joined(self, *numbers: int) -> None:
        """Become a member that holds these."""
        self.answer(self.one(), FOUND)
        for call in self.assign(self.one(), 1, *numbers):
            self.answer(call, 0)

    def beat(self, after_s: float = TTL_S / BEATS) -> Any:
        """The next heartbeat."""
        self.now += after_s
        return self.one()


def heartbeat(call: KeyCall[Any]) -> GroupHeartbeat:
    assert call.kind is Kind.GROUP_HEARTBEAT
    return GroupHeartbeat.decode(call.body)


def test_member_looks_joins_claims_and_beats() -> None:
    alone = Alone()
    look = alone.one()
    assert isinstance(look, DescribeCall)
    alone.answer(look, FOUND)
    join = alone.one()
    assert (join.kind, join.key) == (Kind.GROUP_JOIN, b"g")
    assert GroupJoin.decode(join.body) == GroupJoin("g", "m", ["default/t"], 9_000)
    holds = alone.assign(join, 7, 0, 2)
    claims = [(call.namespace, call._taken) for call in holds if isinstance(call, HoldCall)]
    assert claims == [(space(0), Taken("g", 7)), (space(2), Taken("g", 7))]
    assert alone.is_settled() is False
    assert alone.answer(holds[0], 5)
    assert alone.state.assignment == [0]
    alone.answer(holds[1], 0)
    assert alone.is_settled() is True
    assert alone.state.of(0).position == 5
    assert alone.calls() == []
    beat = heartbeat(alone.beat())
    assert (beat.generation, list(beat.held)) == (7, [space(0), space(2)])


def test_what_is_taken_away_is_dropped_and_said_at_once() -> None:
    alone = Alone()
    alone.joined(0, 1, 2)
    [next_beat] = alone.assign(alone.beat(), 2, 1)
    assert alone.state.assignment == [1]
    beat = heartbeat(next_beat)  # type: ignore[arg-type]
    assert (beat.generation, list(beat.held)) == (2, [space(1)])


def test_what_is_given_is_claimed_with_its_own_generation_and_the_rest_keeps_its_own() -> None:
    alone = Alone()
    alone.joined(0)
    [hold] = alone.assign(alone.beat(), 4, 0, 3)
    assert isinstance(hold, HoldCall)
    alone.answer(hold, 9)
    taken = {p.number: p.taken.generation for p in alone.state.spaces.values() if p.taken}
    assert taken == {0: 1, 3: 4}


def test_claim_that_is_overtaken_by_another_answer_is_of_no_use() -> None:
    alone = Alone()
    alone.joined()
    [hold] = alone.assign(alone.beat(), 2, 0)
    alone.assign(alone.beat(), 3)
    assert list(alone.member.dropped_calls()) == [hold]
    end(hold, 0)
    alone.member.absorb(alone.now)
    assert alone.state.assignment == []


def test_late_answer_of_a_lower_generation_changes_nothing() -> None:
    alone = Alone()
    alone.joined()
    [hold] = alone.assign(alone.beat(), 5, 0)
    alone.answer(hold, 0)
    assert alone.assign(alone.beat(), 4, 1) == []
    assert alone.state.assignment == [0]


def test_member_that_was_given_up_drops_everything_and_joins_again() -> None:
    alone = Alone()
    alone.joined(0, 1)
    assert alone.answer(alone.beat(), SessionExpired("no member"))
    assert (alone.state.assignment, alone.state.valid_until) == ([], 0.0)
    join = alone.one()
    assert join.kind is Kind.GROUP_JOIN
    alone.assign(join, 9, 1)


def test_member_that_hears_nothing_goes_on_until_its_session_is_over() -> None:
    alone = Alone()
    alone.joined(0)
    joined_at = alone.now
    assert alone.state.valid_until == joined_at + TTL_S
    while True:
        alone.now = alone.member.wake_at
        calls = alone.calls()
        if alone.now >= joined_at + TTL_S:
            break
        [beat] = calls
        assert heartbeat(beat).held == [space(0)]  # type: ignore[arg-type]
        assert alone.state.assignment == [0]
        assert not alone.answer(beat, OutcomeUnknown("no answer")), "nobody hears of it"
    assert alone.state.assignment == []
    [join] = calls
    assert isinstance(join, KeyCall)
    assert join.kind is Kind.GROUP_JOIN


def test_sign_of_life_that_comes_back_after_the_session_is_over_means_nothing() -> None:
    alone = Alone()
    alone.joined(0)
    beat = alone.beat()
    alone.now += TTL_S
    join = alone.one()
    assert list(alone.member.dropped_calls()) == [beat]
    assert not alone.answer(beat, Unavailable("electing"))
    assert alone.state.take_error() is None
    [hold] = alone.assign(join, 2, 0)
    alone.answer(hold, 0)
    assert alone.state.assignment == [0]


def test_session_counts_from_when_the_sign_of_life_was_sent() -> None:
    alone = Alone()
    alone.joined()
    beat = alone.beat()
    sent_at = alone.now
    alone.now += 2.0
    alone.assign(beat, 1)
    assert alone.state.valid_until == sent_at + TTL_S


def test_topic_that_does_not_exist_is_told_and_asked_for_again() -> None:
    alone = Alone()
    assert alone.answer(alone.one(), NotFound("no such topic"))
    assert isinstance(alone.state.take_error(), NotFound)
    assert alone.calls() == []
    alone.now = alone.member.wake_at
    alone.answer(alone.one(), FOUND)
    assert alone.answer(alone.one(), Unavailable("not heard of it yet"))
    assert isinstance(alone.state.take_error(), Unavailable)
    alone.now = alone.member.wake_at
    assert alone.one().kind is Kind.GROUP_JOIN


def test_partition_that_cannot_be_claimed_is_told_and_tried_again_alone() -> None:
    alone = Alone()
    alone.answer(alone.one(), FOUND)
    first, second = alone.assign(alone.one(), 1, 0, 1)
    alone.answer(first, Corrupt("fenced"))
    alone.answer(second, 0)
    assert isinstance(alone.state.take_error(), Corrupt)
    assert alone.calls() == []
    assert not alone.state.is_settled
    alone.now = alone.member.wake_at
    assert alone.now < 100.0 + PATIENCE_S
    again = alone.one()
    assert isinstance(again, HoldCall)
    assert again.namespace == space(0)


def test_claim_that_another_has_overtaken_asks_the_coordinator() -> None:
    alone = Alone()
    alone.answer(alone.one(), FOUND)
    [hold] = alone.assign(alone.one(), 1, 0)
    assert not alone.answer(hold, Conflict("generation 2"))
    assert alone.state.take_error() is None
    alone.now = alone.member.wake_at
    assert heartbeat(alone.one()).held == []


def test_fenced_commit_makes_it_ask_at_once() -> None:
    alone = Alone()
    alone.joined(0)
    alone.state.fenced.add(space(0))
    alone.state.drop([space(0)])
    beat, *holds = alone.calls()
    assert isinstance(beat, KeyCall)
    assert heartbeat(beat).held == []
    assert [call.namespace for call in holds if isinstance(call, HoldCall)] == [space(0)]


def test_names_that_nobody_takes_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="group as name"):
        Membership(
            Consumption(),
            group="a/b",
            member="m",
            topic="default/t",
            session_s=TTL_S,
            start=to_start(0),
            patience_s=PATIENCE_S,
        )


class Several:
    """Members that come, go, fall silent and hear nothing for a while, and a coordinator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.groups = Groups()
        self.offsets = Offsets()
        self.partitions = 6
        self.names = 0
        self.members: dict[str, tuple[Membership, Consumption, list[Call[Any]]]] = {}
        self.highest: dict[int, int] = {}
        self.set_places()

    def set_places(self) -> None:
        self.groups.set_places(self.partitions, {"default/t": Place(1, 2, self.partitions)})

    def add(self) -> None:
        self.names += 1
        name = f"m{self.names}"
        state = Consumption()
        member = Membership(
            state,
            group="g",
            member=name,
            topic="default/t",
            session_s=TTL_S,
            start=to_start("earliest"),
            patience_s=PATIENCE_S,
        )
        self.members[name] = (member, state, [])

    def execute(self, call: Call[Any]) -> object:
        """What the cluster answers."""
        stamp_ms = int(self.now * 1000)
        try:
            if isinstance(call, DescribeCall):
                return FOUND
            if isinstance(call, HoldCall):
                assert call._taken is not None
                [kept] = self.offsets.claim("g", call._taken.generation, [call.namespace])
                return kept or 0
            assert isinstance(call, KeyCall)
            if call.kind is Kind.GROUP_JOIN:
                join = GroupJoin.decode(call.body)
                return self.groups.join("g", str(join.member), join.topics, join.ttl_ms, stamp_ms)
            if call.kind is Kind.GROUP_LEAVE:
                self.groups.leave("g", GroupLeave.decode(call.body).member)
                return None
            beat = GroupHeartbeat.decode(call.body)
            return self.groups.beat("g", beat.member, beat.generation, beat.held, stamp_ms)
        except ShardnodeError as error:
            return error

    def step(self) -> None:
        random = self.random
        action = random.random()
        if action < 0.02 and len(self.members) < 5:
            self.add()
        elif action < 0.03 and self.members:
            name = random.choice(sorted(self.members))
            member, _, _ = self.members.pop(name)
            if random.random() < 0.5:
                self.execute(member.leave())  # else it is killed
        elif action < 0.04 and self.partitions < 9:
            self.partitions += 1
            self.set_places()
        elif action < 0.05:
            with suppress(NotFound):  # nobody has joined yet
                self.groups.release("g", [space(random.randrange(self.partitions))])
        elif action < 0.06 and self.members:
            self.commit(random.choice(sorted(self.members)))
        else:
            self.now += random.choice([0.001, 0.05, 0.5])
            self.groups.expire(int(self.now * 1000), 0)
        for name in sorted(self.members):
            if random.random() < 0.7:
                self.turn(name)
        self.check()

    def turn(self, name: str) -> None:
        """One turn of a member's shell; some of its calls are answered, some late, some lost."""
        member, _, calls = self.members[name]
        calls += [call for call, _ in member.new_calls(self.now)]
        dropped = member.dropped_calls()
        calls[:] = [call for call in calls if call not in dropped]
        for call in list(calls):
            luck = self.random.random()
            if luck < 0.6:
                calls.remove(call)
                outcome = self.execute(call)
                end(call, OutcomeUnknown("lost on its way") if luck < 0.05 else outcome)
            elif luck < 0.63:
                calls.remove(call)
                end(call, Unavailable("nobody there"))
        member.absorb(self.now)

    def commit(self, name: str) -> None:
        """It has dealt with one more message of each partition."""
        _, state, _ = self.members[name]
        if self.now >= state.valid_until:
            return
        for held in list(state.spaces.values()):
            held.position += 1
            assert held.taken is not None
            generation = held.taken.generation
            self.offsets.commit(
                "g",
                generation,
                [held.namespace],
                [held.position],
                back=False,
                end_of=lambda _: 1 << 40,
            )

    def check(self) -> None:
        holders: dict[int, str] = {}
        for name, (_, state, _) in self.members.items():
            for namespace in state.spaces if self.now < state.valid_until else ():
                assert namespace not in holders, f"{namespace} has two holders"
                holders[namespace] = name
        for namespace in map(space, range(self.partitions)):
            [kept] = self.offsets.fetch("g", [namespace])
            assert (kept or 0) >= self.highest.get(namespace, 0), "an offset went back"
            self.highest[namespace] = kept or 0

    def settle(self) -> None:
        """Nothing is lost any more: within a session everything has a holder."""
        until = self.now + 3 * TTL_S
        while self.now < until:
            self.now += 0.1
            self.groups.expire(int(self.now * 1000), 0)
            for name in sorted(self.members):
                member, _, calls = self.members[name]
                calls += [call for call, _ in member.new_calls(self.now)]
                dropped = member.dropped_calls()
                calls[:] = [call for call in calls if call not in dropped]
                for call in list(calls):
                    calls.remove(call)
                    end(call, self.execute(call))
                member.absorb(self.now)
            self.check()


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_has_two_holders_and_in_the_end_each_has_one(seed: int) -> None:
    several = Several(seed)
    several.add()
    for _ in range(400):
        several.step()
    if not several.members:
        several.add()
    several.settle()
    held = [space for _, state, _ in several.members.values() for space in state.spaces]
    assert sorted(held) == [space(number) for number in range(several.partitions)]
    shares = [len(state.spaces) for _, state, _ in several.members.values()]
    assert max(shares) - min(shares) <= 1
    assert all(state.is_settled for _, state, _ in several.members.values())
