"""What the core refuses, and who is to blame.

RaftError
├── Refused              the caller may try again, here or elsewhere; nothing was changed
│   ├── NotLeader        .leader is the member to ask, or 0 when none is known
│   ├── NotReady         the new leader still applies what its predecessors committed
│   ├── Busy             .lag and .limit: a bounded queue is full
│   ├── ChangePending    one membership change at a time, and none before a commit in this term
│   └── BadTarget        transfer or change names a member that cannot take part
├── MalformedMessage     bytes that are not a message of ours (see `codec`)
└── ProtocolViolation    a peer contradicts what was committed: the caller must stop this group
"""

from __future__ import annotations


class RaftError(Exception):
    """Everything that the consensus core raises on purpose."""


class Refused(RaftError):
    """The request was not taken and nothing was changed."""


class NotLeader(Refused):
    """Only a leader takes proposals, reads, changes and transfers."""

    def __init__(self, leader: int) -> None:
        known = f"ask member {leader:#x}" if leader else "no leader is known yet, try again"
        super().__init__(f"this member does not lead its group: {known}")
        self.leader = leader


class NotReady(Refused):
    """A leader that has not yet applied what was committed before its election."""

    def __init__(self, applied: int, required: int) -> None:
        super().__init__(
            f"the new leader has applied up to index {applied} and must reach {required} first"
        )
        self.applied = applied
        self.required = required


class Busy(Refused):
    """A bounded queue is full."""

    def __init__(self, what: str, lag: int, limit: int) -> None:
        super().__init__(f"{what}: {lag} of at most {limit}; try again when it has drained")
        self.lag = lag
        self.limit = limit


class ChangePending(Refused):
    """A membership change has to wait for the one before, or for a commit in this term."""


class BadTarget(Refused):
    """A transfer or a change that names a member which cannot take part in it."""


class MalformedMessage(RaftError):
    """Bytes that do not decode to a message: garbage, truncation, an unknown kind or version."""


class ProtocolViolation(RaftError):
    """A peer's message contradicts a committed entry. Going on would spread the damage."""
