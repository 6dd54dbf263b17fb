"""How far groups are in the partitions of this shard.

The one rule: an offset goes back only when somebody says so, and moves only for who has claimed
its partition last: a commit with a lower generation than the claim is a `Conflict`. All
partitions of a request change, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from shardnode.wire import limits
from shardnode.wire.errors import Conflict, InvalidRequest, limit_exceeded


class Kept(NamedTuple):
    """Of one group in one partition."""

    offset: int | None
    generation: int


_NOTHING = Kept(None, 0)


class Offsets:
    """Those of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, Kept]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def fetch(self, group: str, namespaces: Sequence[int]) -> list[int | None]:
        """Where the group goes on; None where it never committed."""
        kept = self._groups.get(group, {})
        return [kept.get(namespace, _NOTHING).offset for namespace in namespaces]

    def claim(self, group: str, generation: int, namespaces: Sequence[int]) -> list[int | None]:
        """These belong to a generation now; where it goes on."""
        kept = self._checked(group, generation, namespaces)
        changed = {n: kept.get(n, _NOTHING)._replace(generation=generation) for n in namespaces}
        self._store(group, changed)
        return [each.offset for each in changed.values()]

    def commit(
        self,
        group: str,
        generation: int,
        namespaces: Sequence[int],
        offsets: Sequence[int],
        *,
        back: bool,
        end_of: Callable[[int], int],
    ) -> None:
        """The group goes on there. `end_of`: where a partition ends, or `NotFound`."""
        kept = self._checked(group, generation, namespaces)
        changed = {}
        for namespace, offset in zip(namespaces, offsets, strict=True):
            end = end_of(namespace)
            if offset > end:
                raise InvalidRequest(
                    f"expected an offset up to {end}, the end of partition {namespace:#x}, found"
                    f" {offset}; commit one above the last message that was dealt with"
                )
            before = kept.get(namespace, _NOTHING).offset
            if before is not None and not back:
                offset = max(offset, before)
            changed[namespace] = Kept(offset, generation)
        self._store(group, changed)

    def drop_others(self, namespaces: Collection[int]) -> None:
        """These partitions are left; what groups kept of others is of no use."""
        for group in list(self._groups):
            kept = {n: each for n, each in self._groups[group].items() if n in namespaces}
            self._count -= len(self._groups[group]) - len(kept)
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]

    def _checked(self, group: str, generation: int, namespaces: Sequence[int]) -> dict[int, Kept]:
        kept = self._groups.get(group, {})
        for namespace in namespaces:
            seen = kept.get(namespace, _NOTHING).generation
            if generation < seen:
                raise Conflict(
                    f"expected generation {seen} or a later one of group {group} in partition"
                    f" {namespace:#x}, found {generation}; it belongs to another member now"
                )
        return kept

    def _store(self, group: str, changed: dict[int, Kept]) -> None:
        kept = self._groups.get(group, {})
        count = self._count + len(changed.keys() - kept.keys())
        if count > limits.group_offsets_max:
            raise limit_exceeded(
                "group_offsets_max", limits.group_offsets_max, count, "use fewer groups"
            )
        self._count = count
        self._groups.setdefault(group, {}).update(changed)

    def rows(self) -> list[object]:
        """Equal on every replica."""
        return [
            [group, [[namespace, *each] for namespace, each in sorted(kept.items())]]
            for group, kept in sorted(self._groups.items())
        ]

    @classmethod
    def from_rows(cls, rows: Any) -> Offsets:
        """The inverse of `rows`."""
        found = cls()
        for group, kept in rows:
            found._groups[group] = {namespace: Kept(*each) for namespace, *each in kept}
            found._count += len(kept)
        return found
