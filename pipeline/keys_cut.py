"""The cut that a frame reads: for each shard a snapshot, and what the log behind it changed.

    1. all shards are asked for a cut of now
    2. one whose snapshot is old builds another beside its work; whoever is ready is read meanwhile
    3. the log behind each snapshot is read, and what it does to the keys is worked out here

One rule: what every client had seen acknowledged before `load()` is in the cut. So a cut reaches
at least to the index that its shard had when it was asked first; a snapshot that reaches further
is taken as it is, and no log is read.

Afterwards the snapshot alone is held, by a lease that tasks renew; the log is let go at once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from xxhash import xxh3_64_intdigest

from shardnode.client.cuts import Cut, CutReader
from shardnode.pipeline.keys_source import (
    ASK_AGAIN_S,
    KEYS_FILE,
    LOST,
    PIN_MS,
    CutFile,
    KeySource,
    LocalFile,
    Pin,
    hold,
)
from shardnode.pipeline.options import Options
from shardnode.shard.overlay import PARTS, Base, changes_behind
from shardnode.storage.errors import StorageError
from shardnode.storage.keyfile_reader import KeyFile
from shardnode.storage.manifest import MANIFEST_NAME, SnapshotFile, SnapshotMeta
from shardnode.storage.records import Anchor, Record
from shardnode.storage.stretch import prove_pieces
from shardnode.wire.cuts import MANIFEST_FILE, CutOpen, CutOpened
from shardnode.wire.errors import (
    Compacted,
    Conflict,
    Corrupt,
    InvalidRequest,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.kinds import Consistency

LOG_BYTES_MAX = 8 << 20
"""With more log behind it a snapshot is too old: working out what it did would take a second."""

log = logging.getLogger("shardnode.pipeline")


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard at one index of its log."""

    shard: int
    index: int
    rows: int
    """Of the snapshot."""
    source: KeySource | None
    """Where the snapshot's keys lie; None: there is none, and the changes are everything."""
    changed: Mapping[bytes, bytes]
    """What is kept of keys that changed behind it; empty: they were deleted."""
    pin: Pin | None = None
    """What holds it; None: nothing needs to."""

    @property
    def size(self) -> int:
        """Of the snapshot's keys, in bytes."""
        return self.source.size if self.source is not None else 0


class NoKeys:
    """A shard without a snapshot."""

    rows = 0

    def get(self, key: bytes) -> bytes | None:  # noqa: ARG002
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)


@dataclass(frozen=True, slots=True)
class Wish:
    """Which cut of a shard is wanted; one of now, of whoever leads, unless it says more."""

    shard: int
    at: int = 0
    """The index that it should be of. A shard that cannot show it any more gives one of now."""
    node: int = 0
    """Whose replica is to give it, of what it has applied, which is waited for if it is behind
    `at`; 0: the leader's."""
    log_bytes_max: int = LOG_BYTES_MAX
    """A snapshot that more log follows is too old; 0: it is made for this cut."""


def open_cuts(
    reader: CutReader, options: Options, wishes: Sequence[Wish] | None = None
) -> list[ShardKeys]:
    """The cuts that are wanted, in order: of every shard if nothing is said."""
    if wishes is None:
        wishes = [Wish(shard) for shard in range(reader.topology().table.shards)]
    opening = [_Opening(reader, options, wish) for wish in wishes]
    found: dict[int, ShardKeys] = {}
    while len(found) < len(opening):
        before = len(found)
        for place, each in enumerate(opening):
            if place not in found and (keys := each.step()) is not None:
                found[place] = keys
        if len(found) == before:
            time.sleep(ASK_AGAIN_S)
    return [found[place] for place in range(len(opening))]


