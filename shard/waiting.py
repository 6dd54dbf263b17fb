"""A request on its way through a worker, and the ways to answer it.

The one rule: every request that came in is answered once, with a reply or a typed error; what
cannot be delivered is counted by the lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardnode.raft import Refused
from shardnode.raft import errors as raft_errors
from shardnode.wire.codec import Body
from shardnode.wire.errors import NotLeader, Overloaded, ShardnodeError, Unavailable
from shardnode.wire.frames import Frame, ReturnAddress, build_reply
from shardnode.wire.placement import split_member_id
from shardnode.wire.replies import encode_error

if TYPE_CHECKING:
    from shardnode.shard.lanes import Incoming

Send = Callable[["Incoming", Sequence[Frame]], None]


@dataclass(slots=True)
class Waiting:
    """Who waits, for what, and until when by the monotonic clock."""

    message: Incoming
    to: ReturnAddress
    body: Body
    deadline_ms: int


class Desk:
    """Answers, in the name of one shard."""

    def __init__(self, shard: int, send: Send) -> None:
        self.shard = shard
        self.epoch = 0
        self.counters: Counter[str] = Counter()
        self._send = send

    def answer(self, waiting: Waiting, body: Frame, *, code: int = 0, index: int = 0) -> None:
        """Send a reply body as it is."""
        self.counters["replies"] += 1
        frames = build_reply(
            waiting.to, body, shard=self.shard, code=code, epoch=self.epoch, log_index=index
        )
        self._send(waiting.message, frames)

    def refuse(self, message: Incoming, to: ReturnAddress, error: ShardnodeError) -> None:
        """Send an error."""
        self.counters[f"errors_{error.code}"] += 1
        body = encode_error(error)
        frames = build_reply(to, body, shard=self.shard, code=error.number, epoch=self.epoch)
        self._send(message, frames)


def in_wire_terms(refused: Refused) -> ShardnodeError:
    """What consensus refused, as clients know it. Nothing of it had an effect."""
    if isinstance(refused, raft_errors.NotLeader):
        leader = split_member_id(refused.leader)[1] if refused.leader else None
        return NotLeader(str(refused), leader=leader)
    if isinstance(refused, raft_errors.Busy):
        return Overloaded(str(refused), lag=refused.lag, limit=refused.limit)
    return Unavailable(str(refused))
