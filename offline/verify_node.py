"""The files beside the shards: whose the directory is, and what the node remembers.

The one rule: a file counts as sound when it is, byte for byte, what its content would be written
as. `config.toml` is for people, who may have changed it, and nothing reads it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from shardnode.node.identity import (
    CONFIG,
    IDENTITY,
    Identity,
    decode_identity,
    encode_identity,
)
from shardnode.node.members import FILE as MEMBERS
from shardnode.node.members import decode_members
from shardnode.offline.places import Place
from shardnode.storage.audit import Book
from shardnode.wire.errors import Corrupt, InvalidRequest

_WHOSE = (
    "whose the data is cannot be known, so the node does not start: write the file again as it was,"
    " or restore it from a backup; do not delete it"
)


def verify_node(place: Place, book: Book) -> Identity | None:
    """Look at them; what is wrong goes into the book."""
    identity = _verify_identity(place, book)
    _verify_members(place.root / MEMBERS, book)
    _verify_config(place.root / CONFIG, book)
    return identity


def _verify_identity(place: Place, book: Book) -> Identity | None:
    path = place.root / IDENTITY
    if not path.exists():
        book.damaged(IDENTITY, f"missing beside {place.shards[0]}/", _WHOSE)
        return None
    data = path.read_bytes()
    book.read(len(data))
    try:
        identity = decode_identity(data, path)
    except Corrupt:
        book.damaged(IDENTITY, "its contents do not match their checksum", _WHOSE, 0)
        return None
    except InvalidRequest as error:
        book.damaged(IDENTITY, error.message, "this version cannot read the directory")
        return None
    if encode_identity(identity) != data:
        pairs = enumerate(zip(encode_identity(identity), data, strict=False))
        at = next((at for at, pair in pairs if pair[0] != pair[1]), len(data))
        means = "the values are right, but the disk did not keep what was written"
        book.damaged(IDENTITY, "not spelt as it was written", means, at)
    numbers = {place.shard_number(name) for name in place.shards}
    if strangers := sorted(numbers - {*range(identity.shards)}):
        means = "it belongs to no shard of this node: it was put there by somebody"
        book.damaged(f"shard-{strangers[0]}", f"a directory of {identity.shards} shards", means)
    return identity


def _verify_members(path: Path, book: Book) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    book.read(len(data))
    try:
        decode_members(data)
    except ValueError as error:
        means = (
            "the node takes its peers from the configuration instead, and writes this again when it"
            " hears of a change; remove the file"
        )
        book.damaged(path.name, str(error), means, 0)


def _verify_config(path: Path, book: Book) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    book.read(len(data))
    try:
        tomllib.loads(data.decode())
    except ValueError as error:
        means = "nobody reads it but people, and the next start writes it again"
        book.note(path.name, f"not TOML ({error})", means)
