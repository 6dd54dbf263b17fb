"""Named blobs as LMDB keeps them: a checksum of 8 bytes, seeded with the name, then the blob.

The one rule: a blob is believed only with its checksum. Sessions, marks and membership are in
there, and a bit that flips in one of them must fence the shard instead of resetting anybody.
"""

from __future__ import annotations

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from shardnode.storage.errors import KeysCorrupt

INDEX = "index"
"""The blob with the index of the log that the transaction reflects."""

CHECKSUM_BYTES = 8


def seal(name: str, blob: bytes) -> bytes:
    """What is stored."""
    return _checksum(name, blob) + blob


def unseal(name: str, sealed: bytes | None, path: str) -> bytes:
    """The inverse; nothing is an empty blob. `path`: what to name when it is damaged."""
    if sealed is None:
        return b""
    blob = sealed[CHECKSUM_BYTES:]
    if sealed[:CHECKSUM_BYTES] != _checksum(name, blob):
        raise KeysCorrupt(
            f"the stored blob {name!r} does not match its checksum",
            path=path,
            advice="repair this member from its peers or from a snapshot",
        )
    return blob


def _checksum(name: str, blob: bytes) -> bytes:
    return xxh3_64_digest(blob, xxh3_64_intdigest(name.encode()))
