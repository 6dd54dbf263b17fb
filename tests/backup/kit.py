"""A cluster in this process whose shards can be backed up, and what it should hold at any index.

Shards are whole services on a simulated disk, with LMDB and partition logs in real files; time is a
number. What is restored is opened as a worker does it, without one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardnode.backup.format import Manifest
from shardnode.backup.restore import Restored, RestoreOptions, restore_backup
from shardnode.backup.store import FolderStore, Store
from shardnode.backup.take import Clocks, Taken, TakeOptions, take_backup
from shardnode.client.cuts import Cut
from shardnode.client.values import Topology
from shardnode.node.identity import Identity, read_identity
from shardnode.raft import Membership, Options
from shardnode.shard.boot import ReplicaSettings
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.replica import Replica
from shardnode.storage.files import RealFiles
from shardnode.storage.options import LogOptions
from shardnode.wire.codec import Answer
from shardnode.wire.control import TopicCreate, TopicFound
from shardnode.wire.cuts import (
    LEASE_MS,
    CutClose,
    CutKeep,
    CutLog,
    CutOpen,
    CutOpened,
    CutPiece,
    CutRead,
)
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.placement import (
    initial_table,
    member_id,
    namespace_to_bytes,
    pack_namespace,
    slot_of_partition,
)
from shardnode.wire.replies import Deleted, Written
from shardnode.wire.requests import DeleteMany, PutMany, Scan
from shardnode.wire.streams import Append, Appended, MessageBatch
from tests.shard.desk import WALL_MS, Counter

CLUSTER = 0xC0FFEE
SMALL = LogOptions(segment_bytes=20_000, max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
PARTITIONS = 3

Rows = dict[bytes, tuple[bytes, int]]


@dataclass
class Change:
    """What one entry did."""

    index: int
    stamp_ms: int
    puts: dict[bytes, bytes | None]
    """None: deleted."""


class Shard:
    """One shard, and all that happened to it."""

    def __init__(self, folder: Path, shard: int, shards: int) -> None:
        self.number = shard
        effects = open_effects(str(folder / f"shard-{shard}"), "lmdb", {})
        self.counter = Counter(shard, shards, effects, SMALL)
        self.table = initial_table(shards)
        self.changes: list[Change] = []
        self.messages: dict[int, list[tuple[int, int, bytes]]] = {}
        """Namespace → (index and stamp of the entry, message)."""

    def keep_entries(self, count: int) -> None:
        """How much of the log is kept that nobody needs."""
        settings = self.counter.replica.settings
        self.counter.replica.settings = replace(settings, keep_entries=count)

    @property
    def applied(self) -> int:
        return self.counter.effects.applied_index

    def keys(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        number = 0
        while len(found) < count:
            key = b"key-%d" % number
            if self.table.shard_of_key(key) == self.number:
                found.append(key)
            number += 1
        return found

    def put(self, puts: dict[bytes, bytes]) -> None:
        written = self.counter.ask(Kind.PUT_MANY, PutMany([*puts], [*puts.values()]))
        assert isinstance(written, Written)
        self._changed(written.version, dict(puts))

    def delete(self, keys: Sequence[bytes]) -> None:
        deleted = self.counter.ask(Kind.DELETE_MANY, DeleteMany([*keys]))
        assert isinstance(deleted, Deleted)
        self._changed(deleted.version, dict.fromkeys(keys))

    def _changed(self, index: int, puts: dict[bytes, bytes | None]) -> None:
        self.changes.append(Change(index, self.counter.effects.stamp, puts))

    def append(self, namespace: int, message: bytes) -> None:
        ask = Append(namespace, 1, MessageBatch([message]).encode())
        about = {"routing_key": namespace_to_bytes(namespace), "flags": Flag.NAMESPACE}
        found = self.counter.ask(Kind.APPEND, ask, **about)
        assert isinstance(found, Appended)
        at = (self.applied, self.counter.effects.stamp)
        self.messages.setdefault(namespace, []).append((*at, message))

    def rows_at(self, index: int) -> Rows:
        """What a scan of it shows as of an index."""
        rows: Rows = {}
        for change in self.changes:
            if change.index > index:
                break
            for key, value in change.puts.items():
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = (value, change.index)
        return rows

    def messages_at(self, index: int) -> dict[int, list[bytes]]:
        found = {
            namespace: [message for at, _, message in messages if at <= index]
            for namespace, messages in self.messages.items()
        }
        return {namespace: messages for namespace, messages in found.items() if messages}

    def cut_log(self) -> None:
        """Flush twice, so that nothing of the log is needed any more."""
        for _ in range(2):
            self.counter.drain(later_ms=100)
            self.put({self.keys(1)[0]: b"flushed"})
            self.counter.replica.flush()

    def snapshot(self) -> None:
        self.counter.replica.copies.take_snapshot()

    def crash(self) -> None:
        """As far as readers can tell: its cuts are gone."""
        cuts = self.counter.service.cuts
        for number in list(cuts._cuts):
            cuts._close(number)

    def revoke(self) -> None:
        """The log has outgrown its bound while somebody reads it."""
        cuts = self.counter.service.cuts
        if len(cuts):
            cuts._revoke()
            cuts._keep_log()
            self.cut_log()

    def close(self) -> None:
        self.counter.effects.close()


class Source:
    """All shards of one node. It is a `BulkReader`; `meddle` is called before each request."""

    def __init__(self, folder: Path, shards: int = 1) -> None:
        self.shards = [Shard(folder, shard, shards) for shard in range(shards)]
        self.meddle: Callable[[int], None] = lambda _: None
        self.requests = 0
        self.piece_bytes = 3_000
        self.passed_s = 0.0
        self.namespaces: list[int] = []

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        for shard in self.shards:
            shard.close()

    def create_topic(self, name: str) -> list[int]:
        """On shard 0; the others hear of it at once. The namespaces of its partitions."""
        first = self.shards[0].counter
        found = first.ask(Kind.TOPIC_CREATE, TopicCreate(name, PARTITIONS))
        assert isinstance(found, TopicFound)
        for shard in self.shards:
            shard.counter.service.topics = first.effects.control.topics
            for _ in range(3):
                shard.counter.drain(later_ms=600)
        new = [pack_namespace(found.stream, found.topic, n) for n in range(PARTITIONS)]
        self.namespaces += new
        return new

    def owner_of(self, namespace: int) -> Shard:
        return self.shards[self.shards[0].table.shard_of_slot(slot_of_partition(namespace))]

    def now_ms(self) -> int:
        """As stamps count it."""
        return max(shard.counter.service._stamp() for shard in self.shards)

    def pass_time(self, milliseconds: int) -> None:
        for shard in self.shards:
            shard.counter.drain(later_ms=milliseconds)

    # -- a reader -----------------------------------------------------------------------------

    def topology(self) -> Topology:
        table = self.shards[0].table
        return Topology("main", 1, {1: "tcp://127.0.0.1:1"}, (), table, CLUSTER)

    def node_id(self) -> int:
        return 1

    def _ask(self, shard: int, kind: Kind, body: Any) -> Answer:
        self.requests += 1
        self.meddle(shard)
        return self.shards[shard].counter.ask(kind, body)

    def open(self, shard: int, ask: CutOpen) -> Cut | CutOpened:
        opened = self._ask(shard, Kind.CUT_OPEN, ask)
        assert isinstance(opened, CutOpened)
        return Cut(shard, opened) if opened.cut else opened

    def file(self, cut: Cut, name: str, size: int, offset: int = 0) -> Iterator[bytes]:
        while offset < size:
            ask = CutRead(cut.opened.cut, name, offset, self.piece_bytes)
            yield (data := _data(self._ask(cut.shard, Kind.CUT_READ, ask)))
            offset += len(data)

    def log(self, cut: Cut, first: int) -> Iterator[bytes]:
        offset = 0
        while True:
            ask = CutLog(cut.opened.cut, first, offset, self.piece_bytes)
            data = _data(self._ask(cut.shard, Kind.CUT_LOG, ask))
            yield data
            offset += len(data)
            if len(data) < self.piece_bytes:
                return

    def keep(self, cut: Cut, log_from: int = 0) -> None:
        self._ask(cut.shard, Kind.CUT_KEEP, CutKeep(cut.opened.cut, LEASE_MS, log_from))

    def close(self, cut: Cut, *, doubt: bool = False) -> None:
        self._ask(cut.shard, Kind.CUT_CLOSE, CutClose(cut.opened.cut, doubt))


def _data(answer: Answer) -> bytes:
    assert isinstance(answer, CutPiece)
    return answer.data


class Time:
    """A clock that goes on only while somebody sleeps, and a little with each look."""

    def __init__(self, source: Source) -> None:
        self._source = source
        source.passed_s += 1

    def sleep(self, seconds: float) -> None:
        self._source.passed_s += seconds
        self._source.pass_time(int(seconds * 1_000))

    def monotonic(self) -> float:
        self._source.passed_s += 0.001
        return self._source.passed_s

    def wall(self) -> datetime:
        return datetime.fromtimestamp(WALL_MS / 1_000 + self._source.passed_s, UTC)


def take(source: Source, store: Store, options: TakeOptions = TakeOptions()) -> Taken:  # noqa: B008
    time = Time(source)
    clocks = Clocks(time.wall, time.monotonic, time.sleep)
    return take_backup(store, source, options, clocks=clocks)


def folder_store(folder: Path) -> FolderStore:
    return FolderStore(folder / "backup")


def restored(
    store: Store,
    data: Path,
    options: RestoreOptions = RestoreOptions(),  # noqa: B008
) -> tuple[Restored, list[Opened]]:
    """Restore, and open every shard of it."""
    made = restore_backup(store, data, options)
    identity = read_identity(data)
    assert identity is not None
    return made, [Opened(data, shard, identity) for shard in range(identity.shards)]


class Opened:
    """One shard of a data directory, as a worker opens it, until everything is applied."""

    def __init__(self, data: Path, shard: int, identity: Identity) -> None:
        name = f"shard-{shard}"
        self.effects: Effects = open_effects(str(data / name), "lmdb", {})
        member = member_id(shard, identity.node_id)
        assert identity.cluster_id is not None
        self.replica = Replica(
            ReplicaSettings(
                directory=name,
                cluster=identity.cluster_id,
                member=member,
                bootstrap=Membership.of([member, member + 1, member + 2]),
                raft=Options(),
            ),
            files=RealFiles(data),
            machine=self.effects,
            rng=random.Random(2),
            now_ms=1_000,
            send=lambda _: None,
        )
        self.commit = self.replica.raft.commit_index
        self.replica.tick(1_001)
        self.replica.pump()
        self.membership = self.replica.raft.membership

    def rows(self) -> Rows:
        rows: Rows = {}
        after = None
        while True:
            page = self.effects.scan(Scan(after=after))
            rows |= dict(zip(page.keys, zip(page.values, page.versions, strict=True), strict=True))
            if page.next is None:
                return rows
            after = page.next

    def messages(self) -> dict[int, list[bytes]]:
        """Namespace → messages, of every partition that has any."""
        streams = self.effects.streams
        assert streams is not None
        found = {}
        for stream in streams:
            assert not stream.damage
            messages: list[bytes] = []
            end = stream.mark.end_offset
            while len(messages) < end:
                for batch in streams.read(
                    stream.namespace, len(messages), end=end, bytes_max=1 << 20
                ):
                    messages += MessageBatch.decode(batch.payload).values
            if messages:
                found[stream.namespace] = messages
        return found

    def close(self) -> None:
        self.replica.close()
        self.effects.close()


def check_equal(source: Source, manifest: Manifest, opened: Sequence[Opened]) -> None:
    """What was restored is what the source held at the backup's cut."""
    for cut, shard, found in zip(manifest.cuts, source.shards, opened, strict=True):
        check_shard(shard, found, cut.index)


def check_shard(shard: Shard, found: Opened, index: int) -> None:
    assert found.rows() == shard.rows_at(index), f"shard {shard.number} at {index}"
    assert found.messages() == shard.messages_at(index), f"shard {shard.number} at {index}"
    own = found.replica.raft.member
    assert (found.membership.voters, found.membership.outgoing) == ((own,), ())
