"""Sessions: the client's name on each shard, under which repeats are recognised.

One rule: a write travels behind the request that opens its session, on the same connection, until
a shard has granted it. A server keeps the order of a connection, so nobody has to wait.

A client has one id for all shards. When one shard no longer knows it, a new id is drawn for all;
what is under way keeps the id in its bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from shardnode.wire.errors import OutcomeUnknown, SessionExpired, ShardnodeError

SESSION_TTL_MS = 300_000
"""Any write is a sign of life. After five idle minutes the next one opens a new session, which
costs one more round trip."""


class Session:
    """The session on one shard."""

    __slots__ = ("client_id", "granted", "opened_at", "refused")

    def __init__(self, client_id: bytes) -> None:
        self.client_id = client_id
        self.granted = False
        self.opened_at: str | None = None
        """The endpoint whose connection carries the request that opens it."""
        self.refused: ShardnodeError | None = None
        """Why the shard will not open it, if an attempt cannot mend that."""


class Sessions:
    """The sessions of one client."""

    def __init__(self, new_client_id: Callable[[], bytes]) -> None:
        self._new_client_id = new_client_id
        self.client_id = new_client_id()
        self._by_shard: dict[int, Session] = {}

    def of(self, shard: int) -> Session:
        session = self._by_shard.get(shard)
        if session is None:
            session = self._by_shard[shard] = Session(self.client_id)
        return session

    def opened(self, shard: int, client_id: bytes, error: ShardnodeError | None) -> None:
        """A shard answered the request that opens a session, or will not."""
        session = self.of(shard)
        if session.client_id != client_id:
            return
        session.granted = error is None
        if error is not None:
            session.opened_at = None
            lasting = not error.retryable and not isinstance(error, SessionExpired | OutcomeUnknown)
            session.refused = error if lasting else None

    def expired(self, client_id: bytes) -> None:
        """A shard does not know this id any more."""
        if client_id == self.client_id:
            self.client_id = self._new_client_id()
            self._by_shard = {}

    def disconnected(self, endpoint: str) -> None:
        """What travelled there may be lost."""
        for session in self._by_shard.values():
            if session.opened_at == endpoint:
                session.opened_at = None
