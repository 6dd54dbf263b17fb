"""The partitions of a consumer without a group, by hand: which it reads, and from where."""

from __future__ import annotations

from typing import Any

import pytest

from shardnode.client.consumers import Consumption
from shardnode.client.offsets import Start, to_start
from shardnode.client.partition_calls import HoldCall
from shardnode.client.selection import LOOK_AGAIN_S, Selection
from shardnode.client.topic_calls import DescribeCall
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import Corrupt, NotFound, Unavailable
from shardnode.wire.kinds import OffsetPoint
from shardnode.wire.placement import pack_namespace
from tests.client.kit import end

LATEST = to_start("latest")


def found(partitions: int, topic: int = 2) -> TopicFound:
    return TopicFound("default/t", 1, topic, partitions, 0, 0, 1)


def space(number: int) -> int:
    return pack_namespace(1, 2, number)


class Chosen:
    """One selection, whose calls a test answers."""

    def __init__(self, *partitions: int) -> None:
        self.now = 100.0
        self.state = Consumption()
        self.selection = Selection(
            self.state,
            topic="default/t",
            start=LATEST,
            partitions=partitions or None,
            patience_s=5.0,
        )

    def calls(self) -> list[Any]:
        return [call for call, _ in self.selection.new_calls(self.now)]

    def look(self, outcome: object) -> list[Any]:
        """Answer the description that is due; the calls that follow."""
        [look] = self.calls()
        assert isinstance(look, DescribeCall)
        self.end(look, outcome)
        return self.calls()

    def end(self, call: Any, outcome: object) -> bool:
        end(call, outcome)
        return self.selection.absorb(self.now)

    @property
    def is_settled(self) -> bool:
        return self.state.is_settled


def starts(calls: list[Any]) -> dict[int, Start]:
    assert all(isinstance(call, HoldCall) for call in calls)
    return {call.namespace: call._start for call in calls}


def test_every_partition_is_begun_where_it_was_said_and_all_of_them_count() -> None:
    chosen = Chosen()
    calls = chosen.look(found(2))
    assert starts(calls) == {space(0): LATEST, space(1): LATEST}
    assert [call._taken for call in calls] == [None, None]
    states = [chosen.is_settled]
    for call, offset in zip(calls, (7, 9), strict=True):
        chosen.end(call, offset)
        states.append(chosen.is_settled)
    assert states == [False, False, True]
    assert [chosen.state.of(number).position for number in (0, 1)] == [7, 9]
    assert chosen.calls() == []


def test_nothing_is_settled_before_the_topic_is_known() -> None:
    chosen = Chosen()
    [look] = chosen.calls()
    chosen.selection.absorb(chosen.now)
    end(look, found(2))
    chosen.selection.absorb(chosen.now)
    assert not chosen.is_settled, "it has just learnt what to hold"


def test_partitions_that_are_added_are_begun_at_their_beginning() -> None:
    chosen = Chosen()
    for call in chosen.look(found(1)):
        chosen.end(call, 0)
    chosen.now += LOOK_AGAIN_S
    assert starts(chosen.look(found(3))) == dict.fromkeys(
        [space(1), space(2)], Start(OffsetPoint.EARLIEST, 0)
    )


def test_only_chosen_partitions_are_read() -> None:
    chosen = Chosen(2, 0)
    assert set(starts(chosen.look(found(3)))) == {space(0), space(2)}
    chosen.now += LOOK_AGAIN_S
    assert chosen.look(found(4)) == []


def test_partition_that_is_not_there_is_told_and_looked_for_again() -> None:
    chosen = Chosen(3)
    assert chosen.look(found(3)) == []
    error = chosen.state.take_error()
    assert isinstance(error, NotFound)
    assert "below 3, found 3" in error.message
    chosen.now = chosen.selection.wake_at
    assert set(starts(chosen.look(found(4)))) == {space(3)}


def test_partition_that_cannot_be_begun_is_told_and_tried_again() -> None:
    chosen = Chosen(0)
    [call] = chosen.look(found(1))
    assert chosen.end(call, Corrupt("fenced"))
    assert isinstance(chosen.state.take_error(), Corrupt)
    [again] = chosen.calls()
    chosen.end(again, 4)
    assert chosen.state.assignment == [0]


def test_topic_that_was_created_anew_is_another_one() -> None:
    chosen = Chosen()
    for call in chosen.look(found(1)):
        chosen.end(call, 0)
    chosen.now += LOOK_AGAIN_S
    assert chosen.look(found(1, topic=3)) == []
    error = chosen.state.take_error()
    assert isinstance(error, NotFound)
    assert "another one has its name" in error.message


@pytest.mark.parametrize("known", [False, True])
def test_outage_of_shard_0_matters_only_before_the_topic_is_known(known: bool) -> None:
    chosen = Chosen()
    if known:
        for call in chosen.look(found(1)):
            chosen.end(call, 0)
        chosen.now += LOOK_AGAIN_S
    chosen.look(Unavailable("away"))
    assert isinstance(chosen.state.take_error(), Unavailable) is not known
    chosen.now = chosen.selection.wake_at
    chosen.look(found(1))
