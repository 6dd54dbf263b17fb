"""`shardnode restore SRC --data DIR`: a data directory that a node can start from.

The one rule: DIR is a node's when this ends with 0, and nobody's before.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.moments import Moment
from shardnode.cli.options import CONTEXT, json_option, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.backup.restore import Restored


class ShardIndexes(click.ParamType[dict[int, int]]):
    """SHARD:INDEX, or several with commas between them."""

    name = "SHARD:INDEX"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[int, int]:
        if isinstance(value, dict):
            return value
        found = {}
        for pair in str(value).split(","):
            shard, _, index = pair.partition(":")
            if not (shard.isascii() and shard.isdigit() and index.isascii() and index.isdigit()):
                self.fail(f"expected SHARD:INDEX, such as 0:1200, found {pair}", param, ctx)
            found[int(shard)] = int(index)
        return found


@click.command("restore", context_settings=CONTEXT)
@version_option
@click.argument("src", metavar="SRC")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="The directory to make; it must be absent or empty.",
)
@click.option("--cluster", default="", metavar="NAME", help="The name of the new cluster.")
@click.option("--node-id", type=click.IntRange(min=1), help="The id of the node that starts there.")
@click.option("--shards", type=click.IntRange(min=1), help="As many as in the backup.")
@click.option("--backup", default="", metavar="ID", help="Which one; else the newest.")
@click.option(
    "--to-time", type=Moment(), help="Leave out what happened later, by the stamps of the log."
)
@click.option(
    "--to-index",
    type=ShardIndexes(),
    multiple=True,
    help="Leave out what stands behind this index of a shard's log; may be repeated.",
)
@json_option
def command(
    src: str,
    data: Path,
    cluster: str,
    node_id: int | None,
    shards: int | None,
    backup: str,
    to_time: datetime | None,
    to_index: tuple[dict[int, int], ...],
) -> None:
    """Make the data directory DIR from a backup in SRC, for one node.

    It begins a cluster of its own: the members of the old one are strangers to it, and other nodes
    join it with `start --join`.
    """
    from shardnode.backup.restore import RestoreOptions, restore_backup
    from shardnode.backup.store import open_store
    from shardnode.backup.take import Progress

    options = RestoreOptions(
        cluster=cluster,
        node_id=node_id or 0,
        backup=backup,
        shards=shards or 0,
        to_index={shard: index for each in to_index for shard, index in each.items()},
        to_ms=int(to_time.timestamp() * 1_000) if to_time is not None else None,
    )
    with output.transfer("restore") as shown:
        progress = Progress(shown.say, shown.advance)
        restored = restore_backup(open_store(src), data, options, progress)
    _tell(restored, data)


def _tell(restored: Restored, data: Path) -> None:
    identity = restored.identity
    if wants_json():
        output.write_json(
            {
                "data": str(data),
                "backup": restored.backup,
                "cluster": identity.cluster,
                "cluster_id": f"{identity.cluster_id:016x}",
                "node_id": identity.node_id,
                "shards": [{"id": each.shard, "index": each.index} for each in restored.points],
            }
        )
        return
    for point in restored.points:
        output.write_line(f"shard {point.shard} as of index {point.index}".encode())
    name = f" (cluster.name = {identity.cluster!r})" if identity.cluster != "main" else ""
    node = f" --node-id {identity.node_id}" if identity.node_id != 1 else ""
    many = f" --shards {identity.shards}" if identity.shards > 1 else ""
    output.note(f"{data} is ready: shardnode start --data {data}{many}{node}{name}")
