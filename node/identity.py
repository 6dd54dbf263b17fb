"""Whose a data directory is: the file that says so, the lock, and the effective configuration.

    data/
      LOCK          held by the supervisor for as long as it runs; holds its process id
      node.json     cluster, node, number of shards, format
      config.toml   what the node last started with, for people to read
      shard-0/ …    not touched here

The one rule: whoever holds a `DataDirectory` holds its lock, and the directory says that it is
theirs. A directory that says otherwise, or says nothing and is not empty, is refused as it was
found: nothing in it is changed, made or deleted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardnode.node.config import Config
from shardnode.node.config_kinds import Peer
from shardnode.node.config_load import Loaded
from shardnode.node.config_write import effective_toml
from shardnode.wire.errors import Corrupt, InvalidRequest, ShardnodeError

FORMAT = 3
"""Raised when an older node could no longer read what a newer one writes."""

IDENTITY, LOCK, CONFIG = "node.json", "LOCK", "config.toml"
RESTORING = "restoring"
"""Here while a backup is restored into the directory."""

TEMPORARY = ".tmp"

LEFT_BY_A_FIRST_START = {LOCK, IDENTITY + TEMPORARY, RESTORING + TEMPORARY, "lost+found"}
"""What may lie in a directory that still counts as empty: what a start leaves that was killed
before it had made the directory its own, and what a fresh file system has."""

_FILE_BYTES_MAX = 64 << 10


class DirectoryInUse(ShardnodeError):
    """Another process holds the lock; `pid` is what it wrote there, if that can be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path, self.pid = path, pid
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{path}: expected a data directory that no node runs on, found it in use by {holder};"
            " stop that node, or start this one with another --data"
        )


class WrongDirectory(InvalidRequest):
    """The directory is not what the configuration takes it for."""


class DirectoryUnusable(ShardnodeError):
    """The operating system refused to read or write there."""


class IdentityCorrupt(Corrupt):
    """`node.json` is damaged: whose the data is cannot be known."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data directory remembers of its node."""

    cluster: str
    node_id: int
    shards: int
    cluster_id: int | None = None
    """64 bits that tell this cluster from every other; None until a joining node has learned it."""

    created: str = ""
    format: int = FORMAT


def founding_cluster_id(name: str, peers: Sequence[Peer]) -> int:
    """The id of a new cluster. Founders compute the same one without talking to each other, from
    what they must agree on: its name and the founders' ids (each may reach the others by addresses
    of its own). A node that founds a cluster alone draws one.
    """
    if not peers:
        return secrets.randbits(64) or 1
    text = "\n".join([name, *map(str, sorted(peer.id for peer in peers))])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") or 1


class DataDirectory:
    """A data directory that is locked and ours. `close` lets go of it, as does the process's end.

    The lock belongs to the open file `lock_fd`. A supervisor that passes it on to its workers keeps
    the directory locked until the last of them is gone, even if it is killed before them.
    """

    def __init__(self, path: Path, identity: Identity, lock_fd: int, created: bool) -> None:
        self.path = path
        self.identity = identity
        self.lock_fd = lock_fd
        self.created = created
        """Whether this start made it: a first boot."""

    def shard_path(self, shard: int) -> Path:
        """Where a shard keeps its files. The shard makes it."""
        return self.path / f"shard-{shard}"

    def learn_cluster_id(self, cluster_id: int) -> None:
        """What a joining node was told; once known it never changes."""
        known = self.identity.cluster_id
        if known not in (None, cluster_id):
            raise WrongDirectory(
                f"{self.path}: expected to join cluster {known:#x}, found {cluster_id:#x};"
                " join a node of the same cluster, or use another --data"
            )
        self._rewrite(replace(self.identity, cluster_id=cluster_id))

    def set_shards(self, shards: int) -> None:
        """The last step of a reshard: from now on the directory is for this many."""
        self._rewrite(replace(self.identity, shards=shards))

    def write_config(self, text: str) -> None:
        """Publish the effective configuration."""
        with os_errors_named(self.path):
            publish(self.path / CONFIG, text.encode())

    def close(self) -> None:
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rewrite(self, identity: Identity) -> None:
        if identity != self.identity:
            with os_errors_named(self.path):
                publish(self.path / IDENTITY, encode_identity(identity))
            self.identity = identity


def open_node_directory(loaded: Loaded) -> DataDirectory:
    """The directory of a configuration: locked, ours, and with that configuration written down."""
    config = loaded.config
    directory = open_directory(config.node.data, claim_of(config))
    try:
        directory.write_config(effective_toml(loaded))
    except BaseException:
        directory.close()
        raise
    return directory


def claim_of(config: Config) -> Identity:
    """What a configuration says that its data directory is."""
    cluster = config.cluster
    # Who joins is told the id. Founders know it; but members change, so it is compared with
    # nothing once the directory has one.
    founds = config.join_address is None
    cluster_id = founding_cluster_id(cluster.name, cluster.peers) if founds else None
    return Identity(cluster.name, config.node.id, config.shard_count, cluster_id)


def open_directory(path: Path, claim: Identity) -> DataDirectory:
    """Lock `path` for the node that `claim` describes; an absent or empty directory becomes its.

    A directory that has an identity keeps its cluster id and date: the claim's are for a new one.
    """
    with os_errors_named(path):
        if not path.exists():
            make_directory(path)
        _check(path, claim)
        lock_fd = lock_directory(path)
        try:
            # Looked at again: until the lock was ours, somebody else may have been at work.
            stored = _check(path, claim)
            identity = stored or replace(claim, created=now())
            if stored is None:
                publish(path / IDENTITY, encode_identity(identity))
            return DataDirectory(path, identity, lock_fd, stored is None)
        except BaseException:
            os.close(lock_fd)
            raise


