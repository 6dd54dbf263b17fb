"""The groups that a shard coordinates: who is a member, and who holds which partition. Pure.

    free  ── given to its target ──►  held  ── its target is another ──►  taken
      ▲                                 │ the holder is gone                │
      └─────────────────────────────────┴── the holder says it is free ◄────┘

The one rule: a partition has one holder at a time. It is given on only when its holder has said,
in an answer to the generation that took it away, that it let go of it, or when the holder is gone.
Every change has a new generation, by which partitions tell an old holder from a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from shardnode.shard.assignment import assign
from shardnode.wire import limits
from shardnode.wire.errors import NotFound, SessionExpired, limit_exceeded
from shardnode.wire.groups import GroupAssigned, GroupFound, GroupsFound
from shardnode.wire.placement import pack_namespace


class Place(NamedTuple):
    """Where a topic has its partitions."""

    stream: int
    topic: int
    partitions: int

    @property
    def namespaces(self) -> list[int]:
        return [pack_namespace(self.stream, self.topic, n) for n in range(self.partitions)]


class Member(NamedTuple):
    """Of one group."""

    topics: tuple[str, ...]
    ttl_ms: int
    seen_ms: int


class Group:
    """One group. What it does to itself it does in `_settle`."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.topics: tuple[str, ...] = ()
        """What its members read, or read last when there are none."""
        self.target: dict[int, str] = {}
        self.holders: dict[int, str] = {}
        self.taken: dict[int, int] = {}
        """Partitions to be given up by their holder → the generation that says so."""

    def join(self, name: str, member: Member, places: Mapping[str, Place]) -> None:
        """A new member; or one that begins again, and holds nothing."""
        if name not in self.members and len(self.members) >= limits.group_members_max:
            raise limit_exceeded(
                "group_members_max",
                limits.group_members_max,
                len(self.members) + 1,
                "use fewer members, or a second group",
            )
        self._free(name)
        self.members[name] = member
        self._settle(places, changed=True)

    def beat(self, name: str, generation: int, held: Collection[int], now_ms: int) -> list[int]:
        """A sign of life; the partitions that are free by it."""
        member = self.members.get(name)
        if member is None:
            raise SessionExpired(
                f"expected a member of the group, found {name}, which is none any more; join again"
            )
        self.members[name] = member._replace(seen_ms=now_ms)
        return [
            namespace
            for namespace, since in self.taken.items()
            if self.holders[namespace] == name and generation >= since and namespace not in held
        ]

    def let_go(self, namespaces: Iterable[int], places: Mapping[str, Place]) -> None:
        """Their holders gave them up."""
        for namespace in namespaces:
            del self.holders[namespace], self.taken[namespace]
        self._settle(places, changed=False)

    def remove(self, names: Iterable[str], places: Mapping[str, Place]) -> None:
        """These are no members any more."""
        for name in names:
            del self.members[name]
            self._free(name)
        self._settle(places, changed=True)

    def release(self, namespaces: Iterable[int]) -> None:
        """The holders of these have to claim them anew."""
        free = [each for each in namespaces if each in self.holders and each not in self.taken]
        if free:
            self.generation += 1
            self.taken |= dict.fromkeys(free, self.generation)

    def look_again(self, places: Mapping[str, Place]) -> None:
        """Topics have more partitions, or are gone."""
        self._settle(places, changed=False)

    def assigned(self, name: str) -> list[int]:
        """What a member shall hold."""
        holders = self.holders.items()
        return sorted(n for n, holder in holders if holder == name and n not in self.taken)

    def _free(self, name: str) -> None:
        for namespace in [each for each, holder in self.holders.items() if holder == name]:
            del self.holders[namespace]
            self.taken.pop(namespace, None)

    def _settle(self, places: Mapping[str, Place], *, changed: bool) -> None:
        """Take away what is another's, and give what is free."""
        wanted = {topic for member in self.members.values() for topic in member.topics}
        self.topics = tuple(sorted(wanted)) or self.topics
        spaces = {name: places[name].namespaces for name in sorted(wanted) if name in places}
        members = {name: member.topics for name, member in self.members.items()}
        self.target = assign(spaces, members, self.target)
        take = [
            namespace
            for namespace, holder in self.holders.items()
            if namespace not in self.taken and self.target.get(namespace) != holder
        ]
        give = self.target.keys() - self.holders.keys()
        if changed or take or give:
            self.generation += 1
            self.taken |= dict.fromkeys(take, self.generation)
            self.holders |= {namespace: self.target[namespace] for namespace in give}

    def found(self, places: Mapping[str, Place]) -> GroupFound:
        """For whoever wants to look at it."""
        members = sorted(self.members)
        number = {name: place for place, name in enumerate(members)}
        spaces = [n for topic in self.topics if topic in places for n in places[topic].namespaces]
        spaces = spaces[: limits.group_partitions_max]
        holders = [number.get(self.holders.get(namespace, "")) for namespace in spaces]
        return GroupFound(self.generation, members, spaces, holders)

    def row(self) -> list[object]:
        """Equal groups give equal rows."""
        members = [[name, list(m.topics), m.ttl_ms, m.seen_ms] for name, m in self.members.items()]
        tables = (self.target, self.holders, self.taken)
        return [
            self.generation,
            sorted(members),
            list(self.topics),
            *(sorted(table.items()) for table in tables),
        ]

    @classmethod
    def from_row(cls, row: Any) -> Group:
        """The inverse of `row`."""
        group = cls()
        group.generation, members, topics, target, holders, taken = row
        group.members = {
            name: Member(tuple(of), ttl_ms, seen_ms) for name, of, ttl_ms, seen_ms in members
        }
        group.topics = tuple(topics)
        group.target, group.holders, group.taken = dict(target), dict(holders), dict(taken)
        return group


