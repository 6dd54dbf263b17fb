"""A request inside a session takes effect once, however often it comes.

The one rule: the reply of the first time is what every copy gets, also when it was a refusal.
"""

from __future__ import annotations

from collections.abc import Callable

from shardnode.shard.entries import Command, refuse
from shardnode.shard.sessions import REPLIES_MAX, SessionTable, Verdict
from shardnode.wire.errors import InvalidRequest, Overloaded, SessionExpired, ShardnodeError


def run_once(sessions: SessionTable, command: Command, run: Callable[[], bytes]) -> bytes:
    """The reply to a command: `run()`, or what it gave the first time."""
    client, sequence = int.from_bytes(command.client_id, "big"), command.sequence
    verdict = sessions.judge(client, sequence)
    if verdict is Verdict.FRESH:
        reply = run()
        sessions.record(client, sequence, reply, command.acked_below, command.stamp_ms)
        return reply
    if verdict is Verdict.REPEAT:
        sessions.touch(client, command.acked_below, command.stamp_ms)
        return sessions.reply(client, sequence)
    return refuse(verdict_error(verdict, sequence))


def verdict_error(verdict: Verdict, sequence: int) -> ShardnodeError:
    if verdict is Verdict.EXPIRED:
        return SessionExpired(
            "the session is unknown here: it ended, or was never opened; open one with a new id"
        )
    if verdict is Verdict.FULL:
        return Overloaded(
            f"expected at most {REPLIES_MAX} replies not yet acknowledged in one session; raise"
            " acked_below",
            lag=REPLIES_MAX,
            limit=REPLIES_MAX,
        )
    assert verdict is Verdict.STALE, "the others are handled"
    return InvalidRequest(
        f"expected a sequence that is not acknowledged, found {sequence}; number each request once"
    )
