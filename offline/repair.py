"""`shardnode repair`: what can be done about one damaged file.

    what is damaged              what is set aside                 what the next start does
    ---------------------------  --------------------------------  ------------------------------
    members.json, a sidecar      the file                          makes it again, or does without
    one copy of the superblock   the copy                          nothing: it is written again now
    a snapshot                   the snapshot                      does without
    keys, a partition            keys and partitions               makes them again from snapshot
                                                                   and log, where these are whole
    … and they are not           all but term and vote             fetches everything from peers
    the log, among several       what cannot be read               fetches the rest from peers
    the log, alone               what cannot be read               goes on without it: LOSS
    both copies of a superblock  the shard                         joins again; alone: LOSS

The one rule: nothing is invented, and nothing is removed: what is set aside lies in `quarantine/`
until somebody removes it. Where something is lost for good, that is said first, and done only for
whoever accepts it. What is sound is not touched, whoever asks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgpack

from shardnode.node.identity import IDENTITY
from shardnode.node.members import FILE as MEMBERS
from shardnode.node.members import decode_members
from shardnode.offline.places import Place
from shardnode.offline.verify_node import verify_node
from shardnode.offline.verify_shard import ShardFound, look_at_shard
from shardnode.raft import Membership
from shardnode.raft.errors import MalformedMessage
from shardnode.shard.worker import FENCED_FILE
from shardnode.storage.audit import Book
from shardnode.storage.audit_keys import KEYS_DIRECTORY
from shardnode.storage.files import ReadOnlyFiles
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.records import Anchor
from shardnode.storage.snapshots import SNAPSHOTS_DIRECTORY
from shardnode.storage.superblock import COPIES
from shardnode.wire.errors import InvalidRequest

_PARTITIONS_DIRECTORY = "partitions"


class Remedy(StrEnum):
    """What is done."""

    SPARE = "spare"
    REMAKE = "remake"
    REFETCH = "refetch"
    SALVAGE = "salvage"
    CUT = "cut"
    AFTER_KEYS = "after keys"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done about one file."""

    remedy: Remedy
    shard: str
    """The directory of the shard; empty for a file beside the shards."""
    aside: tuple[str, ...]
    """What is set aside."""
    then: str
    """What the next start does."""
    lost: str = ""
    """What is gone for good; empty when nothing is."""
    log_end: int = 0
    """For a log: where it has to end, so that it reaches what the keys hold."""
    anchor: Anchor | None = None
    """What is known of the record there, when a snapshot tells."""


def make_plan(place: Place, path: str) -> Plan:
    """What to do about a file that `verify` has named, below the place's root. `InvalidRequest`
    when it is sound, or when nothing can be done."""
    shard, _, rest = path.partition("/")
    book = Book()
    if shard not in place.shards:
        verify_node(place, book)
        _must_be_damaged(book, path)
        return _beside_the_shards(path)
    found = look_at_shard(ReadOnlyFiles(place.root), shard, book)
    _must_be_damaged(book, path)
    return _Planner(place, found).plan(rest)


def _must_be_damaged(book: Book, path: str) -> None:
    for finding in book.damage:
        if f"{finding.path}/".startswith(f"{path}/") or f"{path}/".startswith(f"{finding.path}/"):
            return
    named = sorted({finding.path for finding in book.damage})
    others = f"; damaged are {', '.join(named[:5])}" if named else ""
    raise InvalidRequest(f"{path}: expected a damaged file, found nothing wrong with it{others}")


def _beside_the_shards(path: str) -> Plan:
    if path == MEMBERS:
        return Plan(
            Remedy.SPARE, "", (path,), "takes the addresses of its peers from the configuration"
        )
    raise InvalidRequest(
        f"{path}: expected a file that can be spared, found one that says whose the data is; write"
        f" {IDENTITY} again as it was, or restore it from a backup"
    )


def has_peers(root: Path, found: ShardFound) -> bool:
    """Whether others have what this member has: by the membership that it stored last."""
    packed = b""
    if blob := found.keys.blobs.get("effects"):
        packed = msgpack.unpackb(blob)[1]
    elif found.snapshots:
        packed = found.snapshots[-1].membership
    try:
        if packed:
            return len(Membership.decode(packed).everyone) > 1
        return len(decode_members((root / MEMBERS).read_bytes())[1]) > 1
    except (MalformedMessage, ValueError, OSError):
        return False


