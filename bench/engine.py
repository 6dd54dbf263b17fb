"""What the key-value state machine costs: applying, flushing, reading and scanning.

    .venv/bin/python bench/engine.py [--dir D] [--keys N] [--profile]

Entries are as a leader proposes them: 1,000 random keys of 16 bytes with values of 100 bytes in
one PUT_MANY. One core does everything; fsyncs are in the figures. "In memory" has room for all
keys in the memory table, "sustained" flushes whenever the table is full, and once at the end.
Hot reads find keys in a full memory table, cold ones in the files (and the page cache).

Ends with status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from shardnode.raft import Entry
from shardnode.shard.effects import Effects
from shardnode.shard.entries import encode_entry
from shardnode.storage.engine import EngineOptions, LmdbEngine
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import KEY_VALUE_PARTITION
from shardnode.wire.requests import PutMany, Scan

ROOT = Path(__file__).resolve().parents[1]
BATCH_KEYS = 1_000
VALUE_BYTES = 100
TARGETS = {
    "apply in memory": 600_000,
    "apply sustained": 300_000,
    "get_many hot": 1_200_000,
    "get_many cold": 450_000,
}


def batches(count: int, rng: random.Random) -> list[list[bytes]]:
    return [[rng.randbytes(16) for _ in range(BATCH_KEYS)] for _ in range(count // BATCH_KEYS)]


def entry(index: int, keys: Sequence[bytes], rng: random.Random) -> Entry:
    values = [rng.randbytes(VALUE_BYTES)] * len(keys)
    payload = encode_entry(index, Kind.PUT_MANY, PutMany(keys, values).encode())
    return Entry(index, 1, KEY_VALUE_PARTITION, index, payload)


def apply_all(effects: Effects, entries: Sequence[Entry]) -> tuple[float, float]:
    """Seconds for all entries with the flushes they make necessary, and the longest pause."""
    longest = 0.0
    start = turn = perf_counter()
    for each in entries:
        effects.apply([each])
        if effects.flushing:
            effects.flush_slice()
        elif effects.wants_flush:
            effects.begin_flush(b"members")
        longest = max(longest, perf_counter() - turn)
        turn = perf_counter()
    if effects.engine.durable_index or effects.flushing:
        effects.flush(b"members")
    return perf_counter() - start, longest


def measure(directory: Path, count: int) -> dict[str, float]:
    rng = random.Random(1)
    keys = batches(count, rng)
    entries = [entry(number, some, rng) for number, some in enumerate(keys, 1)]
    figures: dict[str, float] = {}

    roomy = Effects(LmdbEngine(str(directory / "roomy"), EngineOptions(table_bytes=1 << 40)))
    seconds, _ = apply_all(roomy, entries)
    figures["apply in memory"] = count / seconds
    roomy.close()

    full = Effects(LmdbEngine(str(directory / "full")))
    while not full.wants_flush and full.applied_index < len(entries):
        full.apply([entries[full.applied_index]])
    figures["get_many hot"] = read_rate(full, keys[: full.applied_index], rng)
    full.close()

    effects = Effects(LmdbEngine(str(directory / "kv")))
    seconds, longest = apply_all(effects, entries)
    figures["apply sustained"] = count / seconds
    figures["longest pause, ms"] = longest * 1000
    effects.flush(b"members")
    figures["get_many cold"] = read_rate(effects, keys, rng)
    figures["scan"] = scan_rate(effects)
    effects.close()
    return figures


def read_rate(effects: Effects, keys: Sequence[Sequence[bytes]], rng: random.Random) -> float:
    flat = [key for some in keys for key in some]
    asked = [rng.sample(flat, BATCH_KEYS) for _ in range(300)]
    start = perf_counter()
    for some in asked:
        assert len(effects.get_many(some)) == BATCH_KEYS
    return len(asked) * BATCH_KEYS / (perf_counter() - start)


def scan_rate(effects: Effects) -> float:
    count, after = 0, None
    start = perf_counter()
    for _ in range(300):
        page = effects.scan(Scan(after=after, limit=BATCH_KEYS))
        count += len(page.keys)
        after = page.next
        if after is None:
            break
    return count / (perf_counter() - start)


def profiled(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    profile = cProfile.Profile()
    figures = profile.runcall(work)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path, default=ROOT, help="on the disk to measure")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.dir))
    try:

        def work() -> dict[str, float]:
            return measure(directory, options.keys)

        figures = profiled(work) if options.profile else work()
    finally:
        shutil.rmtree(directory)
    missed = False
    for name, figure in figures.items():
        target = TARGETS.get(name)
        missed = missed or (target is not None and figure < target)
        note = f"   target {target:>10,}" if target else ""
        print(f"{name:20} {figure:>12,.0f}{note}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
