"""What becomes of a refused request: the decision alone, as a function.

One rule: nothing is guessed. A write of which a copy may have run, and about which nobody can tell
any more, is an `OutcomeUnknown`.

    NotLeader            to the leader it names, the same bytes
    WrongShard           ends the exchange; its call asks for the table, and groups its keys anew
    Overloaded           the same bytes, after a pause
    Unavailable          the same bytes, after a pause, another way if there is one
    SessionExpired       built anew in a new session; OutcomeUnknown if an earlier copy may have run
                         (a heartbeat that hears it again in a new session comes from no member,
                         and a session that a caller named himself is his to open anew)
    OutcomeUnknown       a write: the same bytes, after a pause, to learn the outcome
    DeadlineExceeded     ends it, unless an earlier copy may have run
    NotFound             ends it; an append of which an earlier copy may have run is sent again
    anything else        ends it; OutcomeUnknown if an earlier copy of a write may have run
"""

from __future__ import annotations

from enum import Enum

from shardnode.client.exchange import Exchange
from shardnode.wire.errors import (
    Conflict,
    DeadlineExceeded,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    SessionExpired,
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.kinds import APPENDS, Kind


class Fate(Enum):
    """What to do with an exchange."""

    FAIL = "fail"
    """End it with the error."""
    UNKNOWN = "unknown"
    """End it with `OutcomeUnknown`."""
    FOLLOW = "follow"
    """Send the same bytes to the leader."""
    PAUSE = "pause"
    """Send the same bytes after a pause."""
    RENEW = "renew"
    """Build it anew in a new session."""
    LISTEN = "listen"
    """Send nothing more; an earlier copy may still be answered."""


def fate_of(exchange: Exchange, error: ShardnodeError, *, said: bool, epoch: int) -> Fate:
    """The fate of an exchange of which one copy was refused, which `copies` already reflects.

    `said`: the error is what the shard answered; otherwise its answer could not be read. `epoch`:
    that of the client's table now.
    """
    if exchange.is_opening:
        return Fate.FAIL  # the write behind it has its own answer
    if not said:
        return Fate.UNKNOWN if exchange.write else Fate.FAIL
    if isinstance(error, NotLeader):
        return Fate.FOLLOW
    if isinstance(error, WrongShard) and exchange.epoch >= max(epoch, error.epoch or 0):
        return Fate.PAUSE  # the shard has yet to learn the table by which we asked it
    if isinstance(error, Overloaded | Unavailable):
        return Fate.PAUSE
    if isinstance(error, OutcomeUnknown):
        return Fate.PAUSE if exchange.write else Fate.FAIL
    if isinstance(error, NotFound) and exchange.kind in APPENDS and exchange.maybe_applied():
        return Fate.PAUSE  # said at the door, before sessions are looked at: it is no outcome
    if isinstance(error, Conflict | NotFound):
        return Fate.FAIL  # a session remembers them: they are the outcome of every copy
    if exchange.maybe_applied():
        return Fate.LISTEN if isinstance(error, DeadlineExceeded) else Fate.UNKNOWN
    if isinstance(error, SessionExpired):
        is_answer = exchange.kind is Kind.GROUP_HEARTBEAT and exchange.renewals
        return Fate.FAIL if is_answer or exchange.identity else Fate.RENEW
    if exchange.write and error.number == ShardnodeError.number:
        return Fate.UNKNOWN  # something unexpected happened there, perhaps afterwards
    return Fate.FAIL


def unknown(exchange: Exchange, error: ShardnodeError) -> OutcomeUnknown:
    """The error for `Fate.UNKNOWN`."""
    return OutcomeUnknown(
        f"{exchange.about} was sent {exchange.attempts} times, and the answer tells nothing about"
        f" its effect ({error.message}); read before you repeat it"
    )
