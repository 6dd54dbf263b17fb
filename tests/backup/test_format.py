"""Manifests: what is written is read back, and nothing else passes for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.backup.format import (
    Base,
    Chunk,
    Manifest,
    Owner,
    ShardCut,
    backup_of,
    chunk_key,
    decode_manifest,
    decode_owner,
    encode_manifest,
    encode_owner,
    manifest_key,
)
from shardnode.wire.errors import Corrupt, InvalidRequest

BIG = (1 << 64) - 1
CHUNK = Chunk(11, 20, 3, BIG, BIG - 1, 1_000, 5, 6)
CUT = ShardCut(0, 20, 3, BIG - 1, 7, Base(10, 3, BIG, BIG - 2, 4_000, 4), (CHUNK,))
MANIFEST = Manifest(
    id="20300101T000000Z-ab12",
    begun_ms=1,
    ended_ms=2,
    cluster="main",
    cluster_id=BIG,
    node_id=1,
    shards=2,
    epoch=3,
    table="94",
    version="0.1.0",
    cuts=(CUT, replace(CUT, shard=1, base=None, log=())),
)


def test_what_is_written_is_read_back() -> None:
    key = manifest_key(MANIFEST.id)
    assert decode_manifest(encode_manifest(MANIFEST), key) == MANIFEST
    owner = Owner("main", BIG, 4)
    assert decode_owner(encode_owner(owner), "mark") == owner
    assert backup_of(key) == MANIFEST.id
    assert [backup_of(other) for other in ("x", "backups/x", "shard-0/x.json")] == [None] * 3
    assert chunk_key(3, CHUNK) == f"shard-3/log/{11:020}-{20:020}-fffffffffffffffe"


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data = encode_manifest(replace(MANIFEST, cuts=(), shards=0))
    assert decode_manifest(data, "k").shards == 0
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        with pytest.raises(Corrupt, match="k: "):
            decode_manifest(flipped, "k")
        if place < len(data) - 1:
            with pytest.raises(Corrupt):
                decode_manifest(data[:place], "k")


def sealed(text: bytes) -> bytes:
    from xxhash import xxh3_64_hexdigest

    return text + b"\n" + xxh3_64_hexdigest(text).encode() + b"\n"


def test_what_makes_no_sense_is_damage_whatever_its_checksum() -> None:
    text = encode_manifest(MANIFEST).rpartition(b"\n")[0].rpartition(b"\n")[0]
    changes = [
        (b'"shards": 2', b'"shards": 3'),
        (b'"node_id": 1', b'"node_id": "1"'),
        (b'"node_id": 1', b'"node": 1'),
        (b'"size": 1000', b'"size": null'),
        (b'"format": 1', b'"former": 1'),
        (b'"chain": "', b'"chain": "x'),
    ]
    for old, new in changes:
        assert old in text
        with pytest.raises(Corrupt, match="does not make sense"):
            decode_manifest(sealed(text.replace(old, new, 1)), "k")
    for nonsense in (b"", b"[]", b"3", b"{", b"[" * 100_000):
        with pytest.raises(Corrupt):
            decode_manifest(sealed(nonsense), "k")


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    text = encode_manifest(MANIFEST).rpartition(b"\n")[0].rpartition(b"\n")[0]
    with pytest.raises(InvalidRequest, match="a newer version"):
        decode_manifest(sealed(text.replace(b'"format": 1', b'"format": 2')), "k")
