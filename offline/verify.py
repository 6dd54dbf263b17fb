"""`shardnode verify`: is everything in a directory as it was written?

The one rule: every byte that means something is looked at, and nothing is changed. What a crash
leaves behind is sound; what was durable once and is not any more is damage, with its file, its
offset and what it means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardnode.node.identity import Identity
from shardnode.offline.places import Place, find_place, held
from shardnode.offline.replay import replay_shard
from shardnode.offline.verify_node import verify_node
from shardnode.offline.verify_shard import ShardSummary, look_at_shard
from shardnode.storage.audit import Book, Finding
from shardnode.storage.files import ReadOnlyFiles

_LEFT_OUT = {"quarantine", "LOCK", "lock.mdb"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    path: Path
    identity: Identity | None
    shards: Sequence[ShardSummary]
    damage: Sequence[Finding]
    notes: Sequence[Finding]
    left_out: int
    """Findings beyond the first ones of a file."""
    bytes_read: int

    @property
    def is_sound(self) -> bool:
        return not self.damage

    def as_json(self) -> Mapping[str, Any]:
        return {
            "path": str(self.path),
            "sound": self.is_sound,
            "identity": asdict(self.identity) if self.identity else None,
            "shards": [asdict(shard) for shard in self.shards],
            "damage": [_as_json(finding) for finding in self.damage],
            "notes": [_as_json(finding) for finding in self.notes],
            "left_out": self.left_out,
            "bytes": self.bytes_read,
        }


def _as_json(finding: Finding) -> Mapping[str, Any]:
    return {
        "file": finding.path,
        "offset": finding.offset,
        "what": finding.what,
        "means": finding.means,
    }


def verify(
    path: Path, advance: Callable[[int], None] | None = None, *, replay: bool = False
) -> Verdict:
    """Look at everything below a path. `NotFound` when it is no directory of ours, `DirectoryInUse`
    when a node runs there. With `replay` the state is also made again and compared."""
    place = find_place(path)
    with held(place.root):
        return verify_place(place, advance, replay=replay)


def verify_place(
    place: Place, advance: Callable[[int], None] | None = None, *, replay: bool = False
) -> Verdict:
    """The same for a place that is held."""
    book = Book(advance)
    identity = verify_node(place, book) if place.is_whole else None
    files = ReadOnlyFiles(place.root)
    shards = []
    for name in place.shards:
        found = look_at_shard(files, name, book)
        shards.append(found.summary())
        if replay:
            replay_shard(files, found, book)
    return Verdict(
        place.root if place.is_whole else place.root / place.shards[0],
        identity,
        shards,
        book.damage,
        book.notes,
        book.left_out,
        book.bytes_read,
    )


def bytes_below(place: Place) -> int:
    """About how many bytes there are to look at, for whoever shows how far it is."""
    return sum(path.stat().st_size for name in place.shards for path in _below(place.root / name))


def _below(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in _LEFT_OUT:
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
