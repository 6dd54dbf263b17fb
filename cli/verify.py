"""`shardnode verify`: is everything in a node's directory as it was written?

The one rule: exit code 0 means sound, 7 that something is damaged, and then every line says in
which file, where, and what it means; 3 that there is no such directory. A directory in which a node
runs is refused, because it changes under the eyes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardnode.cli import output
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.options import CONTEXT, json_option, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.offline.verify import Verdict
    from shardnode.offline.verify_shard import ShardSummary


@click.command("verify", context_settings=CONTEXT)
@version_option
@click.argument("directory", metavar="DIR")
@click.option("--replay", is_flag=True, help="Also make the state again from the log.")
@json_option
def command(directory: str, replay: bool) -> int:
    """Look for damage in DIR: the directory of a stopped node, or one shard-N of it.

    Every byte that means something is read, and nothing is changed. What a crash leaves is sound.
    Exit code 0: sound. 7: damaged; each finding names the file, the place and what it means. 3: no
    such directory.

    With --replay the keys are also made again, from a snapshot and the log, and compared: that
    takes as long as applying them did, and room for a copy in the temporary folder.
    """
    from shardnode.offline.places import find_place, held
    from shardnode.offline.verify import bytes_below, verify_place

    place = find_place(Path(directory))
    begun = time.perf_counter()
    with held(place.root), output.progress("reading", bytes_below(place), in_bytes=True) as advance:
        verdict = verify_place(place, advance, replay=replay)
    seconds = time.perf_counter() - begun
    if wants_json():
        output.write_json({**verdict.as_json(), "seconds": round(seconds, 3)})
    else:
        output.write_line("\n".join(_lines(verdict, seconds)).encode())
    return 0 if verdict.is_sound else EXIT_UNHEALTHY


def _lines(verdict: Verdict, seconds: float) -> list[str]:
    count = len(verdict.damage) + verdict.left_out
    found = "sound" if verdict.is_sound else f"DAMAGED, {_several(count, 'finding')}"
    size = f"{output.size_text(verdict.bytes_read)} in {seconds:.1f} s"
    lines = [f"{verdict.path}: {found} ({size})"]
    lines += [f"  {_summary(shard)}" for shard in verdict.shards]
    for finding in verdict.damage:
        place = "" if finding.offset is None else f" at byte {finding.offset}"
        lines += [f"damaged: {finding.path}{place}: {finding.what}", f"    {finding.means}"]
    if verdict.left_out:
        lines.append(f"    and {verdict.left_out} more in the same files")
    return lines + [f"note: {finding}" for finding in verdict.notes]


def _summary(shard: ShardSummary) -> str:
    parts = [
        f"term {shard.term}",
        f"agreed through {shard.commit}",
        f"log {shard.log_first} to {shard.log_last}" if shard.log_last else "no log",
        f"{_several(shard.keys, 'key')} as of {shard.applied}",
    ]
    parts += [_several(shard.partitions, "partition")] * bool(shard.partitions)
    parts += [_several(shard.snapshots, "snapshot")] * bool(shard.snapshots)
    parts += ["recovering"] * shard.recovering
    return f"{shard.name}: {', '.join(parts)}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
