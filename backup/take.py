"""Taking a backup of a whole cluster that goes on working.

    1. whose cluster it is, and whether the destination is its own
    2. shard by shard, where there is none or the last one is far behind: a base
    3. of all shards, shard 0 last: a cut of now, and the log up to it
    4. the manifest

The one rule: the manifest is written when everything that it names is there and will stay. Until
then nothing of this backup counts, and whatever was copied is found again by the next attempt.

Shard 0 has the topics, which the others follow; as it is cut last, no other shard is ahead of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from shardnode import __version__
from shardnode.backup import copying
from shardnode.backup.copying import Moved, ShardCopy
from shardnode.backup.format import (
    BACKUPS,
    MARK,
    Manifest,
    Owner,
    ShardCut,
    backup_of,
    decode_manifest,
    decode_owner,
    encode_manifest,
    encode_owner,
    manifest_key,
)
from shardnode.backup.pace import Pace
from shardnode.backup.store import Store
from shardnode.client.cuts import BulkReader
from shardnode.client.values import Topology
from shardnode.wire.errors import Conflict, Corrupt, NotFound

LOG_BYTES_MAX = 256 << 20
"""With more log behind the last base a new one is taken: a restore would redo all of it …"""

LOG_SHARE_MAX = 0.5
"""… unless that is little beside the base itself."""


@dataclass(slots=True)
class Progress:
    """What a person who waits is shown."""

    say: Callable[[str], None] = lambda _: None
    advance: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup, and what it cost."""

    manifest: Manifest
    moved: Moved
    seconds: float


@dataclass(frozen=True, slots=True)
class TakeOptions:
    """How a backup is taken."""

    bytes_per_s: int = 0
    """0: as fast as it goes."""
    full: bool = False
    """A new base of every shard."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Time, for tests to hold."""

    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def take_backup(
    store: Store,
    reader: BulkReader,
    options: TakeOptions = TakeOptions(),
    progress: Progress | None = None,
    clocks: Clocks = Clocks(),
) -> Taken:
    """Back up every shard; the manifest is there when this returns."""
    with store.alone():
        return _take(store, reader, options, progress or Progress(), clocks)


def _take(
    store: Store, reader: BulkReader, options: TakeOptions, progress: Progress, clocks: Clocks
) -> Taken:
    begun, begun_at = clocks.wall(), clocks.monotonic()
    topology = reader.topology()
    owner = Owner(topology.cluster, topology.cluster_id, topology.table.shards)
    claim(store, owner)
    work = _Work(store, reader, options, progress, clocks, newest_of(store, owner))
    try:
        cuts = work.run()
    except Exception:  # an interrupt ends at once: leases end by themselves
        work.let_go()
        raise
    work.let_go()
    manifest = _manifest(topology, owner, reader.node_id(), cuts, begun, clocks.wall())
    store.settle()
    store.put(manifest_key(manifest.id), encode_manifest(manifest))
    store.settle()
    return Taken(manifest, work.moved, clocks.monotonic() - begun_at)


def claim(store: Store, owner: Owner) -> None:
    """Make an empty destination that of a cluster; raises `Conflict` if it is another's."""
    try:
        found = decode_owner(store.get(MARK), MARK)
    except NotFound:
        stranger = next(store.list(""), None)
        if stranger is not None:
            raise Conflict(
                f"{store.place}: expected backups or nothing, found {stranger}; choose a"
                " destination of its own"
            ) from None
        store.put(MARK, encode_owner(owner))
        return
    if found != owner:
        raise Conflict(
            f"{store.place}: expected backups of {_named(owner)}, found those of {_named(found)};"
            " choose another destination"
        )


def _named(owner: Owner) -> str:
    return f"cluster {owner.cluster} ({owner.cluster_id:016x}, {owner.shards} shards)"


