"""What a backup consists of, as values, and their one spelling as text.

Text is JSON, then one line with the checksum of that JSON (xxh3_64), as in a snapshot's manifest.

The one rule: every name is made here, from content where there is content, so that equal names mean
equal bytes and an interrupted backup finds again what it had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from xxhash import xxh3_64_hexdigest

from shardnode.storage.errors import SnapshotCorrupt
from shardnode.storage.manifest import SnapshotFile, SnapshotMeta
from shardnode.storage.records import ORIGIN, Anchor
from shardnode.wire.errors import Corrupt, InvalidRequest

FORMAT = 1
"""Raised when an older program could no longer read what a newer one writes."""

MARK = "shardnode-backup.json"
BACKUPS = "backups/"
_SUFFIX = ".json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose backups a destination holds."""

    cluster: str
    cluster_id: int
    shards: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one shard's log."""

    first: int
    last: int
    term_before: int
    chain_before: int
    """Of the record before the first one, which the chunk continues."""
    chain: int
    """Of the last record."""
    size: int
    stamp_first_ms: int
    stamp_last_ms: int
    """Of the first and the last record that has a stamp; 0: none has."""

    @property
    def before(self) -> Anchor:
        """The position that the chunk continues."""
        return Anchor(self.first - 1, self.term_before, self.chain_before)


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot."""

    index: int
    term: int
    chain: int
    snapshot: int
    size: int
    stamp_ms: int
    """Nothing in it was stamped later."""

    @property
    def position(self) -> Anchor:
        return Anchor(self.index, self.term, self.chain)


@dataclass(frozen=True, slots=True)
class ShardCut:
    """One shard of a backup: the state at `index`."""

    shard: int
    index: int
    term: int
    chain: int
    through_ms: int
    """Everything stamped by then is in it."""
    base: Base | None
    """None: the log begins at its first record."""
    log: tuple[Chunk, ...]

    @property
    def position(self) -> Anchor:
        return Anchor(self.index, self.term, self.chain)

    @property
    def start(self) -> Anchor:
        """Where its log begins to be needed."""
        return self.base.position if self.base is not None else ORIGIN


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup."""

    id: str
    begun_ms: int
    ended_ms: int
    cluster: str
    cluster_id: int
    node_id: int
    """The node that was asked: the default of a restore."""
    shards: int
    epoch: int
    table: str
    """The placement table, as it travels, in hex."""
    version: str
    """Of the program."""
    cuts: tuple[ShardCut, ...]

    @property
    def owner(self) -> Owner:
        return Owner(self.cluster, self.cluster_id, self.shards)


# -- names ------------------------------------------------------------------------------------


def manifest_key(backup: str) -> str:
    return f"{BACKUPS}{backup}{_SUFFIX}"


def backup_of(key: str) -> str | None:
    """The id of the backup whose manifest has this key; None for any other key."""
    name = key.removeprefix(BACKUPS)
    return name.removesuffix(_SUFFIX) if name != key and name.endswith(_SUFFIX) else None


def snapshot_key(shard: int, index: int, snapshot: int) -> str:
    return f"shard-{shard}/snapshots/{index:020}-{snapshot:016x}{_SUFFIX}"


def file_key(shard: int, file: SnapshotFile) -> str:
    return f"shard-{shard}/files/{file.name}/{file.size}-{file.checksum:016x}"


def chunk_key(shard: int, chunk: Chunk) -> str:
    return f"shard-{shard}/log/{chunk.first:020}-{chunk.last:020}-{chunk.chain:016x}"


# -- texts ------------------------------------------------------------------------------------


def encode_owner(owner: Owner) -> bytes:
    return _seal({"format": FORMAT, **_plain(owner)})


def decode_owner(data: bytes, key: str) -> Owner:
    return _open(data, key, lambda values: _made(Owner, values))


def encode_manifest(manifest: Manifest) -> bytes:
    return _seal({"format": FORMAT, **_plain(manifest)})


def decode_manifest(data: bytes, key: str) -> Manifest:
    """The manifest in `data`; `Corrupt` when it is none, `InvalidRequest` when it is too new."""
    return _open(data, key, _read_manifest)


def decode_snapshot(data: bytes, key: str, base: Base) -> SnapshotMeta:
    """The description of a base; `Corrupt` when it is not that one."""
    try:
        meta = SnapshotMeta.decode(data, key)
    except SnapshotCorrupt as error:
        raise damaged(key, error.detail) from error
    if (meta.id, meta.index, meta.term, meta.chain) != (base.snapshot, *base.position):
        raise damaged(key, f"it describes another snapshot, at index {meta.index}")
    return meta


def damaged(key: str, what: str) -> Corrupt:
    """Something in a backup is not what it was."""
    return Corrupt(f"{key}: {what}; the backup is damaged here: use another one")


def _seal(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, indent=1).encode()
    return text + b"\n" + xxh3_64_hexdigest(text).encode() + b"\n"


def _open(data: bytes, key: str, read: Callable[[dict[str, Any]], T]) -> T:
    text, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    if xxh3_64_hexdigest(text).encode() != checksum:
        raise damaged(key, "it does not match its checksum")
    try:
        values = json.loads(text)
        found = values.pop("format")
        if found > FORMAT:
            raise InvalidRequest(
                f"{key}: expected format {FORMAT} or older, found {found}; a newer version of"
                " shardnode wrote it: use that one"
            )
        return read(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(key, f"it does not make sense ({error})") from error


_HEX = frozenset(("cluster_id", "chain", "chain_before", "snapshot"))
"""Whole numbers of 64 bits are text: readers of JSON round them."""


def _plain(value: Any) -> dict[str, Any]:
    return _spelled(asdict(value))


def _spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if name in _HEX:
            plain[name] = f"{value:016x}"
        elif isinstance(value, dict):
            plain[name] = _spelled(value)
        elif isinstance(value, tuple):
            plain[name] = [_spelled(each) for each in value]
        else:
            plain[name] = value
    return plain


def _made(cls: type[T], values: Mapping[str, Any]) -> T:
    kinds = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
    if values.keys() != kinds.keys():
        raise ValueError(f"{cls.__name__} with {sorted(values.keys() ^ kinds.keys())}")
    read = {name: int(value, 16) if name in _HEX else value for name, value in values.items()}
    for name, value in read.items():
        if kinds[name] in ("int", "str") and type(value).__name__ != kinds[name]:
            raise TypeError(f"{name} is {type(value).__name__}")
    return cls(**read)


def _read_manifest(values: dict[str, Any]) -> Manifest:
    cuts = tuple(_read_cut(cut) for cut in values.pop("cuts"))
    manifest = _made(Manifest, {**values, "cuts": cuts})
    if [cut.shard for cut in cuts] != list(range(manifest.shards)):
        raise ValueError("not one cut for each shard")
    return manifest


def _read_cut(values: dict[str, Any]) -> ShardCut:
    base, log = values.pop("base"), values.pop("log")
    chunks = tuple(_made(Chunk, chunk) for chunk in log)
    return _made(
        ShardCut, {**values, "base": _made(Base, base) if base is not None else None, "log": chunks}
    )
