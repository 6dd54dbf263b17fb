"""What `Consumer` and `AsyncConsumer` share: how one is made, and what it answers without asking.

One rule: whatever decides is in `consumers`, `membership` and `selection`; the shells only start
calls, wait, and hand over.
"""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from shardnode.client.calls import Call
from shardnode.client.consumers import Consumption, OnLost
from shardnode.client.membership import Membership, New
from shardnode.client.messages import Message
from shardnode.client.offsets import Offset, to_start
from shardnode.client.partition_calls import CommitCall, CommittedCall
from shardnode.client.selection import Selection
from shardnode.client.topics import to_partition
from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest, ShardnodeError

NAP_S = 60.0
"""The longest sleep of somebody who waits for no time in particular."""

FOREVER_S = 86_400.0

LOOK_S = 0.001
"""What it takes at least to look at what has come."""


class Assigner(Protocol):
    """Who says what is held."""

    @property
    def wake_at(self) -> float: ...

    def new_calls(self, now: float) -> Sequence[New]: ...

    def dropped_calls(self) -> Sequence[Call[Any]]: ...

    def under_way(self) -> Sequence[Call[Any]]: ...

    def absorb(self, now: float) -> bool: ...


class Consuming:
    """One consumer without its shell."""

    def __init__(
        self,
        topic: str,
        *,
        group: str | None,
        start: Offset,
        partitions: Iterable[int] | None,
        session_timeout: float,
        on_lost: OnLost,
        patience_s: float,
    ) -> None:
        if on_lost not in ("raise", "skip"):
            raise InvalidRequest(f"expected on_lost as 'raise' or 'skip', found {on_lost!r}")
        self.state = Consumption(on_lost=on_lost)
        self.commits: deque[CommitCall] = deque()
        """Those that nobody waits for."""
        self.membership: Membership | None = None
        self.assigner: Assigner
        self.is_closed = False
        self._process = os.getpid()
        first = to_start(start, "start")
        if group is None:
            chosen = None if partitions is None else [to_partition(each) for each in partitions]
            self.assigner = Selection(
                self.state, topic=topic, start=first, partitions=chosen, patience_s=patience_s
            )
            return
        if partitions is not None:
            raise InvalidRequest(
                "expected a group or partitions, found both; a group decides who reads what"
            )
        self.assigner = self.membership = Membership(
            self.state,
            group=group,
            member=new_member_name(),
            topic=topic,
            session_s=_to_session_s(session_timeout),
            start=first,
            patience_s=patience_s,
        )

    def check(self) -> None:
        """Before anything else."""
        if self.is_closed:
            raise InvalidRequest("this consumer is closed; make a new one")
        if self._process != os.getpid():
            raise InvalidRequest("this consumer belongs to the parent process; make a new one here")

    def check_commits(self) -> None:
        """Raises the error of a commit that nobody waited for."""
        while self.commits and self.commits[0].done:
            self.state.committed(self.commits.popleft())

    def new_commits(self, what: Message | Iterable[Message] | None) -> list[CommitCall]:
        """The calls of a commit."""
        if self.membership is None:
            raise InvalidRequest(
                "expected a group to commit for, found none; name one when the consumer is made"
            )
        return self.state.commits(what)

    def end_commits(self, calls: Sequence[CommitCall]) -> None:
        """All of them are done; raises the first error."""
        errors: list[ShardnodeError] = []
        for call in calls:
            try:
                self.state.committed(call)
            except ShardnodeError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def committed(self, partition: int) -> CommittedCall:
        """The call that asks how far the group is."""
        if self.membership is None:
            raise InvalidRequest("expected a group to ask for, found none")
        return CommittedCall(self.state.of(partition).namespace, self.membership.group)


def to_limit(max_messages: int) -> int:
    """How many messages may come at once."""
    if type(max_messages) is not int:
        raise TypeError(f"expected max_messages as an int, found {type(max_messages).__name__}")
    if max_messages < 1:
        raise InvalidRequest(f"expected max_messages of 1 or more, found {max_messages}")
    return max_messages


def to_patience_s(timeout: float) -> float:
    """How long to wait for messages; 0: only for what has come."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"expected timeout in seconds, found {type(timeout).__name__}")
    if not timeout >= 0:
        raise InvalidRequest(f"expected a timeout of 0 seconds or more, found {timeout:g}")
    return min(max(float(timeout), LOOK_S), FOREVER_S)


def _to_session_s(session_timeout: float) -> float:
    low, high = limits.session_ttl_ms_min / 1000, limits.session_ttl_ms_max / 1000
    if not isinstance(session_timeout, int | float) or isinstance(session_timeout, bool):
        raise TypeError(
            f"expected session_timeout in seconds, found {type(session_timeout).__name__}"
        )
    if not low <= session_timeout <= high:
        raise InvalidRequest(
            f"expected a session_timeout from {low:g} to {high:g} seconds, found"
            f" {session_timeout:g}"
        )
    return float(session_timeout)


def new_member_name() -> str:
    """Says where it is, and is nobody else's: a join that is repeated is the same member's."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{os.urandom(4).hex()}"
