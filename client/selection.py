"""The partitions of a consumer without a group: all of a topic, or those it was told.

The one rule: it begins each of them once, where its user said, and never goes back by itself. Of a
topic that gets more partitions the new ones are read from their beginning: they had none when the
user said where to start.

Pure, as `membership`, with the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardnode.client.calls import Call
from shardnode.client.consumers import Consumption
from shardnode.client.membership import AGAIN_S, AGAIN_S_MAX, New
from shardnode.client.offsets import Start
from shardnode.client.partition_calls import HoldCall
from shardnode.client.topic_calls import DescribeCall
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import NotFound, ShardnodeError
from shardnode.wire.kinds import OffsetPoint
from shardnode.wire.placement import pack_namespace

LOOK_AGAIN_S = 10.0
"""How often to look for partitions that were added."""

_EARLIEST = Start(OffsetPoint.EARLIEST, 0)


class Selection:
    """What one consumer without a group reads."""

    def __init__(
        self,
        consumption: Consumption,
        *,
        topic: str,
        start: Start,
        partitions: Sequence[int] | None,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long something may not succeed before that is told."""
        self._consumption = consumption
        self._topic = topic
        self._start = start
        self._chosen = None if partitions is None else set(partitions)
        self._patience_s = patience_s
        self._found: TopicFound | None = None
        self._starts: dict[int, Start] = {}
        """Of the partitions that are to be held, by namespace."""
        self._look: DescribeCall | None = None
        self._look_at = 0.0
        self._fails = 0
        self._holding: dict[int, HoldCall] = {}

    @property
    def wake_at(self) -> float:
        """When `new_calls` is next needed."""
        return float("inf") if self._look is not None else self._look_at

    def new_calls(self, now: float) -> Sequence[New]:
        """Calls to start."""
        new: list[New] = []
        if self._look is None and now >= self._look_at:
            self._look = DescribeCall(self._topic)
            new.append(New(self._look, self._patience_s))
        for namespace, start in self._starts.items():
            if namespace not in self._holding and namespace not in self._consumption.spaces:
                call = self._holding[namespace] = HoldCall(namespace, start, None)
                new.append(New(call, self._patience_s))
        return new

    def dropped_calls(self) -> Sequence[Call[Any]]:
        """Calls to cancel: none."""
        return ()

    def under_way(self) -> Sequence[Call[Any]]:
        """Calls of which any brings something new."""
        look = [self._look] if self._look is not None else []
        return [*look, *self._holding.values()]

    def absorb(self, now: float) -> bool:
        """Take in what has come; whether what is held, or what is wrong, has changed."""
        changed = False
        if self._look is not None and self._look.done:
            look, self._look = self._look, None
            changed = self._looked(look, now)
        for namespace, call in list(self._holding.items()):
            if call.done:
                del self._holding[namespace]
                try:
                    self._consumption.hold(namespace, call.result(), None)
                except ShardnodeError as error:
                    self._consumption.trouble = error
                changed = True
        is_held = self._starts.keys() <= self._consumption.spaces.keys()
        self._consumption.is_settled = self._found is not None and is_held
        return changed

    def _looked(self, look: DescribeCall, now: float) -> bool:
        try:
            found = look.result()
            self._choose(found)
        except ShardnodeError as error:
            self._fails += 1
            self._look_at = now + min(AGAIN_S_MAX, AGAIN_S * (1 << min(self._fails, 8)))
            if self._found is None or isinstance(error, NotFound):
                self._consumption.trouble = error
                return True
            return False
        self._fails = 0
        self._look_at = now + LOOK_AGAIN_S
        return True

    def _choose(self, found: TopicFound) -> None:
        before = self._found
        if before is not None and (found.stream, found.topic) != (before.stream, before.topic):
            raise NotFound(
                f"the topic {self._topic} that was read is gone, and another one has its name; make"
                " a new consumer"
            )
        numbers = range(found.partitions) if self._chosen is None else sorted(self._chosen)
        if numbers and numbers[-1] >= found.partitions:
            raise NotFound(
                f"expected partitions of {self._topic} below {found.partitions}, found"
                f" {numbers[-1]}; a topic can be given more"
            )
        known = 0 if before is None else before.partitions
        for number in numbers:
            space = pack_namespace(found.stream, found.topic, number)
            is_new = before is not None and number >= known
            self._starts.setdefault(space, _EARLIEST if is_new else self._start)
        self._found = found
