"""Reading a shard in bulk: opening a cut and taking its pieces, a few ahead.

One rule: whatever belongs to a cut goes to the node that opened it, and its bytes are given in
order and once. Nothing is checked here: what the bytes must be is known to who asked for them.

    Pieces       pure: which pieces to ask for, and which bytes are next
    CutReader    … run over the network, by one thread
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shardnode.client import operations
from shardnode.client.arguments import to_endpoints
from shardnode.client.calls import OneRequest
from shardnode.client.engine import Engine
from shardnode.client.values import Topology
from shardnode.wire import limits
from shardnode.wire.codec import Answer, Body
from shardnode.wire.cuts import (
    LEASE_MS,
    CutClose,
    CutClosed,
    CutKeep,
    CutKept,
    CutLog,
    CutOpen,
    CutOpened,
    CutPiece,
    CutRead,
)
from shardnode.wire.kinds import Kind

T = TypeVar("T")
A = TypeVar("A", bound=Answer)

PIECE_BYTES = limits.cut_piece_bytes_max
LOG_PIECE_BYTES = 256 << 10
"""Of small records a shard needs longer for each byte."""

AHEAD = 2
"""Pieces under way: one is read there while another one travels."""

CLOSE_TIMEOUT_S = 2.0
"""Its lease ends anyway."""

TIMEOUT_S = 10.0
"""For one piece: a process that was killed is back before, and a leader elected."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that is open."""

    shard: int
    opened: CutOpened

    @property
    def node(self) -> int:
        """Who has it."""
        return self.opened.node


Ask = Callable[[int], tuple[Kind, Body]]
"""The request for the piece at an offset."""


class Pieces:
    """The pieces of one file from `offset` to `end`, or of the log, until a short one tells the
    end. A shell starts `new_calls`, waits for `needed` and gives out what `take` returns until it
    is `over`."""

    def __init__(
        self, cut: Cut, ask: Ask, piece_bytes: int, offset: int = 0, end: int | None = None
    ) -> None:
        self._cut = cut
        self._ask = ask
        self._piece_bytes = piece_bytes
        self._offset = offset
        self._end = end
        self._is_short = False
        self._calls: deque[OneRequest[CutPiece]] = deque()

    @property
    def over(self) -> bool:
        """Whether there is nothing more to give."""
        return self._is_short or not (self._calls or self._goes_on)

    @property
    def _goes_on(self) -> bool:
        return not self._is_short and (self._end is None or self._offset < self._end)

    def new_calls(self) -> Sequence[OneRequest[CutPiece]]:
        """Calls to start."""
        new = []
        while len(self._calls) < AHEAD and self._goes_on:
            kind, body = self._ask(self._offset)
            call = request(self._cut, kind, body, CutPiece)
            self._offset += self._piece_bytes
            self._calls.append(call)
            new.append(call)
        return new

    def needed(self) -> Sequence[OneRequest[CutPiece]]:
        """The call without which nothing more can be given."""
        return [self._calls[0]]

    def under_way(self) -> Sequence[OneRequest[CutPiece]]:
        """Calls to cancel when the caller has had enough."""
        return [call for call in self._calls if not call.done]

    def take(self) -> bytes:
        """The next bytes; raises the error of the shard."""
        data = self._calls.popleft().result().data
        self._is_short = len(data) < self._piece_bytes
        return data


def request(cut: Cut, kind: Kind, body: Body, _answer: type[A]) -> OneRequest[A]:
    """Something about a cut, for who has it."""
    return OneRequest(kind, body.encode(), _same, shard=cut.shard, node=cut.node)


def _same(answer: A) -> A:
    return answer


class BulkReader(Protocol):
    """What a backup needs of a cluster; `CutReader` is one."""

    def topology(self) -> Topology:
        """Whose cuts these are."""

    def node_id(self) -> int:
        """The node that answers."""

    def open(self, shard: int, ask: CutOpen) -> Cut | CutOpened:
        """A cut; a bare answer says that there is none yet."""

    def file(self, cut: Cut, name: str, size: int, offset: int = 0) -> Iterator[bytes]:
        """A file of the cut's snapshot, which has this size, from an offset on."""

    def log(self, cut: Cut, first: int) -> Iterator[bytes]:
        """The cut's log from the record `first` on."""

    def keep(self, cut: Cut, log_from: int = 0) -> None:
        """Renew its lease; what is below `log_from` is not needed any more."""

    def close(self, cut: Cut, *, doubt: bool = False) -> None:
        """Let it go."""


class CutReader:
    """Cuts of a cluster, for one thread. `address` is as for `Client`."""

    def __init__(
        self, address: str | Sequence[str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._engine = Engine(to_endpoints(address))
        self._timeout_s = timeout_s

    def topology(self) -> Topology:
        """Whose cuts these are."""
        return self._run(operations.topology())

    def node_id(self) -> int:
        """The node that answers."""
        return self._run(operations.status()).node_id

    def open(self, shard: int, ask: CutOpen, node: int = 0) -> Cut | CutOpened:
        """A cut; a bare answer says that there is none yet. `node`: whose replica is to open it, if
        it may be stale; else that of the leader does."""
        call: OneRequest[CutOpened] = OneRequest(
            Kind.CUT_OPEN, ask.encode(), _same, shard=shard, node=node
        )
        opened = self._run(call)
        return Cut(shard, opened) if opened.cut else opened

    def file(self, cut: Cut, name: str, size: int, offset: int = 0) -> Iterator[bytes]:
        """A file of the cut's snapshot, which has this size, from an offset on."""
        number = cut.opened.cut

        def ask(at: int) -> tuple[Kind, Body]:
            return Kind.CUT_READ, CutRead(number, name, at, PIECE_BYTES)

        return self._pieces(Pieces(cut, ask, PIECE_BYTES, offset, size))

    def log(self, cut: Cut, first: int) -> Iterator[bytes]:
        """The cut's log from the record `first` on."""
        number = cut.opened.cut

        def ask(at: int) -> tuple[Kind, Body]:
            return Kind.CUT_LOG, CutLog(number, first, at, LOG_PIECE_BYTES)

        return self._pieces(Pieces(cut, ask, LOG_PIECE_BYTES))

    def keep(self, cut: Cut, log_from: int = 0, *, lease_ms: int = LEASE_MS) -> None:
        """Renew its lease; what is below `log_from` is not needed any more."""
        body = CutKeep(cut.opened.cut, lease_ms, log_from)
        self._run(request(cut, Kind.CUT_KEEP, body, CutKept))

    def close(self, cut: Cut, *, doubt: bool = False) -> None:
        """Let it go."""
        body = CutClose(cut.opened.cut, doubt)
        call = request(cut, Kind.CUT_CLOSE, body, CutClosed)
        self._engine.run(call, min(CLOSE_TIMEOUT_S, self._timeout_s))
        call.result()

    def finish(self) -> None:
        """Close all connections."""
        self._engine.close()

    def _run(self, call: OneRequest[T]) -> T:
        self._engine.run(call, self._timeout_s)
        return call.result()

    def _pieces(self, pieces: Pieces) -> Iterator[bytes]:
        engine, timeout_s = self._engine, self._timeout_s
        try:
            while not pieces.over:
                engine.start(pieces.new_calls(), timeout_s)
                needed = pieces.needed()
                engine.extend(needed, timeout_s)  # it may have waited while we were elsewhere
                engine.wait(needed)
                yield pieces.take()
        finally:
            engine.cancel(pieces.under_way())
