"""Who belongs to the group, and how that changes by joint consensus.

The one rule: a member uses the newest configuration in its log, committed or not, and goes back
to the one before when that entry is overwritten. `History` keeps what is needed to go back.

A change of voters goes C(old) → C(old, new) → C(new). While joint, every decision needs a
majority of both. A change of learners alone is one step, because learners decide nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shardnode.raft.errors import MalformedMessage
from shardnode.raft.quorum import Halves

MEMBERS_MAX = 127
"""Per set; a group is 3 to 7 voters in practice, so this only bounds what a decoder accepts."""

_COUNTS = struct.Struct(">BBB")


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters, the voters on their way out (joint only), and learners, which only receive."""

    voters: tuple[int, ...]
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        voters: Iterable[int],
        outgoing: Iterable[int] = (),
        learners: Iterable[int] = (),
    ) -> Membership:
        """Sorted and without repeats, so that equal memberships are equal bytes."""
        return cls(
            tuple(sorted(set(voters))), tuple(sorted(set(outgoing))), tuple(sorted(set(learners)))
        )

    @property
    def joint(self) -> bool:
        """True between the two steps of a change of voters."""
        return bool(self.outgoing)

    @property
    def halves(self) -> Halves:
        """What `quorum` counts over."""
        return self.voters, self.outgoing

    @property
    def everyone(self) -> tuple[int, ...]:
        """All members that receive the log, in a stable order."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    def votes(self, member: int) -> bool:
        """Whether `member` takes part in decisions now."""
        return member in self.voters or member in self.outgoing

    def toward(self, voters: Collection[int], learners: Collection[int]) -> Membership:
        """The first step from here to the given sets: joint if the voters differ."""
        assert not self.joint, "a second change waits until the first has left the joint state"
        if set(voters) == set(self.voters):
            return Membership.of(self.voters, (), learners)
        return Membership.of(voters, self.voters, learners)

    def settled(self) -> Membership:
        """The second step: the outgoing voters are gone."""
        return Membership.of(self.voters, (), self.learners)

    def encode(self) -> bytes:
        """A few bytes for an entry's payload; never empty, so it is no no-op."""
        sets = (self.voters, self.outgoing, self.learners)
        members = [member for group in sets for member in group]
        return _COUNTS.pack(*map(len, sets)) + struct.pack(f">{len(members)}Q", *members)

    @classmethod
    def decode(cls, data: bytes) -> Membership:
        """The inverse of `encode`; anything else is `MalformedMessage`."""
        if len(data) < _COUNTS.size:
            raise MalformedMessage(f"a membership has at least 3 bytes, found {len(data)}")
        counts = _COUNTS.unpack_from(data)
        total = sum(counts)
        if max(counts) > MEMBERS_MAX or len(data) != _COUNTS.size + 8 * total:
            raise MalformedMessage(
                f"a membership of {counts} members does not fit {len(data)} bytes"
            )
        flat = struct.unpack_from(f">{total}Q", data, _COUNTS.size)
        first, second = counts[0], counts[0] + counts[1]
        result = cls.of(flat[:first], flat[first:second], flat[second:])
        if result.encode() != data:
            raise MalformedMessage("a membership lists its members sorted and once")
        return result


class History:
    """The configurations in the log, newest last; index 0 stands for where the log begins."""

    def __init__(self, index: int, membership: Membership) -> None:
        self._steps: list[tuple[int, Membership]] = [(index, membership)]

    @property
    def current(self) -> Membership:
        """The one in force: the newest in the log."""
        return self._steps[-1][1]

    @property
    def index(self) -> int:
        """Where the one in force stands in the log."""
        return self._steps[-1][0]

    def add(self, index: int, membership: Membership) -> None:
        """An entry with a configuration was appended."""
        assert index > self.index, "configurations are appended in log order"
        self._steps.append((index, membership))

    def truncate_back(self, index: int) -> bool:
        """Entries above `index` were overwritten. True when the one in force changed."""
        before = len(self._steps)
        while len(self._steps) > 1 and self._steps[-1][0] > index:
            self._steps.pop()
        return len(self._steps) != before

    def settle(self, index: int) -> None:
        """Entries through `index` are applied: nobody asks for what was in force before."""
        while len(self._steps) > 1 and self._steps[1][0] <= index:
            del self._steps[0]

    def reset(self, index: int, membership: Membership) -> None:
        """A snapshot replaced the log and brings its membership."""
        self._steps = [(index, membership)]

    def at(self, index: int) -> Membership:
        """The configuration in force at `index`, which is what is applied or later."""
        for step, membership in reversed(self._steps):
            if step <= index:
                return membership
        raise AssertionError(f"the membership at {index} is no longer known")
