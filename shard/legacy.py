"""Requests without a prefix that belong to another shard: passed on, and answered in our name.

The one rule: a legacy client talks to shard 0 and sees every key. It never learns that there are
shards, so what is passed on comes back without a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardnode.shard.waiting import Desk, Waiting
from shardnode.wire import limits
from shardnode.wire.errors import OutcomeUnknown, Overloaded, ShardnodeError, Unavailable
from shardnode.wire.frames import NO_CLIENT, Frame, Request, build_request, parse_reply
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.requests import SessionOpen

UNDER_WAY_MAX = 10_000
INTRODUCED_MAX = 10_000
NOBODY_ASKED = b"introduction"

RETRY_MS = 500
"""A worker that starts again is back, and found, within this."""


class _Letter(NamedTuple):
    waiting: Waiting
    client_id: bytes
    owner: int
    token: bytes
    frames: Sequence[Frame]


class Legacy:
    """What shard 0 has passed on and not heard of yet."""

    def __init__(self, desk: Desk, forward: Callable[[int, Sequence[Frame]], bool]) -> None:
        self._desk = desk
        self._forward = forward
        self._under_way: dict[bytes, Waiting] = {}
        self._unsent: list[tuple[int, _Letter]] = []
        self._introduced: set[tuple[bytes, int]] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._unsent)

    def pass_on(self, waiting: Waiting, request: Request, owner: int, now_ms: int) -> None:
        """Send it to its owner, in a sharded envelope of ours."""
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
        letter = _Letter(waiting, header.client_id, owner, self._number.to_bytes(8, "big"), frames)
        if not self._send(letter):
            self._unsent.append((min(now_ms + RETRY_MS, waiting.deadline_ms), letter))

    def _send(self, letter: _Letter) -> bool:
        if letter.client_id != NO_CLIENT:
            self._introduce(letter.client_id, letter.owner)
        if not self._forward(letter.owner, [letter.token, *letter.frames]):
            return False
        self._desk.counters["legacy_forwarded"] += 1
        self._under_way[letter.token] = letter.waiting
        return True

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
        """An owner answered: give it to whoever asked, without the prefix."""
        if frames[0] == NOBODY_ASKED:
            return
        waiting = self._under_way.pop(bytes(frames[0]), None)
        if waiting is None:
            self._desk.counters["legacy_late"] += 1
            return
        try:
            reply = parse_reply(frames[1:])
        except ShardnodeError as error:
            self._desk.refuse(waiting.message, waiting.to, error)
            return
        header = reply.header
        self._desk.answer(waiting, reply.body, code=header.code, index=header.log_index)

    def retry(self, now_ms: int) -> None:
        """Try again what could not be sent, and give up on what takes too long."""
        unsent, self._unsent = self._unsent, []
        for until_ms, letter in unsent:
            if self._send(letter):
                continue
            if now_ms < until_ms:
                self._unsent.append((until_ms, letter))
                continue
            waiting = letter.waiting
            error = Unavailable(f"shard {letter.owner} cannot be reached just now; try again")
            self._desk.refuse(waiting.message, waiting.to, error)
        late = [t for t, waiting in self._under_way.items() if now_ms >= waiting.deadline_ms]
        for token in late:
            waiting = self._under_way.pop(token)
            unknown = OutcomeUnknown("the shard that owns the key did not answer in time")
            self._desk.refuse(waiting.message, waiting.to, unknown)
