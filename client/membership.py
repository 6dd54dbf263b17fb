"""One member of a consumer group: signs of life, and what comes back.

    looking    the topic must exist
    joining    the coordinator gives a generation and partitions
    member     a heartbeat says what is held and is told what shall be

The one rule: what is held is never more than what the last answer gave. What an answer leaves out
is dropped at once, and the next heartbeat, which leaves immediately, says so; what it adds is
claimed with its generation before it is read. Who hears nothing for as long as a session lasts has
to think that it was given up: it drops everything and joins again.

Pure, as `consumers`: a shell starts `new_calls`, waits for any of `under_way` or until `wake_at`,
and calls `absorb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from shardnode.client.calls import Call, KeyCall
from shardnode.client.consumers import Consumption
from shardnode.client.offsets import Start
from shardnode.client.partition_calls import HoldCall, Taken
from shardnode.client.topic_calls import DescribeCall
from shardnode.wire.control import TopicFound
from shardnode.wire.errors import Conflict, SessionExpired, ShardnodeError
from shardnode.wire.groups import (
    GroupAssigned,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupLeft,
)
from shardnode.wire.kinds import Kind

BEATS = 3
"""Heartbeats in the time of a session: one or two may be lost."""

AGAIN_S = 0.1
"""How soon to ask again after a failure, or about what cannot be claimed yet."""

AGAIN_S_MAX = 1.0


class Phase(Enum):
    """How far it is."""

    LOOKING = "looking"
    JOINING = "joining"
    MEMBER = "member"


class New(NamedTuple):
    """A call to start."""

    call: Call[Any]
    timeout_s: float


class Membership:
    """One member."""

    def __init__(
        self,
        consumption: Consumption,
        *,
        group: str,
        member: str,
        topic: str,
        session_s: float,
        start: Start,
        patience_s: float,
    ) -> None:
        """`patience_s`: how long something may not succeed before that is told."""
        self.group = group
        self.member = member
        self._consumption = consumption
        self._topic = topic
        self._session_s = session_s
        self._start = start
        self._patience_s = patience_s
        self._phase = Phase.LOOKING
        self._generation = 0
        self._beat: Call[Any] | None = None
        self._beat_at = 0.0
        self._sent_at = 0.0
        self._fails = 0
        self._given: set[int] = set()
        """What shall be held, by the last answer."""
        self._holding: dict[int, tuple[HoldCall, Taken]] = {}
        self._hold_at: dict[int, float] = {}
        """When to try again to claim what could not be."""
        self._dropped: list[Call[Any]] = []
        GroupJoin(group, member, [topic], self._ttl_ms).encode()  # says what is wrong
        consumption.valid_until = 0.0

    @property
    def _ttl_ms(self) -> int:
        return round(self._session_s * 1000)

    @property
    def wake_at(self) -> float:
        """When `new_calls` is next needed."""
        if self._phase is not Phase.MEMBER:
            return float("inf") if self._beat is not None else self._beat_at
        until = min(self._consumption.valid_until, *self._hold_at.values(), float("inf"))
        return until if self._beat is not None else min(self._beat_at, until)

    def new_calls(self, now: float) -> Sequence[New]:
        """Calls to start."""
        if self._consumption.fenced:
            self._consumption.fenced.clear()
            self._beat_at = now
        if self._phase is Phase.MEMBER and now >= self._consumption.valid_until:
            self._expire(now)
        new = []
        if self._beat is None and now >= self._beat_at:
            self._sent_at = now
            self._beat = self._next_beat()
            is_member = self._phase is Phase.MEMBER
            new.append(New(self._beat, self._session_s / BEATS if is_member else self._patience_s))
        return [*new, *self._new_holds(now)]

    def _next_beat(self) -> Call[Any]:
        if self._phase is Phase.LOOKING:
            return DescribeCall(self._topic)
        key = self.group.encode()
        if self._phase is Phase.JOINING:
            join = GroupJoin(self.group, self.member, [self._topic], self._ttl_ms)
            return KeyCall(Kind.GROUP_JOIN, join.encode(), _same, key=key)
        held = sorted(self._consumption.spaces)
        beat = GroupHeartbeat(self.group, self.member, self._generation, held)
        return KeyCall(Kind.GROUP_HEARTBEAT, beat.encode(), _same, key=key)

    def _new_holds(self, now: float) -> list[New]:
        new = []
        wanted = self._given - self._holding.keys() - self._consumption.spaces.keys()
        for namespace in sorted(wanted):
            if now < self._hold_at.get(namespace, 0.0):
                continue
            taken = Taken(self.group, self._generation)
            call = HoldCall(namespace, self._start, taken)
            self._holding[namespace] = (call, taken)
            new.append(New(call, self._patience_s))
        return new

    def dropped_calls(self) -> Sequence[Call[Any]]:
        """Calls to cancel."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def under_way(self) -> Sequence[Call[Any]]:
        """Calls of which any brings something new."""
        beat = [self._beat] if self._beat is not None else []
        return [*beat, *(call for call, _ in self._holding.values())]

    def absorb(self, now: float) -> bool:
        """Take in what has come; whether what is held, or what is wrong, has changed."""
        changed = False
        if self._beat is not None and self._beat.done:
            beat, self._beat = self._beat, None
            try:
                answer = beat.result()
            except ShardnodeError as error:
                changed = self._failed(error, now)
            else:
                self._fails = 0
                changed = self._take(answer, now)
        for namespace, (call, taken) in list(self._holding.items()):
            if call.done:
                del self._holding[namespace]
                changed = self._held(call, taken, now) or changed
        is_member = self._phase is Phase.MEMBER
        self._consumption.is_settled = is_member and self._given <= self._consumption.spaces.keys()
        return changed

    def _take(self, answer: object, now: float) -> bool:
        if isinstance(answer, TopicFound):
            self._phase = Phase.JOINING
            self._beat_at = now
            return False
        assert isinstance(answer, GroupAssigned)
        self._phase = Phase.MEMBER
        self._consumption.valid_until = self._sent_at + answer.ttl_ms / 1000
        self._beat_at = self._sent_at + answer.ttl_ms / 1000 / BEATS
        if answer.generation < self._generation:
            return False  # an answer to an earlier question, which came late
        self._generation = answer.generation
        self._given = set(answer.assigned)
        self._hold_at = {n: at for n, at in self._hold_at.items() if n in self._given}
        taken_away = self._consumption.spaces.keys() - self._given
        for namespace in self._holding.keys() - self._given:
            call, _ = self._holding.pop(namespace)
            self._dropped.append(call)
        if taken_away:
            self._consumption.drop(taken_away)
            self._beat_at = now  # who gets them waits for this word
        return True

    def _held(self, call: HoldCall, taken: Taken, now: float) -> bool:
        """A partition was claimed, or could not be."""
        try:
            offset = call.result()
        except Conflict:
            # It has been given to another one since; the next answer says so too.
            self._given.discard(call.namespace)
            self._beat_at = min(self._beat_at, now + AGAIN_S)
            return False
        except ShardnodeError as error:
            self._consumption.trouble = error
            self._hold_at[call.namespace] = now + AGAIN_S_MAX
            return True
        self._hold_at.pop(call.namespace, None)
        self._consumption.hold(call.namespace, offset, taken)
        return True

    def _failed(self, error: ShardnodeError, now: float) -> bool:
        """No answer to a sign of life."""
        if self._phase is Phase.MEMBER:
            if isinstance(error, SessionExpired):
                self._expire(now)
                return True
            self._beat_at = now + AGAIN_S
            return False  # the session goes on until its time is over
        self._fails += 1
        self._beat_at = now + min(AGAIN_S_MAX, AGAIN_S * (1 << min(self._fails, 8)))
        self._consumption.trouble = error
        return True

    def _expire(self, now: float) -> None:
        """Given up, or it has to think so: nothing is held any more."""
        self._phase = Phase.JOINING
        self._generation, self._given, self._hold_at = 0, set(), {}
        self._dropped += self.under_way()
        self._beat, self._holding = None, {}
        self._consumption.drop(self._consumption.spaces)
        self._consumption.valid_until = 0.0
        self._beat_at = now

    def leave(self) -> KeyCall[Any]:
        """The call that ends it; to be sent when nothing else is under way."""
        body = GroupLeave(self.group, self.member).encode()
        return KeyCall(Kind.GROUP_LEAVE, body, _left, key=self.group.encode())


def _same(answer: Any) -> Any:
    return answer


def _left(_: GroupLeft) -> None:
    """Nothing is told of it."""