class _Planner:
    """What can be done in one shard, by what was found of it."""

    def __init__(self, place: Place, found: ShardFound) -> None:
        self._place = place
        self._found = found
        self._has_peers = has_peers(place.root, found)

    def plan(self, rest: str) -> Plan:
        """`rest`: the file, below the shard's directory."""
        first = rest.partition("/")[0]
        if rest in COPIES:
            return self._superblock(rest)
        if self._found.superblocks.state is None and first != SNAPSHOTS_DIRECTORY:
            return self._superblock(COPIES[0])
        if rest == FENCED_FILE:
            return self._refetch("its state was found to be wrong")
        if first == LOG_DIRECTORY:
            return self._log(rest)
        if first in (KEYS_DIRECTORY, _PARTITIONS_DIRECTORY):
            return self._state()
        if first == SNAPSHOTS_DIRECTORY:
            return self._snapshot(rest)
        raise InvalidRequest(
            f"{self._path(rest)}: expected a file of the shard that can be set aside, found another"
        )

    def _path(self, *names: str) -> str:
        return "/".join([self._found.name, *names])

    def _superblock(self, name: str) -> Plan:
        if self._found.superblocks.state is not None:
            then = "finds this copy written again from the other"
            return Plan(Remedy.SPARE, self._found.name, (self._path(name),), then)
        if self._has_peers:
            then = "begins as a member that lost its disk: it votes when it has everything again"
            return Plan(Remedy.SPARE, "", (self._found.name,), then)
        return Plan(
            Remedy.SPARE, "", (self._found.name,), "begins an empty shard", "everything in it"
        )

    def _log(self, rest: str) -> Plan:
        found = self._found
        path, log = self._path(rest), found.log
        if rest.endswith(".idx"):
            return Plan(Remedy.SPARE, found.name, (path,), "makes it again")
        if log is not None and not log.damaged:
            then = "has nothing to do: no record is damaged, the file goes when the log is cut"
            return Plan(Remedy.LEAVE, found.name, (), then)
        if self._has_peers:
            then = "keeps what can be read, fetches the rest from its peers, and votes after that"
            return Plan(Remedy.SALVAGE, found.name, (path,), then, log_end=found.keys.index)
        return self._log_alone(log.last.index if log is not None else 0)

    def _log_alone(self, end: int) -> Plan:
        """Nobody else has what is lost."""
        found = self._found
        state = found.superblocks.state
        assert state is not None
        known = max(state.commit, found.keys.index, found.log.proven if found.log else 0)
        aside = (self._path(LOG_DIRECTORY),)
        if found.keys.damaged:
            raise InvalidRequest(
                f"{found.name}: expected keys or a log that can be read, found both damaged and no"
                " peers; restore it from a backup"
            )
        keeps = f"goes on after index {max(end, found.keys.index)}"
        behind = f"entries after index {max(end, found.keys.index)}, known to reach {known}"
        if known <= max(end, found.keys.index):
            behind = f"entries after index {known}, if there were any: none is known of"
        if end >= found.keys.index:
            return Plan(Remedy.CUT, found.name, aside, keeps, behind, end)
        last = found.snapshots[-1] if found.snapshots else None
        is_there = last is not None and last.index == found.keys.index
        anchor = Anchor(last.index, last.term, last.chain) if last and is_there else None
        end = found.keys.index
        return Plan(Remedy.AFTER_KEYS, found.name, aside, keeps, behind, end, anchor)

    def _state(self) -> Plan:
        """Keys and partitions go together: one commit is of both."""
        found, log = self._found, self._found.log
        there = [
            self._path(name)
            for name in (KEYS_DIRECTORY, _PARTITIONS_DIRECTORY)
            if (self._place.root / self._path(name)).exists()
        ]
        if log is not None and not log.damaged:
            begin = log.timeline.anchor.index
            if begin == 0 or any(meta.index >= begin for meta in found.snapshots):
                then = "makes keys and partitions again from the snapshot and the log"
                return Plan(Remedy.REMAKE, found.name, tuple(there), then)
        return self._refetch("keys or partitions are damaged, and the log does not reach back")

    def _refetch(self, why: str) -> Plan:
        if not self._has_peers:
            raise InvalidRequest(
                f"{self._path()}: {why}; expected peers to fetch from, found none: what can be read"
                " is served while the node runs; restore the rest from a backup"
            )
        then = "fetches everything from its peers, and votes when it has it"
        return Plan(Remedy.REFETCH, self._found.name, (self._path(),), then)

    def _snapshot(self, rest: str) -> Plan:
        found, log = self._found, self._found.log
        begin = log.timeline.anchor.index if log is not None else 0
        if found.keys.index < begin and not any(meta.index >= begin for meta in found.snapshots):
            return self._refetch("the snapshot is needed: the keys end where the log begins")
        then = "does without; another snapshot is made when a member needs one"
        name = "/".join(rest.split("/")[:2])
        return Plan(Remedy.SPARE, found.name, (self._path(name),), then)


def relative_path(place: Place, file: str, directory: Path) -> str:
    """A file below the place's root, as `verify` prints it, or as seen from DIR or from here."""
    bases = (place.root, directory.absolute(), Path.cwd())
    paths = [Path(os.path.normpath(base / file)) for base in bases]
    inside = [path for path in paths if path != place.root and path.is_relative_to(place.root)]
    if not inside:
        raise InvalidRequest(f"{file}: expected a file below {place.root}, found one elsewhere")
    found = next((path for path in inside if path.exists()), inside[0])  # one may be missing
    return found.relative_to(place.root).as_posix()