def _check(path: Path, claim: Identity) -> Identity | None:
    """The stored identity if it agrees with the claim, None for an empty directory."""
    # Listed before it is read: what another start makes its own in between is not a stranger's.
    names = os.listdir(path)
    stored = read_identity(path)
    if stored is None:
        _refuse_strangers(path, names)
    else:
        compare_identity(path, stored, claim)
    return stored


def now() -> str:
    """As a directory keeps it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def read_identity(path: Path) -> Identity | None:
    """What the directory at `path` says of itself, or None if it says nothing. Takes no lock."""
    with os_errors_named(path):
        try:
            with open(path / IDENTITY, "rb") as file:
                data = file.read(_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
    return decode_identity(data, path / IDENTITY)


def encode_identity(identity: Identity) -> bytes:
    """JSON for people, with a checksum, because a flipped bit in a number is still a number."""
    values = asdict(identity)
    if identity.cluster_id is not None:
        values["cluster_id"] = f"{identity.cluster_id:016x}"
    return json.dumps({**values, "checksum": checksum_of(values)}, indent=2).encode() + b"\n"


def decode_identity(data: bytes, path: Path) -> Identity:
    """The inverse; anything else than what was written is `IdentityCorrupt`."""
    try:
        values = json.loads(data)
        checksum = values.pop("checksum")
        if checksum != checksum_of(values):
            raise ValueError("a wrong checksum")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        found = "contents that do not match their checksum" if data else "an empty file"
        raise _corrupt(path, found) from error
    if type(values.get("format")) is int and values["format"] > FORMAT:
        raise WrongDirectory(
            f"{path}: expected format {FORMAT} or older, found {values['format']};"
            " a newer version wrote it: start that version, or use another --data"
        )
    try:
        if values["cluster_id"] is not None:
            values["cluster_id"] = int(values["cluster_id"], 16)
        if values.keys() != {part.name for part in fields(Identity)}:
            raise ValueError("other keys")
        return Identity(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise _corrupt(path, f"other contents ({error})") from error


def publish(path: Path, data: bytes) -> None:
    """Make `path` hold exactly `data`, durably: temporary name, fsync, rename, fsync directory.

    The one place in this room where a file gets its name.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory and each missing parent, durably."""
    missing = [path, *path.parents]
    for each in reversed([folder for folder in missing if not folder.exists()]):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def _refuse_strangers(path: Path, names: Sequence[str]) -> None:
    if RESTORING in names:
        raise WrongDirectory(
            f"{path}: expected a data directory, found a restore that is not complete; run that"
            " `shardnode restore` again, or empty the directory"
        )
    others = sorted({*names} - LEFT_BY_A_FIRST_START)
    if shards := [name for name in others if name.startswith("shard-")]:
        raise WrongDirectory(
            f"{path}: expected {IDENTITY} beside {shards[0]}/, found none; it was lost: restore it"
            " from a backup, or use another --data"
        )
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise WrongDirectory(
            f"{path}: expected a data directory or an empty one, found {others[0]}{more}; it is"
            " not ours: use another --data, or empty it"
        )


def lock_directory(path: Path) -> int:
    """Take the lock and leave our process id in it for whoever comes second."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0)
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise DirectoryInUse(path, _pid(holder)) from None
        raise
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _pid(text: bytes) -> int | None:
    with suppress(ValueError):
        return int(text)
    return None


def compare_identity(path: Path, stored: Identity, claim: Identity) -> None:
    """Names what differs, both values, and what to do."""
    if stored.format != claim.format:
        _refuse(path, "format", stored.format, claim.format, "start the version that wrote it")
    if stored.cluster != claim.cluster:
        remedy = "correct cluster.name, or use another --data"
        _refuse(path, "cluster", stored.cluster, claim.cluster, remedy)
    if stored.node_id != claim.node_id:
        remedy = "correct node.id (--node-id), or use another --data"
        _refuse(path, "node id", stored.node_id, claim.node_id, remedy)
    if stored.shards != claim.shards:
        remedy = (
            f"start with --shards {stored.shards} and change the number with"
            f" `shardnode reshard --to {claim.shards}`, or use another --data"
        )
        _refuse(path, "number of shards", stored.shards, claim.shards, remedy)


def _refuse(path: Path, what: str, stored: object, claimed: object, remedy: str) -> None:
    raise WrongDirectory(
        f"{path}: expected {what} {stored} as the directory says, found {claimed} in the"
        f" configuration; {remedy}"
    )


def checksum_of(values: Mapping[str, Any]) -> str:
    """What stands beside values in a file for people, so that a flipped bit is noticed."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(canonical.encode()):08x}"


def _corrupt(path: Path, found: str) -> IdentityCorrupt:
    return IdentityCorrupt(
        f"{path}: expected the identity of a node, found {found}; it is damaged: restore it from a"
        " backup, do not delete it"
    )


@contextmanager
def os_errors_named(path: Path) -> Iterator[None]:
    """The system's errors as ours, with the path and what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ShardnodeError):
            raise
        where = error.filename or path
        raise DirectoryUnusable(
            f"{where}: expected a directory that can be read and written, found:"
            f" {error.strerror or error}; check its path, owner and free space, or use another"
            " --data"
        ) from error