class Groups:
    """All groups of one shard."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        """The topics that groups read, as a leader last said."""
        self.topics_version = 0
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def topics(self) -> set[str]:
        """What any group reads."""
        return {topic for group in self._groups.values() for topic in group.topics}

    def join(
        self, name: str, member: str, topics: Sequence[str], ttl_ms: int, now_ms: int
    ) -> GroupAssigned:
        """Become a member."""
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= limits.groups_max:
                count = len(self._groups) + 1
                raise limit_exceeded("groups_max", limits.groups_max, count, "use fewer groups")
            group = Group()
        group.join(member, Member(tuple(topics), ttl_ms, now_ms), self.places)
        self._groups[name] = group
        return self._answer(group, member)

    def beat(
        self, name: str, member: str, generation: int, held: Collection[int], now_ms: int
    ) -> GroupAssigned:
        """A member lives, and holds these."""
        group = self._groups.get(name)
        if group is None:
            raise SessionExpired(f"expected a group, found no {name} here; join again")
        free = group.beat(member, generation, frozenset(held), now_ms)
        if free:
            group.let_go(free, self.places)
        return self._answer(group, member)

    def leave(self, name: str, member: str) -> None:
        """Not a member any more, if it was one."""
        group = self._groups.get(name)
        if group is not None and member in group.members:
            group.remove([member], self.places)

    def release(self, name: str, namespaces: Collection[int]) -> None:
        """See `Group.release`."""
        self._find(name).release(namespaces)

    def set_places(self, version: int, places: Mapping[str, Place]) -> None:
        """What a leader knows of topics; one that lags behind another changes nothing."""
        if version < self.topics_version:
            return
        self.topics_version = version
        if places != self.places:
            self.places = dict(places)
            for group in self._groups.values():
                group.look_again(self.places)

    def expire(self, now_ms: int, since_ms: int) -> int:
        """Give up members that are silent for too long; a leader has listened since `since_ms`."""
        count = 0
        for group in self._groups.values():
            silent = [
                name
                for name, member in sorted(group.members.items())
                if max(member.seen_ms, since_ms) + member.ttl_ms < now_ms
            ]
            if silent:
                group.remove(silent, self.places)
                count += len(silent)
        return count

    def first_deadline(self, since_ms: int) -> int | None:
        """When the first member is silent for too long; None when there are no members."""
        members = (member for group in self._groups.values() for member in group.members.values())
        return min((max(m.seen_ms, since_ms) + m.ttl_ms for m in members), default=None)

    def describe(self, name: str) -> GroupFound:
        """One group."""
        return self._find(name).found(self.places)

    def page(self, after: str | None, limit: int) -> GroupsFound:
        """One page, by name."""
        names = sorted(name for name in self._groups if after is None or name > after)
        page = names[: limit or limits.list_entries_max]
        groups = [self._groups[name] for name in page]
        return GroupsFound(
            page,
            [group.generation for group in groups],
            [len(group.members) for group in groups],
            page[-1] if len(page) < len(names) else None,
        )

    def _find(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise NotFound(f"there is no group {name}; it begins when its first member joins")
        return group

    def _answer(self, group: Group, member: str) -> GroupAssigned:
        ttl_ms = group.members[member].ttl_ms
        return GroupAssigned(member, group.generation, group.assigned(member), ttl_ms)

    def rows(self) -> list[object]:
        """Equal on every replica."""
        groups = [[name, group.row()] for name, group in sorted(self._groups.items())]
        return [self.topics_version, sorted(self.places.items()), groups]

    @classmethod
    def from_rows(cls, rows: Any) -> Groups:
        """The inverse of `rows`."""
        found = cls()
        found.topics_version, places, groups = rows
        found.places = {name: Place(*place) for name, place in places}
        found._groups = {name: Group.from_row(row) for name, row in groups}
        return found


def encode_places(version: int, places: Mapping[str, Place]) -> bytes:
    """The body of GROUP_TOPICS."""
    return bytes(msgpack.packb([version, sorted(places.items())]))
