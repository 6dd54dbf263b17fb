"""Consumer groups: who reads which partition, and how far they are.

One rule: a generation fences. Every change of a group's members or assignment has a new one. Who
is given a partition claims it with the generation of that answer; from then on the partition
refuses commits with a lower one (`Conflict`), so a member that was given up for dead cannot move
an offset any more. A member commits with the generation with which it claimed.

The coordinator of a group is the shard that owns its name as a key: requests about the group have
the name as routing key. Offsets stay with their partitions: claiming, committing and fetching them
is sent to the shard of the partitions, with a namespace as routing key and `Flag.NAMESPACE`.

Rebalancing is cooperative. A heartbeat says which partitions a member holds and answers which it
shall hold. It gives up at once what it shall not; the coordinator hands a partition on only when
its holder has said, with the generation that took it away, that it is free, or is gone. So no
partition stops that did not move. Answers are taken in the order of their generations: one with a
lower generation than the last is out of date.

To move offsets from outside: join without topics, commit with the generation that gave and `back`,
release the partitions, so that their holders claim them anew, and leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from shardnode.wire import limits
from shardnode.wire.codec import Answer, Body
from shardnode.wire.errors import malformed
from shardnode.wire.fields import (
    Flag,
    Int,
    IntColumn,
    Name,
    Namespaces,
    Number,
    OneName,
    TextColumn,
)

_SessionTtl = Annotated[int, Int("session_ttl_ms_max", low=limits.session_ttl_ms_min)]
_ListNames = Annotated[Sequence[str], TextColumn("name_bytes_max", "list_entries_max")]
_ListNumbers = Annotated[Sequence[int], IntColumn("list_entries_max")]


@dataclass(frozen=True, slots=True)
class GroupJoin(Body):
    """Become a member, or say anew what is to be read. Answered by `GroupAssigned`."""

    group: OneName
    member: Annotated[str | None, Name(optional=True)]
    """None: the coordinator gives a name."""
    topics: Annotated[Sequence[str], TextColumn("topic_name_bytes_max", "group_topics_max")]
    """Each as stream/topic."""
    ttl_ms: _SessionTtl
    """A member that is silent for so long is given up."""

    def validate(self) -> None:
        for topic in self.topics:
            Name(parts=2).take("topics", topic, 0)


@dataclass(frozen=True, slots=True)
class GroupHeartbeat(Body):
    """A sign of life, and what the member holds. Answered by `GroupAssigned`; `SessionExpired` if
    the member was given up: it holds nothing any more and joins again."""

    group: OneName
    member: OneName
    generation: Number
    held: Namespaces


@dataclass(frozen=True, slots=True)
class GroupAssigned(Answer):
    """What a member shall hold."""

    member: Annotated[str, Name()]
    generation: Number
    assigned: Namespaces
    ttl_ms: Number


@dataclass(frozen=True, slots=True)
class GroupLeave(Body):
    """Give up membership and all partitions; again is harmless. Answered by `GroupLeft`."""

    group: OneName
    member: OneName


@dataclass(frozen=True, slots=True)
class GroupLeft(Answer):
    """The member is gone."""


@dataclass(frozen=True, slots=True)
class GroupRelease(Body):
    """Let the holders of these partitions give them up and claim them anew, which is how they learn
    of offsets that were moved. Answered by `GroupReleased`; partitions that nobody holds are
    free as they are."""

    group: OneName
    released: Namespaces


@dataclass(frozen=True, slots=True)
class GroupReleased(Answer):
    """The holders will hear of it."""


@dataclass(frozen=True, slots=True)
class OffsetCommit(Body):
    """Where the group goes on in partitions of one shard, all or none. Answered by
    `OffsetsCommitted`, or `Conflict` if one of them was claimed with a higher generation."""

    group: OneName
    generation: Number
    namespaces: Namespaces
    offsets: Annotated[Sequence[int], IntColumn("group_partitions_max")]
    """The next message to read: one above the last that was dealt with. At most the end of its
    partition."""
    back: Flag = False
    """Whether offsets may go back. Without it a lower offset than the one kept changes nothing:
    commits of one member may overtake each other on their way."""

    def validate(self) -> None:
        distinct = len(set(self.namespaces))
        if not distinct or not distinct == len(self.namespaces) == len(self.offsets):
            raise malformed(
                "an offset for each of one or more distinct partitions",
                f"{distinct} partitions in {len(self.namespaces)} and {len(self.offsets)} offsets",
                "send each partition once, with its offset",
            )


@dataclass(frozen=True, slots=True)
class OffsetsCommitted(Answer):
    """The offsets are kept."""


@dataclass(frozen=True, slots=True)
class OffsetFetch(Body):
    """Where does the group go on, in partitions of one shard? Answered by `OffsetsFound`."""

    group: OneName
    namespaces: Namespaces


@dataclass(frozen=True, slots=True)
class OffsetClaim(Body):
    """From now on partitions of one shard belong to who has this generation; all or none. Answered
    by `OffsetsFound`, or `Conflict` if one of them was claimed with a higher generation."""

    group: OneName
    generation: Number
    namespaces: Namespaces


@dataclass(frozen=True, slots=True)
class OffsetsFound(Answer):
    """One offset for each partition asked for."""

    offsets: Annotated[Sequence[int | None], IntColumn("group_partitions_max", optional=True)]
    """None where the group has never committed."""


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """One page of the groups that a shard coordinates, by name. Answered by `GroupsFound`."""

    after: Annotated[str | None, Name(optional=True)] = None
    limit: Annotated[int, Int("list_entries_max")] = 0


@dataclass(frozen=True, slots=True)
class GroupsFound(Answer):
    """Groups as parallel columns."""

    names: _ListNames
    generations: _ListNumbers
    member_counts: _ListNumbers
    next: Annotated[str | None, Name(optional=True)]
    """The `after` of the next page; None at the end."""

    def validate(self) -> None:
        if not len(self.names) == len(self.generations) == len(self.member_counts):
            raise malformed(
                "a generation and a number of members for each group",
                "columns of different length",
                "the shard that sent it breaks the protocol",
            )


@dataclass(frozen=True, slots=True)
class GroupDescribe(Body):
    """Who reads what in a group? Answered by `GroupFound`, or `NotFound`."""

    group: OneName


@dataclass(frozen=True, slots=True)
class GroupFound(Answer):
    """A group's members, the partitions of its topics, and who holds each."""

    generation: Number
    members: Annotated[Sequence[str], TextColumn("name_bytes_max", "group_members_max")]
    namespaces: Namespaces
    holders: Annotated[
        Sequence[int | None], IntColumn("group_partitions_max", "group_members_max", optional=True)
    ]
    """Places in `members`, from 0; None: nobody."""

    def validate(self) -> None:
        held = [place for place in self.holders if place is not None]
        known = max(held, default=-1) < len(self.members)
        if not known or len(self.namespaces) != len(self.holders):
            raise malformed(
                "a member of the group, or nobody, as the holder of each partition",
                f"{len(self.namespaces)} partitions, {len(self.holders)} holders,"
                f" {len(self.members)} members",
                "the shard that sent it breaks the protocol",
            )
