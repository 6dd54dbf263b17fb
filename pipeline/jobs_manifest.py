"""What an export says of itself: the cut, the files, and how to tell that all of it is there. Pure.

    _manifest.json
      what        keys, or a topic and its number of partitions
      cut         keys: the log index of each shard; a topic: the offsets of each partition
      files       path, size, rows, and a digest of the rows, whatever their order
      columns     as Spark reads them

One rule: it is written last. A directory without one is no export, however many files it has; and
one whose files are not those of its manifest is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from shardnode.wire.errors import Corrupt, InvalidRequest

NAME = "_manifest.json"
"""Spark and others take no file for rows whose name begins so."""

KIND = "shardnode-export"
FORMAT = 1


class Contents(NamedTuple):
    """What the rows of a file amount to."""

    rows: int
    bytes: int
    """Of keys and values."""
    digest: int
    """Of all columns of all rows, 64 bits with a sign."""


class FileEntry(NamedTuple):
    """A file of an export."""

    path: str
    """As `shard=0/part-….parquet`."""
    size: int
    contents: Contents


@dataclass(frozen=True, slots=True)
class Manifest:
    """An export."""

    topic: str | None
    """None: keys."""
    partitions: int
    """Of the topic; 0 for keys."""
    cluster: str
    cluster_id: int | None
    shards: int
    epoch: int
    source: str
    """The node or the directory that was read, for people."""
    began: str
    ended: str
    columns: str
    indexes: Mapping[int, int] = field(default_factory=dict)
    spans: Sequence[tuple[int, int, int]] = ()
    """(partition, start, end) of a topic."""
    prefix: bytes = b""
    start: bytes | None = None
    end: bytes | None = None
    files: Sequence[FileEntry] = ()

    @property
    def rows(self) -> int:
        return sum(each.contents.rows for each in self.files)

    @property
    def bytes(self) -> int:
        return sum(each.contents.bytes for each in self.files)

    def by_shard(self) -> dict[int, tuple[int, int]]:
        """Shard → (rows, bytes); a shard without rows has none."""
        found = dict.fromkeys(range(self.shards), (0, 0))
        for each in self.files:
            rows, size = found[shard_of_path(each.path)]
            contents = each.contents
            found[shard_of_path(each.path)] = (rows + contents.rows, size + contents.bytes)
        return found

    @property
    def identity(self) -> str:
        """Tells this export from every other."""
        return xxh3_64_hexdigest(encode(self))


def shard_of_path(path: str) -> int:
    """That of a file's directory."""
    return int(path.split("/", 1)[0].removeprefix("shard="))


def encode(manifest: Manifest) -> bytes:
    """As JSON that people can read, with a checksum of itself."""
    values = asdict(manifest)
    hex64 = manifest.cluster_id
    values |= {
        "cluster_id": None if hex64 is None else f"{hex64:016x}",
        "indexes": {str(shard): index for shard, index in sorted(manifest.indexes.items())},
        "spans": [list(span) for span in manifest.spans],
        "files": [
            {"path": each.path, "size": each.size, **_plain(each.contents)}
            for each in manifest.files
        ],
        "shard_rows": {str(shard): rows for shard, (rows, _) in manifest.by_shard().items()},
        "shard_bytes": {str(shard): size for shard, (_, size) in manifest.by_shard().items()},
        **{name: _hex(getattr(manifest, name)) for name in ("prefix", "start", "end")},
    }
    whole = {"kind": KIND, "format": FORMAT, **values}
    return json.dumps({**whole, "checksum": _checksum(whole)}, indent=1).encode() + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """The inverse; raises `Corrupt`, or `InvalidRequest` for what is no export or too new."""
    try:
        values = json.loads(data)
        kind, found = values["kind"], values["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{where}: expected the manifest of an export, found {error}") from error
    if kind != KIND or not isinstance(found, int) or found > FORMAT:
        raise InvalidRequest(
            f"{where}: expected {KIND} of format {FORMAT}, found {kind!r} of format {found!r}; a"
            " newer version of shardnode may have written it"
        )
    checksum = values.pop("checksum", None)
    if checksum != _checksum(values):
        raise Corrupt(f"{where}: it does not match its checksum; export again")
    for name in ("kind", "format", "shard_rows", "shard_bytes"):
        del values[name]
    try:
        return _manifest(values)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{where}: it does not make sense ({error}); export again") from error


def _manifest(values: dict[str, Any]) -> Manifest:
    cluster_id = values["cluster_id"]
    values |= {
        "cluster_id": None if cluster_id is None else int(cluster_id, 16),
        "indexes": {int(shard): index for shard, index in values["indexes"].items()},
        "spans": tuple((part, start, end) for part, start, end in values["spans"]),
        "files": tuple(_file(each) for each in values["files"]),
        **{name: _bytes(values[name]) for name in ("prefix", "start", "end")},
    }
    return Manifest(**values)


def _file(each: Mapping[str, Any]) -> FileEntry:
    digest = int.from_bytes(bytes.fromhex(each["digest"]), "big", signed=True)
    contents = Contents(each["rows"], each["bytes"], digest)
    return FileEntry(each["path"], each["size"], contents)


def _plain(contents: Contents) -> dict[str, Any]:
    """Whole numbers of 64 bits are text: readers of JSON round them."""
    digest = contents.digest.to_bytes(8, "big", signed=True).hex()
    return {**contents._asdict(), "digest": digest}


def problems_of(manifest: Manifest, sizes: Mapping[str, int]) -> list[str]:
    """What is wrong with files of these sizes, in words; nothing if all are there."""
    expected = {each.path: each for each in manifest.files}
    found = [f"{path} is missing" for path in sorted(expected.keys() - sizes.keys())]
    found += [
        f"{path} does not belong to the export" for path in sorted(sizes.keys() - expected.keys())
    ]
    for path in sorted(expected.keys() & sizes.keys()):
        if sizes[path] != expected[path].size:
            found.append(f"{path}: expected {expected[path].size} bytes, found {sizes[path]}")
    return found


def differences_of(manifest: Manifest, contents: Mapping[str, Contents]) -> list[str]:
    """The same of what was read in them. A file without rows may be left out."""
    found = []
    for path, _, expected in manifest.files:
        read = contents.get(path, Contents(0, 0, 0))
        if read != expected:
            what = f"{read.rows} rows" if read.rows != expected.rows else "other rows"
            found.append(f"{path}: expected its {expected.rows} rows, found {what}")
    return found


def _checksum(values: Mapping[str, Any]) -> str:
    return xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)
