"""What one task has under way: calls in a window, each in a session of the task's own name.

One rule: memory is bounded. Whoever sends waits until what it brings fits into the window; nothing
else is kept of what was sent but what is needed to send it again.

While a task waits for its rows nobody looks after what is under way. That time does not count: how
long a shard is out of reach is counted while somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from time import monotonic
from typing import Any, Self

from shardnode.client.arguments import to_endpoints
from shardnode.client.calls import Call, T, TableCall
from shardnode.client.engine import Engine
from shardnode.client.exchange import Identity
from shardnode.pipeline.options import Options
from shardnode.pipeline.write_calls import NamedWrite
from shardnode.pipeline.write_identity import SESSION_WRITES_MAX, Author
from shardnode.wire import limits
from shardnode.wire.errors import SessionExpired
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable
from shardnode.wire.requests import SessionClose, SessionOpen

WINDOW_BYTES = 16 << 20
"""Of all requests of a task that are not answered yet."""

SESSION_TTL_MS = limits.session_ttl_ms_max
"""A day: a task that is run again, or a micro-batch that is, is a repeat for so long."""

ERAS_MAX = 16
"""Sessions of one name that expired, one after the other, and are still remembered as such."""

_AWAY_S = 0.05
"""Longer pauses between two looks are not counted."""

_OPENINGS = 1 << 46
"""Where the numbers of these requests begin, away from those of all others."""

Done = Callable[[Call[Any]], None]


class Sender:
    """The calls of one task."""

    def __init__(self, options: Options, author: Author) -> None:
        self.author = author
        self.sessions: dict[tuple[int, int], bytes] = {}
        """(shard, volume) → client id of a session that is open."""
        self._timeout_s = options.timeout
        self._engine = Engine(to_endpoints(options.connect))
        self._table: PlacementTable | None = None
        self._under_way: dict[Call[Any], tuple[int, Done]] = {}
        self._bytes = 0
        self._looked_at = monotonic()
        self._writes: dict[int, int] = {}
        self._openings = count(_OPENINGS)

    @property
    def table(self) -> PlacementTable:
        """Who owns what, as far as is known."""
        return self._table or self.new_table(0)

    def new_table(self, epoch_min: int) -> PlacementTable:
        """A table of at least that epoch."""
        self._table = self.run(TableCall(epoch_min))
        return self._table

    def run(self, call: Call[T]) -> T:
        """One call, waited for."""
        self._engine.run(call, self._timeout_s)
        return call.result()

    def name(self, shard: int, digest: int) -> Identity:
        """The name of a write to a shard, in a session that is open there."""
        written = self._writes.get(shard, 0)
        self._writes[shard] = written + 1
        volume = written // SESSION_WRITES_MAX
        session = self.sessions.get((shard, volume))
        if session is None:
            session = self.sessions[shard, volume] = self._open(shard, volume)
        return self.author.identity(session, digest)

    def _open(self, shard: int, volume: int) -> bytes:
        """The id of the task's session on a shard. One that expired cannot be opened again; what a
        stream writes then cannot be a repeat of what was written in it, unless it is a day old."""
        for era in range(ERAS_MAX):
            session = self.author.session(volume, era)
            identity = Identity(session, next(self._openings))
            body = SessionOpen(SESSION_TTL_MS).encode()
            try:
                self.run(NamedWrite(Kind.SESSION_OPEN, body, shard, identity))
            except SessionExpired:
                if not self.author.is_stream:
                    break
            else:
                return session
        raise SessionExpired(
            f"what partition {self.author.partition} of Spark has to write was written to shard"
            f" {shard} in a session that is over: the job has ended, or was silent for a day; run"
            " it again as a whole"
        )

    def send(self, call: Call[Any], size: int, done: Done) -> None:
        """Start a call as soon as there is room; `done` is told when it has ended."""
        self.wait(lambda: not self._bytes or self._bytes + size <= WINDOW_BYTES)
        self._under_way[call] = (size, done)
        self._bytes += size
        self._engine.start((call,), self._timeout_s)

    def wait(self, enough: Callable[[], bool]) -> None:
        """Until that is so, which what is under way must bring about."""
        if monotonic() - self._looked_at > _AWAY_S:
            self._engine.extend([*self._under_way], self._timeout_s)
        self._settle(call for call in list(self._under_way) if call.done)
        while not enough():
            calls = list(self._under_way)
            assert calls, "somebody waits for what nobody does"
            self._engine.wait(calls, any)
            self._settle(call for call in calls if call.done)
        self._looked_at = monotonic()

    def drain(self) -> None:
        """Until everything has ended."""
        self.wait(lambda: not self._under_way)

    def _settle(self, calls: Iterable[Call[Any]]) -> None:
        for call in calls:
            size, done = self._under_way.pop(call)
            self._bytes -= size
            done(call)

    def close_sessions(self, sessions: Iterable[tuple[int, bytes]]) -> None:
        """(shard, client id): what still comes of their tasks is refused from now on. One that
        cannot be closed ends by itself."""
        for shard, session in sessions:
            identity = Identity(session, next(self._openings))
            body = SessionClose().encode()
            call = NamedWrite(Kind.SESSION_CLOSE, body, shard, identity)
            self.send(call, len(body), lambda _: None)
        self.drain()

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