class _Opening:
    """One shard on its way to a cut."""

    def __init__(self, reader: CutReader, options: Options, wish: Wish) -> None:
        self.shard = wish.shard
        self._wish = wish
        self._reader = reader
        self._options = options
        self._consistency = Consistency[options.consistency.upper()]
        if wish.node:
            self._consistency = Consistency.STALE
        self._index = 0
        """The cut has to reach this far."""
        self._snapshot_min = 0
        self._news_at = time.monotonic()

    def step(self) -> ShardKeys | None:
        """Ask; None: ask again soon."""
        try:
            return self._ask()
        except (*LOST, Compacted) as error:
            if time.monotonic() - self._news_at > self._options.timeout:
                raise Unavailable(
                    f"shard {self.shard} gave no cut for {self._options.timeout:g} s:"
                    f" {error.message}; raise option timeout if it is only slow"
                ) from error
            return None

    def _ask(self) -> ShardKeys | None:
        ask = CutOpen(
            PIN_MS,
            snapshot_min=self._snapshot_min,
            log_bytes_max=self._wish.log_bytes_max,
            consistency=self._consistency,
        )
        cut = self._reader.open(self.shard, ask, self._wish.node)
        if isinstance(cut, Cut) and self._wish.node and cut.opened.index < self._wish.at:
            self._reader.close(cut)
            raise Unavailable(
                f"node {cut.node} is at index {cut.opened.index}, behind the {self._wish.at} that"
                " others have"
            )
        self._news_at = time.monotonic()
        if isinstance(cut, CutOpened):
            self._snapshot_min = cut.snapshot_min
            self._index = self._index or cut.index
            if cut.note:
                log.warning("shard %d builds no snapshot yet: %s", self.shard, cut.note)
            return None
        index = max(self._index or cut.opened.index, cut.opened.snapshot_index)
        if cut.opened.snapshot_index <= self._wish.at <= cut.opened.index:
            index = self._wish.at or index
        try:
            return self._read(cut, index)
        except BaseException as error:
            with suppress(ShardnodeError):
                self._reader.close(cut, doubt=isinstance(error, Corrupt))
            raise

    def _read(self, cut: Cut, index: int) -> ShardKeys:
        reader, opened = self._reader, cut.opened
        if not opened.snapshot:
            changed = changes_behind(NoKeys(), 0, lambda _: b"", self._records(cut, index))
            reader.close(cut)
            return ShardKeys(self.shard, index, 0, None, changed)
        try:
            meta = self._manifest(cut)
            pin = Pin(self.shard, cut.node, opened.cut, opened.snapshot)
            pin = replace(pin, cut=hold(reader, pin).opened.cut)
            files = {file.name: file for file in meta.files}
            source = self._source(cut, pin, meta, files[KEYS_FILE].size)
            with source.opened() as pread:
                base = KeyFile(pread, source.size)
                changed = self._changed(cut, index, base, files)
        except StorageError as error:
            raise Corrupt(f"shard {self.shard}: {error}") from error
        reader.close(cut)
        return ShardKeys(self.shard, index, base.rows, source, changed, pin)

    def _changed(
        self, cut: Cut, index: int, base: Base, files: Mapping[str, SnapshotFile]
    ) -> Mapping[bytes, bytes]:
        if index <= cut.opened.snapshot_index:
            return {}
        parts = {name: self._small_file(cut, files[name]) for name in PARTS}
        records = self._records(cut, index)
        return changes_behind(base, cut.opened.snapshot_index, parts.__getitem__, records)

    def _records(self, cut: Cut, index: int) -> Iterator[Record]:
        """Those behind the snapshot, up to the index of the cut."""
        opened = cut.opened
        before = Anchor(opened.log_after, opened.log_after_term, opened.log_after_chain)
        return records_of(self._reader, cut, before, index)

    def _small_file(self, cut: Cut, file: SnapshotFile) -> bytes:
        data = b"".join(self._reader.file(cut, file.name, file.size))
        if (len(data), xxh3_64_intdigest(data)) != (file.size, file.checksum):
            raise Corrupt(f"shard {self.shard}: {file.name} of its snapshot is not as it was")
        return data

    def _manifest(self, cut: Cut) -> SnapshotMeta:
        data = b"".join(self._reader.file(cut, MANIFEST_FILE, cut.opened.manifest_bytes))
        meta = SnapshotMeta.decode(data)
        if meta.id != cut.opened.snapshot:
            raise Corrupt(f"shard {self.shard}: a manifest of another snapshot came")
        return meta

    def _source(self, cut: Cut, pin: Pin, meta: SnapshotMeta, size: int) -> KeySource:
        access, directory = self._options.access, cut.opened.directory
        if access != "remote" and directory:
            path = os.path.join(directory, KEYS_FILE)
            if _is_same(os.path.join(directory, MANIFEST_NAME), meta) and os.access(path, os.R_OK):
                return LocalFile(path, size)
        if access == "local":
            raise InvalidRequest(
                f"access=local: expected the files of shard {self.shard}'s snapshot in"
                f" {directory or 'a directory'}, found none that can be read; run on the machine of"
                f" node {pin.node}, as a user who may read its data, or say access=remote"
            )
        return CutFile(self._options.connect, pin, size, self._options.timeout)


def records_of(reader: CutReader, cut: Cut, before: Anchor, last: int) -> Iterator[Record]:
    """The log of a cut behind a position, up to an index."""
    if last <= before.index:
        return
    found = before.index
    try:
        for each in prove_pieces(reader.log(cut, before.index + 1), before):
            found = each.record.index
            yield each.record
            if found == last:
                return
    except StorageError as error:
        raise Corrupt(f"shard {cut.shard}: {error}") from error
    raise Conflict(f"shard {cut.shard}: expected a log up to {last}, it ends at {found}")


def _is_same(path: str, meta: SnapshotMeta) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == meta.encode()
    except OSError:
        return False
