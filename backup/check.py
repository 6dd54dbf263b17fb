"""Reading all of a destination: every backup in it, every file, every record.

The one rule: it goes on behind what is wrong, because who has to repair something wants to know all
of it; and it reads what several backups share once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardnode.backup.blobs import read_file
from shardnode.backup.chunks import read_chunk
from shardnode.backup.format import (
    MARK,
    Base,
    Manifest,
    ShardCut,
    chunk_key,
    damaged,
    decode_owner,
    decode_snapshot,
    file_key,
    manifest_key,
    snapshot_key,
)
from shardnode.backup.points import point_of
from shardnode.backup.store import Store
from shardnode.backup.take import Progress, all_backups
from shardnode.wire.errors import Corrupt, NotFound, ShardnodeError


@dataclass(slots=True)
class Checked:
    """What was found."""

    backups: list[Manifest] = field(default_factory=list)
    """Those whose manifest is sound."""
    problems: list[ShardnodeError] = field(default_factory=list)
    bytes: int = 0
    """That were read and verified."""
    unused: int = 0
    """Objects that no backup names: an interrupted one left them, and the next one uses them."""


def check_backups(store: Store, progress: Progress | None = None) -> Checked:
    """Verify everything; raises only when there is nothing to verify."""
    work = _Check(store, progress or Progress())
    return work.run()


class _Check:
    def __init__(self, store: Store, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._found = Checked()
        self._seen: set[str] = {MARK}

    def run(self) -> Checked:
        found = self._found
        try:
            owner = decode_owner(self._store.get(MARK), MARK)
        except Corrupt as error:
            found.problems.append(error)
            owner = None
        found.backups, wrong = all_backups(self._store)
        found.problems += wrong
        for manifest in found.backups:
            self._progress.say(manifest.id)
            key = manifest_key(manifest.id)
            self._seen.add(key)
            if owner is not None and manifest.owner != owner:
                found.problems.append(damaged(key, "it is of another cluster than the others"))
            for cut in manifest.cuts:
                self._check_cut(cut, key)
        found.unused = sum(not self._is_known(key) for key in self._store.list(""))
        return found

    def _is_known(self, key: str) -> bool:
        """A part of a file stands behind the file's own name; what is wrong is not unused."""
        folder = key.rpartition("/")[0]
        return key in self._seen or folder in self._seen or folder == "backups"

    def _check_cut(self, cut: ShardCut, key: str) -> None:
        try:
            point_of(cut)
        except NotFound as error:
            self._found.problems.append(damaged(key, error.message))
        if cut.base is not None:
            self._check_base(cut.shard, cut.base)
        for chunk in cut.log:
            name = chunk_key(cut.shard, chunk)
            if self._is_new(name):
                try:
                    for _ in read_chunk(self._store, cut.shard, chunk):
                        pass
                    self._read(chunk.size)
                except Corrupt as error:
                    self._found.problems.append(error)

    def _check_base(self, shard: int, base: Base) -> None:
        key = snapshot_key(shard, base.index, base.snapshot)
        if not self._is_new(key):
            return
        try:
            meta = decode_snapshot(self._store.get(key), key, base)
        except NotFound:
            self._found.problems.append(damaged(key, "it is missing"))
            return
        except Corrupt as error:
            self._found.problems.append(error)
            return
        for file in meta.files:
            if self._is_new(file_key(shard, file)):
                try:
                    for piece in read_file(self._store, shard, file):
                        self._read(len(piece))
                except Corrupt as error:
                    self._found.problems.append(error)

    def _is_new(self, key: str) -> bool:
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _read(self, size: int) -> None:
        self._found.bytes += size
        self._progress.advance(size)
