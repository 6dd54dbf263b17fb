"""A snapshot and what the log behind it does to its keys are the keys of the shard."""

from __future__ import annotations

import random

import pytest

from shardnode.shard.effects import Effects
from shardnode.shard.overlay import PARTS, changes_behind
from shardnode.storage.engine import MemoryEngine
from shardnode.storage.engine_store import Item
from shardnode.storage.keyfile import unpack_keys
from shardnode.storage.keyfile_reader import KeyFile
from shardnode.storage.records import Record
from tests.engine.kit import SMALL, Log, parts_of
from tests.engine.test_replicas import random_step


def keys_of(parts: dict[str, bytes]) -> dict[bytes, bytes]:
    items: list[Item] = [item for batch in unpack_keys([parts["keys"]]) for item in batch]
    return dict(items)


@pytest.mark.parametrize("seed", range(8))
def test_base_and_changes_are_what_the_machine_holds(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(Effects(MemoryEngine(SMALL)))
    for _ in range(rng.randint(0, 300)):
        random_step(log, rng)
    index, parts = len(log.entries), parts_of(log.machine)
    for _ in range(rng.randint(100, 300)):
        random_step(log, rng)
    data = parts["keys"]
    base = KeyFile(lambda offset, size: data[offset : offset + size], len(data))
    behind = [Record._make(entry) for entry in log.entries[index:]]
    assert set(PARTS) <= set(parts)
    changes = changes_behind(base, index, parts.__getitem__, behind)
    made = {key: kept for key, kept in {**keys_of(parts), **changes}.items() if kept}
    assert made == keys_of(parts_of(log.machine))
    assert changes, "the log changed something"
