"""Owns what a shard must know before it may say anything: who it is, its term, its vote.

Two files, `superblock.a` and `superblock.b`, each one sector with a sequence number and a
checksum. `store` writes and syncs one, then the other, so one of them is whole at any time and
the newest whole one is right. Each is first created by an atomic publish: a file that exists was
whole once, so one that is not whole now is damage.

    absent       no copy exists: the first boot
    valid        at least one copy is whole; the other is repaired at load
    unreadable   a copy exists and none is whole: `SuperblockUnreadable`, the shard must not boot

The one rule: term and vote are in both copies, durably, before anything acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Self

from xxhash import xxh3_64_intdigest

from shardnode.storage.errors import Corrupt, StorageError, SuperblockUnreadable, SyncFailed
from shardnode.storage.files import Files, join
from shardnode.storage.publish import make_dir, publish_file

SUPERBLOCK_BYTES = 512  # one sector: the unit that a disk writes whole or not at all
COPIES = ("superblock.a", "superblock.b")

_MAGIC = b"\xf5snsupr\x1a"
_VERSION = 1
_FIELDS = Struct("<8sII7Q")
_CHECKSUM = Struct("<Q")
_RECOVERING = 1


@dataclass(frozen=True, slots=True)
class SuperblockState:
    """What is remembered. A vote of 0 is none; the commit watermark may trail, never lead."""

    cluster: int
    member: int
    term: int
    vote: int
    commit: int
    snapshot_index: int
    recovering: bool  # data was lost: no vote until it has been fetched again


class SuperblockStatus(StrEnum):
    ABSENT = "absent"
    VALID = "valid"


def encode_superblock(state: SuperblockState, sequence: int) -> bytes:
    data = _FIELDS.pack(
        _MAGIC,
        _VERSION,
        _RECOVERING if state.recovering else 0,
        sequence,
        state.cluster,
        state.member,
        state.term,
        state.vote,
        state.commit,
        state.snapshot_index,
    ).ljust(SUPERBLOCK_BYTES - _CHECKSUM.size, b"\0")
    return data + _CHECKSUM.pack(xxh3_64_intdigest(data))


def decode_superblock(data: bytes) -> tuple[int, SuperblockState]:
    """Sequence and state in one copy; `Corrupt` when it is not whole."""
    if len(data) != SUPERBLOCK_BYTES:
        raise Corrupt(f"expected {SUPERBLOCK_BYTES} bytes, found {len(data)}")
    if xxh3_64_intdigest(data[:-8]) != _CHECKSUM.unpack_from(data, SUPERBLOCK_BYTES - 8)[0]:
        raise Corrupt("it does not match its checksum")
    magic, version, flags, sequence, cluster, member, term, vote, commit, snapshot_index = (
        _FIELDS.unpack_from(data)
    )
    if magic != _MAGIC or version != _VERSION or flags & ~_RECOVERING or sequence < 1:
        raise Corrupt(f"format {version} with flags {flags:#x}, this program reads {_VERSION}")
    recovering = bool(flags & _RECOVERING)
    return sequence, SuperblockState(
        cluster, member, term, vote, commit, snapshot_index, recovering
    )


def is_torn(copy: bytes, whole: bytes) -> bool:
    """Whether a copy that does not match its checksum is what the beginning of a `store` leaves of
    it, next to the other copy: the fields of the new state with the checksum of the old one."""
    ends = copy[-_CHECKSUM.size :], whole[-_CHECKSUM.size :]
    if len(copy) != SUPERBLOCK_BYTES or any(copy[_FIELDS.size : -_CHECKSUM.size]):
        return False
    new, known = _FIELDS.unpack_from(copy), _FIELDS.unpack_from(whole)
    if new == known:  # the other copy was stored before this one, which still has its old checksum
        return sum(a != b for a, b in zip(*ends, strict=True)) > 1
    same = (*new[:2], *new[4:6]) == (*known[:2], *known[4:6])
    grown = new[3] == known[3] + 1 and new[6] >= known[6] and new[8] >= known[8]
    return same and grown and ends[0] == ends[1]


class Superblock:
    """The superblock of one shard. `state` is None as long as it is absent."""

    @classmethod
    def load(cls, files: Files, directory: str) -> Self:
        """Read both copies, believe the newest whole one, and write it to both again.

        The last is not for show: what was read may be in the page cache only, and a later
        `store` that is torn must find the other copy on the disk.
        """
        names = [name for name in COPIES if files.exists(join(directory, name))]
        if not names:
            return cls(files, directory, 0, None)
        found: dict[str, tuple[int, SuperblockState]] = {}
        problems = [f"{name} is missing" for name in COPIES if name not in names]
        for name in names:
            try:
                found[name] = _read(files, join(directory, name))
            except Corrupt as error:
                problems.append(f"{name}: {error.detail}")
        copies = list(found.values())
        if len(copies) == 2 and copies[0][0] == copies[1][0] and copies[0] != copies[1]:
            problems.append("both copies have one sequence number and different content")
            found.clear()
        if not found:
            raise unreadable(directory, "; ".join(problems))
        newest = max(found, key=lambda name: found[name][0])
        superblock = cls(files, directory, *found[newest])
        superblock._write_copies(*sorted(COPIES, key=lambda name: name == newest))
        return superblock

    def __init__(
        self, files: Files, directory: str, sequence: int, state: SuperblockState | None
    ) -> None:
        """Use `load`."""
        self.state = state
        self.sequence = sequence  # how often it was stored
        self._files = files
        self._directory = directory
        self._failed: SyncFailed | None = None

    @property
    def status(self) -> SuperblockStatus:
        return SuperblockStatus.ABSENT if self.state is None else SuperblockStatus.VALID

    def store(self, state: SuperblockState) -> None:
        """Make `state` durable in both copies, or raise and still mean the old one."""
        if self._failed is not None:
            raise SyncFailed(f"refused after an earlier failure ({self._failed}): exit")
        if self.state is not None:
            _assert_successor(self.state, state)
        before = self.state, self.sequence
        self.state, self.sequence = state, self.sequence + 1
        try:
            self._write_copies(*COPIES)
        except StorageError as error:
            self.state, self.sequence = before
            if isinstance(error, SyncFailed):
                self._failed = error
            raise

    def _write_copies(self, *names: str) -> None:
        assert self.state is not None
        data = encode_superblock(self.state, self.sequence)
        for name in names:
            path = join(self._directory, name)
            if not self._files.exists(path):
                make_dir(self._files, self._directory)
                publish_file(self._files, path, data)
                continue
            file = self._files.open(path)
            try:
                file.pwritev([data], 0)
                file.datasync()
            finally:
                file.close()


def unreadable(directory: str, detail: str) -> SuperblockUnreadable:
    """The error for term and vote that cannot be known."""
    return SuperblockUnreadable(
        detail,
        path=join(directory, COPIES[0]),
        advice="term and vote are unknown, so this member must not boot: "
        "remove it from the group, empty its directory and add it again",
    )


def _read(files: Files, path: str) -> tuple[int, SuperblockState]:
    file = files.open(path)
    try:
        return decode_superblock(file.pread(SUPERBLOCK_BYTES + 1, 0))
    finally:
        file.close()


def _assert_successor(old: SuperblockState, new: SuperblockState) -> None:
    assert (new.cluster, new.member) == (old.cluster, old.member), "another owner"
    assert new.term >= old.term, f"term {new.term} after {old.term}"
    assert new.term > old.term or old.vote in (0, new.vote), (
        f"a second vote in term {new.term}: {new.vote} after {old.vote}"
    )
