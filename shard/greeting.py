"""The first boot of a member of a larger group: is this a new group, or did we lose our disk?

The one rule: a member that may have voted or acknowledged before must not vote again with an empty
memory. So an empty member asks all others. When all of them are as empty, the group is new. When
one has anything, we are the one that lost something, and start as a member that recovers.

"Anything" is a term above 0. A member that has merely booted still says "empty": no member gets
beyond term 0 without the consent of a majority, so the last one of a new group to ask is not taken
for a member that lost its disk unless the others have begun without it, and then they can help it.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardnode.shard.letters import Hello

ASK_EVERY_MS = 200


class Greeting:
    """What the others have answered so far."""

    def __init__(self, cluster: int, member: int, others: Iterable[int]) -> None:
        self._cluster = cluster
        self._member = member
        self._others = sorted(others)
        self._empty: set[int] = set()
        self._asked_ms: int | None = None
        self.found_data = False

    @property
    def silent(self) -> list[int]:
        """The members that have not answered."""
        return [member for member in self._others if member not in self._empty]

    @property
    def done(self) -> bool:
        """Whether it is known what we are."""
        return self.found_data or not self.silent

    def ask(self, now_ms: int) -> list[Hello]:
        """What to send now: everybody who is silent is asked again from time to time."""
        if self._asked_ms is not None and now_ms - self._asked_ms < ASK_EVERY_MS:
            return []
        self._asked_ms = now_ms
        return [self._hello(member, asks=True) for member in self.silent]

    def take(self, hello: Hello) -> list[Hello]:
        """Somebody said or asked something; what to answer."""
        if hello.source not in self._others or hello.target != self._member:
            return []
        self.found_data |= hello.has_data
        if not hello.has_data:
            self._empty.add(hello.source)
        return [self._hello(hello.source, asks=False)] if hello.asks else []

    def _hello(self, target: int, *, asks: bool) -> Hello:
        return Hello(self._cluster, self._member, target, has_data=False, asks=asks)
