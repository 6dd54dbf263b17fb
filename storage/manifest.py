"""Owns the description of a snapshot: what it covers, which files it has, their checksums.

A manifest is readable text: JSON, then one line with the checksum of that JSON, which is also
the snapshot's identity. The same bytes go to a peer that is offered the snapshot.

The one rule: there is one spelling. What decodes encodes to the same bytes again, so equal
identity means equal content. It comes from disks and from peers, so nothing in it is believed:
a name cannot leave the directory, a length cannot ask for memory.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Self

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from shardnode.storage.errors import SnapshotCorrupt

MANIFEST_NAME = "manifest"
PROGRESS_NAME = "progress"
MANIFEST_BYTES_MAX = 8 << 20

_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_U64_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of a snapshot; `checksum` is the xxh3_64 of its content."""

    name: str
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """A snapshot of everything up to and including `index`.

    `term` and `chain` are those of the record at `index`: the log continues there (C4).
    """

    index: int
    term: int
    chain: int
    membership: bytes
    files: tuple[SnapshotFile, ...]

    @property
    def id(self) -> int:
        """The same on every machine, for exactly this content."""
        return xxh3_64_intdigest(self._text())

    @property
    def size(self) -> int:
        """Bytes of all files together; a transfer sends them as one stream, in order."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        text = self._text()
        return text + b"\n" + xxh3_64_hexdigest(text).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str = "") -> Self:
        """The manifest in `data`; `SnapshotCorrupt` when it is none."""
        try:
            return cls._decode(data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise SnapshotCorrupt(
                f"not a sound manifest ({error})",
                path=path,
                advice="the snapshot cannot be used; take or fetch another",
            ) from None

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        if len(data) > MANIFEST_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes, at most {MANIFEST_BYTES_MAX}")
        text, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
        if xxh3_64_hexdigest(text).encode() != checksum:
            raise ValueError("it does not match its checksum")
        fields = json.loads(text)
        if fields["format"] != _FORMAT:
            raise ValueError(f"format {fields['format']!r}, this program reads {_FORMAT}")
        files = tuple(
            SnapshotFile(_name(file["name"]), _u64(file["size"]), _hex(file["checksum"]))
            for file in fields["files"]
        )
        if len({file.name for file in files}) != len(files):
            raise ValueError("two files of one name")
        meta = cls(
            _u64(fields["index"]),
            _u64(fields["term"]),
            _hex(fields["chain"]),
            bytes.fromhex(fields["membership"]),
            files,
        )
        if meta.encode() != data:
            raise ValueError("another spelling than ours")
        return meta

    def _text(self) -> bytes:
        fields = {
            "format": _FORMAT,
            "index": self.index,
            "term": self.term,
            "chain": f"{self.chain:016x}",
            "membership": self.membership.hex(),
            "files": [
                {"name": file.name, "size": file.size, "checksum": f"{file.checksum:016x}"}
                for file in self.files
            ],
        }
        return json.dumps(fields, indent=1).encode()


def check_name(name: str) -> str:
    """A name that a file of a snapshot may have; `ValueError` for all others."""
    if not _NAME.fullmatch(name) or name in (MANIFEST_NAME, PROGRESS_NAME) or ".tmp" in name:
        raise ValueError(f"{name[:80]!r} may not be the name of a file in a snapshot")
    return name


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a name is text, not {type(value).__name__}")
    return check_name(value)


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _U64_MAX:
        raise ValueError("a number outside 64 bits")
    return value


def _hex(value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16}", value):
        raise ValueError("a checksum has 16 hexadecimal digits")
    return int(value, 16)
