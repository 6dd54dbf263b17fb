"""What a leader does unasked: ending keys, sessions and members of groups, beginning the control
plane, and making the partitions that topics ask for.

The one rule: nothing ends because a clock says so. The leader proposes an entry, and every replica
acts when it applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgpack

from shardnode.raft import Refused
from shardnode.shard.control import Wish, encode_control
from shardnode.shard.entries import (
    CHECK_STATE,
    CONTROL_SET,
    EXPIRE_KEYS,
    EXPIRE_MEMBERS,
    EXPIRE_SESSIONS,
    GROUP_TOPICS,
    PARTITIONS_SET,
    encode_entry,
)
from shardnode.shard.groups import Place, encode_places
from shardnode.shard.replica import Replica, Request
from shardnode.shard.topics import Topics
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    PlacementTable,
    initial_table,
    split_member_id,
)

if TYPE_CHECKING:
    from shardnode.shard.effects import Effects

SWEEP_EVERY_MS = 100
"""How often to look for expired keys: well within the half second that is promised."""

SWEEP_KEYS_MAX = 1_000
SESSIONS_EVERY_MS = 1_000

MEMBERS_EVERY_MS = 200
"""How often to look for silent members of groups: a fraction of the shortest time they may have."""

SET_EVERY_MS = 500
SET_PARTITIONS_MAX = 1_000
"""Of one entry, when topics have changed; it is tried again after a while."""

CHECK_EVERY_MS = 5_000
"""How often replicas compare their states, while there is something new."""

REMEMBER_MS = 86_400_000
"""How long the id of an ended session is known: longer than any copy of its opening travels."""

NOBODY = 0
"""The token of a proposal that nobody waits for."""


class Duties:
    """The duties of one replica, done while it leads."""

    def __init__(
        self,
        replica: Replica,
        effects: Effects,
        stamp: Callable[[], int],
        *,
        shard: int,
        shards: int,
        wish: Callable[[], Wish],
        topics: Callable[[], Topics],
        table: Callable[[], PlacementTable],
    ) -> None:
        self._replica = replica
        self._effects = effects
        self._stamp = stamp
        self._shard = shard
        self._shards = shards
        self._wish = wish
        self._topics = topics
        self._table = table
        self._set_due_ms = 0
        self._sweep_due_ms = 0
        self._sessions_due_ms = 0
        self._check_due_ms = 0
        self._checked_index = 0
        self._begun_term = 0
        self._members_due_ms = 0
        self._places_due_ms = 0
        self._leads_since = (0, 0)
        """(term, its first stamp): nobody was silent before there was anybody to listen."""

    def due(self, now_ms: int, *, is_control: bool) -> None:
        """Propose what is due; a refusal is tried again the next time."""
        requests = []
        if now_ms >= self._sweep_due_ms:
            self._sweep_due_ms = now_ms + SWEEP_EVERY_MS
            requests += self._expired_keys()
        if now_ms >= self._sessions_due_ms:
            self._sessions_due_ms = now_ms + SESSIONS_EVERY_MS
            requests += self._expired_sessions()
        if now_ms >= self._check_due_ms:
            self._check_due_ms = now_ms + CHECK_EVERY_MS
            requests += self._check_state()
        if now_ms >= self._members_due_ms:
            self._members_due_ms = now_ms + MEMBERS_EVERY_MS
            requests += self._silent_members()
        if now_ms >= self._places_due_ms:
            self._places_due_ms = now_ms + SET_EVERY_MS
            requests += self._moved_topics()
        if self._topics().version > self._partitions_version and now_ms >= self._set_due_ms:
            self._set_due_ms = now_ms + SET_EVERY_MS
            requests += self._set_partitions()
        if is_control and not self._effects.control.wish.members:
            requests += self._first_wish()
        if requests:
            try:
                self._replica.propose(requests)
            except Refused:
                self._begun_term = 0

    def _expired_keys(self) -> list[Request]:
        keys, versions = self._effects.due(self._stamp(), SWEEP_KEYS_MAX)
        return [self._command(EXPIRE_KEYS, msgpack.packb([keys, versions]))] if keys else []

    def _expired_sessions(self) -> list[Request]:
        stamp, first = self._stamp(), self._effects.sessions.first_deadline()
        if first is None or first >= stamp:
            return []
        return [self._command(EXPIRE_SESSIONS, msgpack.packb([stamp, stamp - REMEMBER_MS]))]

    def _silent_members(self) -> list[Request]:
        groups, stamp, term = (
            self._effects.coordination.groups,
            self._stamp(),
            self._replica.raft.term,
        )
        if self._leads_since[0] != term:
            self._leads_since = (term, stamp)
        since = self._leads_since[1]
        first = groups.first_deadline(since) if len(groups) else None
        if first is None or first >= stamp:
            return []
        return [self._command(EXPIRE_MEMBERS, msgpack.packb([stamp, since]), GROUP_PARTITION)]

    def tell_topics(self, names: Collection[str]) -> list[str]:
        """Let the groups know where these topics have their partitions, as far as they do not;
        those of which nobody here has heard."""
        known = dict(self._topics().items())
        unknown = [name for name in names if name not in known]
        news = self._moved_topics(names) if not unknown else []
        if news:
            self._replica.propose(news)
        return unknown

    def _moved_topics(self, names: Collection[str] = ()) -> list[Request]:
        """What groups have to hear of their topics, and of these."""
        groups, topics = self._effects.coordination.groups, self._topics()
        read = groups.topics.union(names)
        places = {
            name: Place(topic.stream, topic.number, topic.partitions)
            for name, topic in (topics.items() if read else ())
            if name in read
        }
        if places == groups.places or topics.version < groups.topics_version:
            return []
        body = encode_places(topics.version, places)
        return [self._command(GROUP_TOPICS, body, GROUP_PARTITION)]

    def _check_state(self) -> list[Request]:
        """Only when there is somebody to compare with, and something new to compare."""
        applied = self._effects.applied_index
        if len(self._replica.raft.membership.voters) < 2 or applied <= self._checked_index + 1:
            return []
        self._checked_index = applied
        return [self._command(CHECK_STATE, b"", CONTROL_PARTITION)]

    @property
    def _partitions_version(self) -> int:
        streams = self._effects.streams
        return streams.version if streams is not None else 1 << 62

    def _set_partitions(self) -> list[Request]:
        """The partitions that the topics ask of this shard, as far as they are not there yet."""
        streams, topics = self._effects.streams, self._topics()
        assert streams is not None
        wanted, found = topics.partitions_of(self._shard, self._table()), streams.settings
        changes: list[tuple[int, dict[str, int] | None]] = [
            (namespace, settings)
            for namespace, settings in sorted(wanted.items())
            if found.get(namespace) != settings
        ]
        changes += [(namespace, None) for namespace in sorted(found.keys() - wanted.keys())]
        cuts = range(0, max(1, len(changes)), SET_PARTITIONS_MAX)
        pages = [changes[cut : cut + SET_PARTITIONS_MAX] for cut in cuts]
        bodies = [bytes(msgpack.packb([topics.version, page, page is pages[-1]])) for page in pages]
        return [self._command(PARTITIONS_SET, body, CONTROL_PARTITION) for body in bodies]

    def _first_wish(self) -> list[Request]:
        """Of a new cluster, with its table; or of a restored one, which has a table and begins with
        this node alone, wherever that is now."""
        raft, control, members = self._replica.raft, self._effects.control, self._wish().members
        if self._begun_term == raft.term or not members:
            return []
        if control.table is not None:
            own = split_member_id(raft.member)[1]
            members = {own: members[own]}
        table = control.table or initial_table(self._shards)
        body = encode_control(table, Wish(control.wish.version + 1, members))
        self._begun_term = raft.term
        return [self._command(CONTROL_SET, body, CONTROL_PARTITION)]

    def _command(self, kind: int, body: bytes, partition: int = KEY_VALUE_PARTITION) -> Request:
        return Request(NOBODY, partition, encode_entry(self._stamp(), kind, body))
