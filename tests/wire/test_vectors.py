"""The published vectors hold: the code gives them, and they alone are enough to check a client."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from shardnode.wire import errors, placement, replies, requests
from shardnode.wire.batches import unpack_batch
from shardnode.wire.cursors import ScanCursor, WatchCursor
from shardnode.wire.frames import parse_reply, parse_request
from shardnode.wire.kinds import Kind
from shardnode.wire.streams import MessageBatch
from tests.wire.make_vectors import FOLDER, VECTORS, envelope, plain, rendered


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VECTORS)
def test_code_still_gives_the_published_vectors(name: str) -> None:
    published = (FOLDER / name).read_text(encoding="utf-8")
    assert rendered(name) == published, "see make_vectors.py; a released vector never changes"


def test_published_keys_are_placed_as_their_vectors_say() -> None:
    """With nothing of ours: the rule for tags and the table as a reader of the document knows."""
    vectors = load("placement.json")
    assert {len(bytes.fromhex(vector["key"])) for vector in vectors["keys"]} >= set(range(70))
    for vector in vectors["keys"]:
        key = bytes.fromhex(vector["key"])
        tag = re.match(rb"[^{]*\{([^}]+)\}", key)
        assert bytes.fromhex(vector["hashed"]) == (tag[1] if tag else key)
        assert vector["slot"] == int(vector["hash"], 16) >> 50
        for shards, shard in vector["shard_of"].items():
            assert shard == vector["slot"] * int(shards) >> 14


def test_published_tables_and_namespaces_decode() -> None:
    vectors = load("placement.json")
    for vector in vectors["tables"]:
        decoded = placement.PlacementTable.decode(bytes.fromhex(vector["encoded"]))
        assert decoded == placement.initial_table(vector["shards"], vector["epoch"])
    for vector in vectors["namespaces"]:
        namespace = placement.namespace_from_bytes(bytes.fromhex(vector["namespace"]))
        numbers = (vector["stream"], vector["topic"], vector["partition"])
        assert placement.split_namespace(namespace) == numbers


def test_published_message_keys_have_their_partition() -> None:
    vectors = load("placement.json")
    hashes = {vector["key"]: int(vector["hash"], 16) for vector in vectors["keys"]}
    for vector in vectors["message_keys"]:
        key = bytes.fromhex(vector["key"])
        assert placement.partition_of_key(key, vector["partitions"]) == vector["partition"]
        if key.hex() in hashes:
            assert vector["partition"] == (hashes[key.hex()] >> 32) * vector["partitions"] >> 32


def test_published_frames_parse_as_their_vectors_say() -> None:
    vectors = load("frames.json")
    parsers: list[tuple[str, Any]] = [("requests", parse_request), ("replies", parse_reply)]
    for group, parser in parsers:
        for vector in vectors[group]:
            message = [bytes.fromhex(frame) for frame in vector["frames"]]
            assert envelope(parser(message)) == vector["parsed"], vector["name"]


def test_published_malformed_frames_are_refused_as_their_vectors_say() -> None:
    for vector in load("frames.json")["malformed"]:
        with pytest.raises(errors.InvalidRequest) as raised:
            parse_request([bytes.fromhex(frame) for frame in vector["frames"]])
        assert raised.value.refinement == vector["refinement"], vector["name"]


def test_published_bodies_decode_to_their_fields() -> None:
    for vector in load("bodies.json")["bodies"]:
        kind = Kind[vector["kind"]]
        request = requests.decode_request(kind, bytes.fromhex(vector["request"]["body"]))
        answer = replies.REPLIES[kind].decode(bytes.fromhex(vector["reply"]["body"]))
        assert plain(request) == vector["request"]["fields"]
        assert plain(answer) == vector["reply"]["fields"]


def test_published_batch_of_messages_decodes_to_its_fields() -> None:
    vector = load("bodies.json")["message_batch"]
    batch = MessageBatch.decode(bytes.fromhex(vector["body"]))
    assert plain(batch) == vector["fields"]
    frame = bytes.fromhex(vector["zstd_frame"])
    assert frame.startswith(bytes.fromhex(vector["zstd_magic"]))
    assert unpack_batch(frame).hex() == vector["body"]


def test_published_errors_and_cursors_decode() -> None:
    vectors = load("bodies.json")
    for vector in vectors["errors"]:
        error = replies.decode_error(bytes.fromhex(vector["body"]))
        found = (error.number, error.code, error.retryable)
        assert found == (vector["number"], vector["code"], vector["retryable"])
    classes: dict[str, type[ScanCursor] | type[WatchCursor]] = {
        "scan": ScanCursor,
        "watch": WatchCursor,
    }
    for vector in vectors["cursors"]:
        assert plain(classes[vector["name"]].from_text(vector["text"])) == vector["fields"]
