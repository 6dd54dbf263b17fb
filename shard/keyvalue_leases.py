"""Which keys go when which session ends.

The one rule: this is part of the replicated state. A key belongs to the session that wrote it last
with `leased`; any later write or deletion of the key ends the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack

from shardnode.wire import limits
from shardnode.wire.errors import limit_exceeded

LEASED_KEYS_MAX = limits.batch_keys_max
"""Keys of one session: they are all deleted by one entry when it ends."""


class Leases:
    """Keys by session, and sessions by key."""

    def __init__(self) -> None:
        self._owner: dict[bytes, bytes] = {}
        self._keys: dict[bytes, set[bytes]] = {}

    def check(self, client: bytes, keys: Sequence[bytes]) -> None:
        """Raises `LimitExceeded` if the session would have too many."""
        count = len(self._keys.get(client, set()).union(keys))
        if count > LEASED_KEYS_MAX:
            raise limit_exceeded(
                "batch_keys_max", LEASED_KEYS_MAX, count, "lease fewer keys in one session"
            )

    def take(self, client: bytes, keys: Sequence[bytes]) -> None:
        """The session holds these keys now; nobody else does (see `drop`)."""
        self._owner.update(dict.fromkeys(keys, client))
        self._keys.setdefault(client, set()).update(keys)

    def drop(self, keys: Iterable[bytes]) -> None:
        """These keys were written or deleted."""
        if not self._owner:
            return
        for key in self._owner.keys() & set(keys):
            client = self._owner.pop(key)
            held = self._keys[client]
            held.discard(key)
            if not held:
                del self._keys[client]

    def count(self, client: bytes) -> int:
        """How many keys the session holds."""
        return len(self._keys.get(client, ()))

    def end(self, client: bytes) -> list[bytes]:
        """The session is over; the keys to delete, in order."""
        keys = sorted(self._keys.pop(client, ()))
        for key in keys:
            del self._owner[key]
        return keys

    def encode(self) -> bytes:
        """Equal leases give equal bytes on every replica."""
        rows = [(client, sorted(keys)) for client, keys in sorted(self._keys.items())]
        return bytes(msgpack.packb(rows))

    @classmethod
    def decode(cls, data: bytes) -> Leases:
        """The inverse of `encode`; nothing decodes to no leases."""
        leases = cls()
        for client, keys in msgpack.unpackb(data) if data else ():
            leases.take(client, keys)
        return leases