def all_backups(store: Store) -> tuple[list[Manifest], list[Corrupt]]:
    """Every complete backup, oldest first, and what is wrong with the others' manifests."""
    found, wrong = [], []
    for key in store.list(BACKUPS):
        if backup_of(key) is None:
            continue
        try:
            found.append(decode_manifest(store.get(key), key))
        except Corrupt as error:
            wrong.append(error)
    return sorted(found, key=_age), wrong


def _age(manifest: Manifest) -> tuple[int, int, str]:
    """Indexes never go back, as clocks may."""
    return sum(cut.index for cut in manifest.cuts), manifest.ended_ms, manifest.id


def newest_of(store: Store, owner: Owner) -> Manifest | None:
    """A complete backup to go on from: the newest one whose manifest is sound."""
    for key in sorted(filter(backup_of, store.list(BACKUPS)), reverse=True):
        with suppress(Corrupt):
            found = decode_manifest(store.get(key), key)
            if found.owner == owner:
                return found
    return None


def needs_base(previous: ShardCut | None) -> bool:
    """Whether a restore would have to redo too much."""
    if previous is None:
        return True
    start = previous.start.index
    log_bytes = sum(chunk.size for chunk in previous.log if chunk.last > start)
    base_bytes = previous.base.size if previous.base is not None else 0
    is_long = log_bytes > max(LOG_BYTES_MAX, LOG_SHARE_MAX * base_bytes)
    return is_long or len(previous.log) > copying.CHUNKS_MAX


class _Work:
    """The copies of all shards."""

    def __init__(
        self,
        store: Store,
        reader: BulkReader,
        options: TakeOptions,
        progress: Progress,
        clocks: Clocks,
        previous: Manifest | None,
    ) -> None:
        self.moved = Moved()
        self._full = options.full
        self._progress = progress
        self._before = previous.cuts if previous is not None else ()
        shards = reader.topology().table.shards
        pace = Pace(
            options.bytes_per_s,
            clock=clocks.monotonic,
            sleep=clocks.sleep,
            alive=self._beat,
        )
        self._copies = [
            ShardCopy(
                shard,
                store,
                reader,
                pace,
                self.moved,
                clock=clocks.monotonic,
                advance=progress.advance,
                previous=self._before[shard] if self._before else None,
            )
            for shard in range(shards)
        ]

    def run(self) -> list[ShardCut]:
        """Copy all of it."""
        shard = 0
        try:
            for shard, copy in enumerate(self._copies):
                if self._full or needs_base(self._before[shard] if self._before else None):
                    self._copy_base(copy)
            last = [*self._copies[1:], self._copies[0]]
            for copy in last:
                shard = copy.shard
                if not copy.open_last() and not copy.is_current:
                    self._copy_base(copy)
            for copy in last:
                shard = copy.shard
                self._progress.say(f"shard {shard}: log")
                if copy.cut is not None and not copy.copy_rest() and not copy.is_current:
                    self._copy_base(copy)
        except Conflict as error:
            raise Conflict(
                f"shard {shard} has another history than the newest backup ({error.message});"
                " choose another destination"
            ) from error
        return [copy.finished() for copy in self._copies]

    def let_go(self) -> None:
        """Nothing is held any more."""
        for copy in self._copies:
            copy.let_go()

    def _copy_base(self, copy: ShardCopy) -> None:
        self._progress.say(f"shard {copy.shard}: snapshot")
        copy.copy_base()

    def _beat(self) -> None:
        for copy in self._copies:
            copy.beat()


def _manifest(
    topology: Topology,
    owner: Owner,
    node_id: int,
    cuts: Sequence[ShardCut],
    begun: datetime,
    ended: datetime,
) -> Manifest:
    return Manifest(
        id=f"{begun:%Y%m%dT%H%M%SZ}-{os.urandom(2).hex()}",
        begun_ms=_milliseconds(begun),
        ended_ms=_milliseconds(ended),
        cluster=owner.cluster,
        cluster_id=owner.cluster_id,
        node_id=node_id,
        shards=owner.shards,
        epoch=topology.epoch,
        table=topology.table.encode().hex(),
        version=__version__,
        cuts=tuple(cuts),
    )


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1_000)
