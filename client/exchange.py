"""One request on its way to one answer, over as many attempts as it takes.

One rule: a retry sends the same bytes. Sequence and client id are in them, so a shard recognises
what it has already done; only a request that certainly had no effect is built anew.

`copies` counts what was sent and not answered by "this had no effect". While it is 0, nothing can
have happened; above 0, a write that ends without an answer is an `OutcomeUnknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from shardnode.wire.codec import Answer
from shardnode.wire.errors import (
    DeadlineExceeded,
    OutcomeUnknown,
    Overloaded,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.frames import NO_CLIENT, Frame
from shardnode.wire.kinds import WRITES, Kind

if TYPE_CHECKING:
    from shardnode.client.calls import Call


class State(Enum):
    """Where an exchange is."""

    WAITING = "waiting"
    """For its turn on a shard, or for a pause to end."""
    QUEUED = "queued"
    """For the connection to its endpoint."""
    SENT = "sent"
    DONE = "done"


class Identity(NamedTuple):
    """The name of a write that a later process may repeat: whoever writes the same thing again
    gives it the same name, in a session that it opens by itself."""

    client_id: bytes
    sequence: int
    acked_below: int = 0


class Exchange:
    """What is known about one request."""

    __slots__ = (
        "answer",
        "attempt_s",
        "attempts",
        "avoid",
        "body",
        "call",
        "client_id",
        "copies",
        "deadline",
        "endpoint",
        "epoch",
        "error",
        "frames",
        "identity",
        "in_lane",
        "kind",
        "node",
        "pauses",
        "problem",
        "renewals",
        "routing_key",
        "sequence",
        "shard",
        "silences",
        "state",
        "timer",
        "write",
    )

    def __init__(
        self,
        kind: Kind,
        body: bytes,
        *,
        shard: int | None,
        routing_key: bytes = b"",
        call: Call[Any] | None,
        attempt_s: float = 0.0,
        node: int = 0,
        identity: Identity | None = None,
    ) -> None:
        self.kind = kind
        self.body = body
        self.shard = shard
        """None: any router answers it."""
        self.routing_key = routing_key
        self.call = call
        self.write = kind in WRITES
        self.attempt_s = attempt_s
        """How long one attempt may take; 0: as usual."""
        self.node = node
        """The only node that can answer it; 0: whoever leads the shard."""
        self.identity = identity
        """None: the client's own session, and the next number there."""
        self.deadline = 0.0
        self.state = State.WAITING
        self.sequence = 0
        self.client_id = NO_CLIENT
        self.frames: Sequence[Frame] = ()
        self.copies = 0
        self.attempts = 0
        self.silences = 0
        """Attempts that were not answered in time."""
        self.pauses = 0
        self.renewals = 0
        self.in_lane = False
        self.endpoint: str | None = None
        self.avoid: str | None = None
        """The endpoint that stayed silent last time."""
        self.timer = 0.0
        self.problem: ShardnodeError | None = None
        """Why the last attempt failed."""
        self.answer: Answer | None = None
        self.epoch = 0
        """Of the table it was built by; once it is answered, of the one in force there."""
        self.error: ShardnodeError | None = None

    @property
    def about(self) -> str:
        """What it is, for messages."""
        where = "" if self.shard is None else f" to shard {self.shard}"
        return f"{self.kind.name}{where}"

    @property
    def is_opening(self) -> bool:
        """Whether it opens the client's own session, ahead of a write."""
        return self.kind is Kind.SESSION_OPEN and self.call is None

    def no_effect(self) -> None:
        """One of the copies was refused before it had any effect."""
        if self.copies:
            self.copies -= 1

    def maybe_applied(self) -> bool:
        return self.write and self.copies > 0

    def out_of_time(self) -> ShardnodeError:
        """The error of an exchange whose deadline passed."""
        reason = f"; the last attempt: {self.problem.message}" if self.problem else ""
        if self.maybe_applied():
            return OutcomeUnknown(
                f"{self.about} was sent {self.attempts} times and not answered in time{reason};"
                " it may have had its effect: read before you repeat it"
            )
        if isinstance(self.problem, Overloaded):
            return self.problem
        if self.problem is not None:
            return Unavailable(f"{self.about} could not be done in time{reason}")
        if not self.attempts:
            return Unavailable(
                f"{self.about} could not be sent in time: no connection to"
                f" {self.endpoint or 'any node'}"
            )
        return DeadlineExceeded(f"{self.about} was not answered in time; it had no effect")

    def empty(self) -> None:
        """Let go of what is large: a timer may remember it for a while."""
        self.body, self.frames, self.call, self.answer = b"", (), None, None

    def given_up(self, reason: str) -> ShardnodeError:
        """The error of an exchange that is cut off from outside."""
        if self.maybe_applied():
            return OutcomeUnknown(f"{self.about}: {reason} before its answer came")
        return Unavailable(f"{self.about}: {reason}; it had no effect")
