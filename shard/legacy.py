"""Requests without a prefix that somebody else has to execute: passed on, answered in our name.

The one rule: a legacy client talks to shard 0 of one node and sees every key. It never learns that
there are shards or leaders, so what is passed on comes back without a prefix.

    from                        to                                      by
    shard 0                     the worker of the owner on this node    its ipc socket
    a worker that follows       the worker that leads, on its node      a `letters.Carry`

What is refused because the lead has moved had no effect, and is sent again until the time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardnode.shard.waiting import Desk, Waiting
from shardnode.wire import limits
from shardnode.wire.errors import (
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.frames import NO_CLIENT, Frame, Request, build_request, parse_reply
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.requests import SessionOpen

UNDER_WAY_MAX = 10_000
INTRODUCED_MAX = 10_000
NOBODY_ASKED = b"introduction"

RETRY_MS = 3_000
"""A worker that starts again is back, and a new leader is found, within this."""


Forward = Callable[[int, Sequence[Frame]], bool]
Carry = Callable[[int, Sequence[Frame]], bool]
"""(token, frames): to the member that leads; False when there is none that can be reached."""


class _Letter(NamedTuple):
    waiting: Waiting
    client_id: bytes
    owner: int
    token: int
    frames: Sequence[Frame]
    until_ms: int


class Legacy:
    """What this worker has passed on and not heard of yet."""

    def __init__(self, desk: Desk, forward: Forward, carry: Carry) -> None:
        self._desk = desk
        self._forward = forward
        self._carry = carry
        self._under_way: dict[int, _Letter] = {}
        self._unsent: list[_Letter] = []
        self._introduced: set[tuple[bytes, int]] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._unsent)

    def pass_on(self, waiting: Waiting, request: Request, owner: int, now_ms: int) -> None:
        """Send it to its owner, or to the leader of our group, in a sharded envelope of ours."""
        header = request.header
        frames = build_request(
            header.kind,
            request.body,
            prefix=owner,
            routing_key=request.routing_key,
            flags=header.flags | Flag.FORWARDED,
            deadline_ms=header.deadline_ms,
            epoch=self._desk.epoch,
            client_id=header.client_id,
            sequence=header.sequence,
            acked_below=header.acked_below,
        )
        if len(self._under_way) + len(self._unsent) >= UNDER_WAY_MAX:
            raise Overloaded(
                "too many requests without a prefix are under way; try again later",
                lag=UNDER_WAY_MAX,
                limit=UNDER_WAY_MAX,
            )
        self._number += 1
        until_ms = min(now_ms + RETRY_MS, waiting.deadline_ms)
        letter = _Letter(waiting, header.client_id, owner, self._number, frames, until_ms)
        if not self._send(letter):
            self._unsent.append(letter)

    def _send(self, letter: _Letter) -> bool:
        if letter.owner == self._desk.shard:
            sent = self._carry(letter.token, letter.frames)
        else:
            if letter.client_id != NO_CLIENT:
                self._introduce(letter.client_id, letter.owner)
            token = letter.token.to_bytes(8, "big")
            sent = self._forward(letter.owner, [token, *letter.frames])
        if sent:
            self._desk.counters["legacy_forwarded"] += 1
            self._under_way[letter.token] = letter
        return sent

    def _introduce(self, client_id: bytes, owner: int) -> None:
        """A legacy client opens its session here, on shard 0: open it on the owner too. Again is
        harmless, and the answer concerns nobody."""
        if (client_id, owner) in self._introduced:
            return
        if len(self._introduced) >= INTRODUCED_MAX:
            self._introduced.clear()
        frames = build_request(
            Kind.SESSION_OPEN,
            SessionOpen(limits.session_ttl_ms_max).encode(),
            prefix=owner,
            flags=Flag.FORWARDED,
            epoch=self._desk.epoch,
            client_id=client_id,
        )
        if self._forward(owner, [NOBODY_ASKED, *frames]):
            self._introduced.add((client_id, owner))

    def arrived(self, frames: Sequence[bytes]) -> None:
        """A worker of this node answered."""
        if frames[0] != NOBODY_ASKED:
            self.answered(int.from_bytes(frames[0], "big"), frames[1:])

    def answered(self, token: int, frames: Sequence[bytes]) -> None:
        """Give an answer to whoever asked, without the prefix."""
        letter = self._under_way.pop(token, None)
        if letter is None:
            self._desk.counters["legacy_late"] += 1
            return
        waiting = letter.waiting
        try:
            reply = parse_reply(frames)
        except ShardnodeError as error:
            self._desk.refuse(waiting.message, waiting.to, error)
            return
        header = reply.header
        if header.code == NotLeader.number:
            self._unsent.append(letter)
        else:
            self._desk.answer(waiting, reply.body, code=header.code, index=header.log_index)

    def retry(self, now_ms: int) -> None:
        """Try again what could not be sent, and give up on what takes too long."""
        unsent, self._unsent = self._unsent, []
        for letter in unsent:
            if now_ms >= letter.until_ms:
                error = Unavailable(f"shard {letter.owner} cannot be reached just now; try again")
                self._desk.refuse(letter.waiting.message, letter.waiting.to, error)
            elif not self._send(letter):
                self._unsent.append(letter)
        late = [t for t, each in self._under_way.items() if now_ms >= each.waiting.deadline_ms]
        for token in late:
            waiting = self._under_way.pop(token).waiting
            unknown = OutcomeUnknown("the shard that owns the key did not answer in time")
            self._desk.refuse(waiting.message, waiting.to, unknown)
