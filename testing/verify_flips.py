"""`python -m shardnode.testing.verify_flips`: what `verify` finds, and what it must not find.

    python -m shardnode.testing.verify_flips --flips 50 --directories 100 --seed 7

Flips: a real node writes a directory with files of every kind and stops. Then one byte after the
other of each kind is changed, at random among those that mean something (`verify_meaning`), and
`verify` has to name that file.

Crashes: a real node is killed again and again at moments that failpoints choose, and each directory
that is left must be sound; and so must each simulated disk that has lost its power.

The one rule: what is judged is the whole verdict on a whole directory, as an operator gets it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from shardnode.offline.verify import verify
from shardnode.testing import verify_meaning as meaning
from shardnode.testing.verify_crashes import crashed_nodes, crashed_worlds
from shardnode.testing.verify_meaning import Range
from shardnode.testing.verify_source import SHARD, write_directory

KINDS: dict[str, Callable[[Path], list[Range]]] = {
    "node.json": lambda data: meaning.beside(data, "node.json"),
    "members.json": lambda data: meaning.beside(data, "members.json"),
    "superblock": lambda data: meaning.superblocks(data / SHARD),
    "log, sealed segment": lambda data: meaning.sealed_segments(data / SHARD),
    "log, last segment": lambda data: meaning.last_segment(data / SHARD),
    "log, sidecar": lambda data: meaning.sidecars(data / SHARD),
    "LMDB": lambda data: meaning.lmdb(data / SHARD),
    "partition, sealed segment": lambda data: meaning.partitions(data / SHARD, sealed=True),
    "partition, last segment": lambda data: meaning.partitions(data / SHARD, sealed=False),
    "snapshot, manifest": lambda data: meaning.manifests(data / SHARD),
    "snapshot, file": lambda data: meaning.snapshot_files(data / SHARD),
}


@dataclass(slots=True)
class Result:
    """What came of it."""

    flipped: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    sound: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def flip_everywhere(data: Path, flips: int, random: Random, result: Result) -> None:
    """So many flips in each kind of file of a sound directory, one at a time."""
    for kind, ranges_of in KINDS.items():
        ranges = ranges_of(data)
        if not ranges:
            result.problems.append(f"{kind}: the directory has no such file")
            continue
        sizes = [each.end - each.start for each in ranges]
        for number in range(flips):
            # By bytes, and by ranges: else hardly any would hit a header among values.
            weights = sizes if number % 2 else None
            where = random.choices(ranges, weights=weights)[0]
            result.flipped[kind] += 1
            wrong = flip_one(data, where, random)
            result.found[kind] += not wrong
            if wrong:
                result.problems.append(f"{kind}: {wrong}")


def flip_one(data: Path, where: Range, random: Random) -> str:
    """Change one byte of a range, look, and change it back; what is wrong with the verdict."""
    before = _read(where.path, where.start, where.end - where.start)
    while True:
        at, mask = random.randrange(len(before)), random.randrange(1, 256)
        after = bytearray(before)
        after[at] ^= mask
        if where.is_the_same is None or not where.is_the_same(bytes(after)):
            break
    _write(where.path, where.start + at, after[at : at + 1])
    try:
        verdict = verify(data)
    finally:
        _write(where.path, where.start + at, before[at : at + 1])
    name = where.path.relative_to(data).as_posix()
    place = f"{name} at byte {where.start + at}, changed by {mask:#04x}"
    if verdict.is_sound:
        return f"{place}: not found"
    if name not in {finding.path for finding in verdict.damage}:
        return f"{place}: found elsewhere: {verdict.damage[0]}"
    return ""


def _read(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _write(path: Path, at: int, data: bytes | bytearray) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def table(result: Result) -> Iterator[str]:
    """What to print at the end."""
    for kind, count in result.flipped.items():
        yield f"{kind:28}{result.found[kind]:5} of {count} flips found"
    for kind, count in result.sound.items():
        yield f"{kind:28}{count:5} directories sound"
    yield from (f"PROBLEM {problem}" for problem in result.problems[:40])
    yield f"{len(result.problems)} problems"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="verify_flips", description="What verify finds, and what it must not find."
    )
    parser.add_argument("--flips", type=int, default=50, help="in each kind of file")
    parser.add_argument("--directories", type=int, default=100, help="left by a node's crashes")
    parser.add_argument("--worlds", type=int, default=20, help="simulated, with many crashes each")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    options = parser.parse_args(arguments)
    result, random = Result(), Random(options.seed)
    if options.flips:
        with tempfile.TemporaryDirectory(prefix="sn-") as folder:
            data = write_directory(Path(folder) / "data")
            flip_everywhere(data, options.flips, random, result)
    crashes = {
        "killed nodes": partial(crashed_nodes, options.directories),
        "simulated power losses": partial(crashed_worlds, options.worlds),
    }
    for kind, crash in crashes.items():
        for wrong in crash(options.seed):
            result.sound[kind] += not wrong
            result.problems += [f"{kind}: {wrong}"] if wrong else []
    sys.stdout.writelines(f"{line}\n" for line in [f"seed {options.seed}", *table(result)])
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
