"""Client sessions: why a retry never applies twice.

The one rule: this table is part of the replicated state. It changes only by applying entries, it
travels in snapshots, and its clock is the stamp in the log, so every replica decides alike.

A client numbers its requests. The first time a number is applied its reply is kept; a repeat gets
that reply and has no effect. `acked_below` in each request says which replies the client has
seen, and those are forgotten. A session that was silent for too long is expired by an entry of
the log; afterwards its repeats cannot be recognised, so they are refused, never run. Its id is
remembered for a while longer: a copy of the request that opened it, held up on the way, must not
open it again with an empty memory.

    a request with          | verdict
    ------------------------+---------------------------------------------
    an unknown client       | EXPIRED   refuse, no effect
    a number below acked    | STALE     refuse, it ran and was acknowledged
    a number with a reply   | REPEAT    answer with that reply
    too many replies unseen | FULL      refuse, no effect
    anything else           | FRESH     run it and `record` the reply
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgpack

_CLIENT_BYTES = 16

REPLIES_MAX = 4096
"""Replies kept for one client: more requests under way than any client should have."""


class Verdict(Enum):
    """What to do with a request; see the table above."""

    FRESH = "fresh"
    REPEAT = "repeat"
    STALE = "stale"
    EXPIRED = "expired"
    FULL = "full"


@dataclass(slots=True)
class _Session:
    seen_stamp: int
    ttl: int = 0
    acked_below: int = 0
    replies: dict[int, bytes] = field(default_factory=dict)


class SessionTable:
    """All sessions of one group."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}
        self._ended: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, client: int) -> bool:
        return client in self._sessions

    def open(self, client: int, stamp: int, ttl: int = 0) -> bool:
        """Begin a session; opening one that is open keeps what it knows. False once it ended.

        `ttl` is how much longer than `expire` says it may be silent.
        """
        if client in self._ended:
            return False
        session = self._sessions.get(client)
        if session is None:
            self._sessions[client] = _Session(stamp, ttl)
        else:
            session.ttl = ttl
            session.seen_stamp = max(session.seen_stamp, stamp)
        return True

    def judge(self, client: int, sequence: int) -> Verdict:
        """What to do with a request of that number."""
        session = self._sessions.get(client)
        if session is None:
            return Verdict.EXPIRED
        if sequence < session.acked_below:
            return Verdict.STALE
        if sequence in session.replies:
            return Verdict.REPEAT
        if len(session.replies) >= REPLIES_MAX:
            return Verdict.FULL
        return Verdict.FRESH

    def reply(self, client: int, sequence: int) -> bytes:
        """The reply kept for a repeat."""
        return self._sessions[client].replies[sequence]

    def record(
        self, client: int, sequence: int, reply: bytes, acked_below: int, stamp: int
    ) -> None:
        """A fresh request took effect: keep its reply, forget what the client has seen."""
        session = self._sessions[client]
        session.replies[sequence] = reply
        self.touch(client, acked_below, stamp)

    def touch(self, client: int, acked_below: int, stamp: int) -> None:
        """The client was heard of and has seen every reply below `acked_below`."""
        session = self._sessions[client]
        session.seen_stamp = max(session.seen_stamp, stamp)
        if acked_below > session.acked_below:
            session.acked_below = acked_below
            for sequence in [s for s in session.replies if s < acked_below]:
                del session.replies[sequence]

    def ttl(self, client: int) -> int:
        """What an open session was opened with."""
        return self._sessions[client].ttl

    def has_ended(self, client: int) -> bool:
        """Whether it was open once, and not too long ago."""
        return client in self._ended

    def silent(self, silent_since: int) -> list[int]:
        """The sessions not heard of since that stamp less their own time to live, in order."""
        return sorted(c for c, s in self._sessions.items() if s.seen_stamp + s.ttl < silent_since)

    def end(self, client: int, stamp: int) -> None:
        """The session is over; its id is remembered."""
        del self._sessions[client]
        self._ended[client] = stamp

    def forget(self, before: int) -> None:
        """Forget ids that ended before that stamp: no copy of their opening is under way."""
        for client in [c for c, stamp in self._ended.items() if stamp < before]:
            del self._ended[client]

    def expire(self, silent_since: int, forget_before: int) -> int:
        """End every session that is `silent`, and forget old ids; how many ended."""
        silent = self.silent(silent_since)
        for client in silent:
            self.end(client, silent_since)
        self.forget(forget_before)
        return len(silent)

    def first_deadline(self) -> int | None:
        """When the first session is silent for too long; None without sessions."""
        return min((s.seen_stamp + s.ttl for s in self._sessions.values()), default=None)

    def oldest_stamp(self) -> int | None:
        """When the most silent session was last heard of; None without sessions."""
        return min((s.seen_stamp for s in self._sessions.values()), default=None)

    def encode(self) -> bytes:
        """For a snapshot: equal tables give equal bytes on every replica."""
        rows = [
            (_pack(client), (s.seen_stamp, s.ttl), s.acked_below, sorted(s.replies.items()))
            for client, s in sorted(self._sessions.items())
        ]
        ended = [(_pack(client), stamp) for client, stamp in sorted(self._ended.items())]
        return bytes(msgpack.packb((rows, ended)))

    @classmethod
    def decode(cls, data: bytes) -> SessionTable:
        """The inverse of `encode`, for bytes whose checksum was verified."""
        table = cls()
        rows, ended = msgpack.unpackb(data)
        for client, heard, acked_below, replies in rows:
            seen_stamp, ttl = heard
            known = _Session(seen_stamp, ttl, acked_below, dict(map(tuple, replies)))
            table._sessions[_unpack(client)] = known
        table._ended = {_unpack(client): stamp for client, stamp in ended}
        return table


def _pack(client: int) -> bytes:
    """A client id has 128 bits, more than a msgpack number."""
    return client.to_bytes(_CLIENT_BYTES, "big")


def _unpack(client: bytes) -> int:
    return int.from_bytes(client, "big")
