"""`shardnode backup DEST`, and `list` and `verify` of what is there.

The one rule: `backup` ends with 0 when there is a complete backup in DEST, and then prints its id;
whatever ended it before, the same line goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.moments import Rate
from shardnode.cli.options import (
    CONTEXT,
    client_options,
    connect_address,
    json_option,
    version_option,
    wants_json,
)

if TYPE_CHECKING:
    from shardnode.backup.check import Checked
    from shardnode.backup.format import Manifest
    from shardnode.backup.take import Taken

NICE = 10
"""Often it runs beside the node that it reads from, which has more urgent things to do."""

INTERRUPTED = "the same command goes on where this one stopped"


class WithVerbs(click.Command):
    """A command whose first word may also be one of a few verbs, which are commands themselves."""

    verbs: Mapping[str, click.Command] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        place = self._first_word(args)
        verb = self.verbs.get(args[place]) if place is not None else None
        if verb is None or place is None:
            return super().make_context(info_name, args, parent, **extra)
        rest = args[:place] + args[place + 1 :]
        return verb.make_context(f"{info_name} {args[place]}", rest, parent, **extra)

    def _first_word(self, args: list[str]) -> int | None:
        """Where the first argument stands among options and their values."""
        takes_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        place = 0
        while place < len(args):
            if not args[place].startswith("-"):
                return place
            if args[place] == "--":
                return None
            place += 2 if args[place] in takes_value else 1
        return None


@click.command("backup", cls=WithVerbs, context_settings=CONTEXT)
@version_option
@click.argument("dest", metavar="DEST")
@click.option(
    "--rate",
    type=Rate(),
    default="30MB",
    show_default=True,
    help="Copy at most so much a second.",
)
@click.option("--full", is_flag=True, help="Begin anew with a snapshot of every shard.")
@client_options
def command(dest: str, rate: int, full: bool) -> None:
    """Back up a running cluster to DEST, a folder or the URL of an object store.

    What DEST has already is not copied again; a backup that was interrupted goes on. There are also
    `backup list DEST` and `backup verify DEST` (a folder of such a name is ./list).
    """
    from shardnode.backup.store import open_store
    from shardnode.backup.take import Progress, TakeOptions, take_backup
    from shardnode.client.cuts import CutReader

    os.nice(NICE)
    store = open_store(dest)
    reader = CutReader(connect_address())
    try:
        with output.transfer("backup") as shown:
            progress = Progress(shown.say, shown.advance)
            taken = take_backup(store, reader, TakeOptions(rate, full), progress)
    except Exception:
        output.note(INTERRUPTED)
        reader.finish()
        raise
    reader.finish()
    _tell(taken, store.place)


def _tell(taken: Taken, place: str) -> None:
    if wants_json():
        moved = taken.moved
        costs = {"fetched_bytes": moved.fetched, "reused_bytes": moved.reused}
        seconds = {"seconds": round(taken.seconds, 3), "lost_cuts": moved.lost}
        output.write_json({**described(taken.manifest), "destination": place, **costs, **seconds})
        return
    output.write_line(taken.manifest.id.encode())
    output.note(
        f"{taken.manifest.shards} shards of cluster {taken.manifest.cluster} are in {place}:"
        f" {output.size(taken.moved.fetched)} copied, {output.size(taken.moved.reused)} were there,"
        f" {taken.seconds:.1f} s"
    )


def described(manifest: Manifest) -> dict[str, Any]:
    """A backup, for `--json`."""
    from shardnode.backup.points import shown

    return {
        "backup": manifest.id,
        "cluster": manifest.cluster,
        "cluster_id": f"{manifest.cluster_id:016x}",
        "node_id": manifest.node_id,
        "time": shown(manifest.ended_ms),
        "shards": [
            {
                "id": cut.shard,
                "index": cut.index,
                "through": shown(cut.through_ms),
                "snapshot_index": cut.base.index if cut.base is not None else None,
                "snapshot_bytes": cut.base.size if cut.base is not None else 0,
                "log_bytes": sum(chunk.size for chunk in cut.log),
            }
            for cut in manifest.cuts
        ],
    }


@click.command("list", context_settings=CONTEXT)
@version_option
@click.argument("dest", metavar="DEST")
@json_option
def list_command(dest: str) -> int | None:
    """Show the complete backups in DEST."""
    from shardnode.backup.points import shown
    from shardnode.backup.store import open_store
    from shardnode.backup.take import all_backups

    found, wrong = all_backups(open_store(dest))
    if wants_json():
        problems = [error.message for error in wrong]
        output.write_json({"backups": list(map(described, found)), "problems": problems})
    else:
        rows = [
            (
                each.id,
                shown(each.ended_ms),
                each.cluster,
                each.shards,
                output.size(sum(cut.base.size for cut in each.cuts if cut.base is not None)),
                output.size(sum(chunk.size for cut in each.cuts for chunk in cut.log)),
            )
            for each in found
        ]
        output.table(["backup", "time", "cluster", "shards", "snapshots", "log"], rows)
        for error in wrong:
            output.note(error.message)
    return EXIT_UNHEALTHY if wrong else None


@click.command("verify", context_settings=CONTEXT)
@version_option
@click.argument("dest", metavar="DEST")
@json_option
def verify_command(dest: str) -> int | None:
    """Read everything in DEST and compare it with its checksums: exit code 0 or 7."""
    from shardnode.backup.check import check_backups
    from shardnode.backup.store import open_store
    from shardnode.backup.take import Progress

    store = open_store(dest)
    with output.transfer("verified") as shown:
        checked = check_backups(store, Progress(shown.say, shown.advance))
    _tell_checked(checked, store.place)
    return EXIT_UNHEALTHY if checked.problems else None


def _tell_checked(checked: Checked, place: str) -> None:
    if wants_json():
        output.write_json(
            {
                "destination": place,
                "backups": [each.id for each in checked.backups],
                "problems": [error.message for error in checked.problems],
                "verified_bytes": checked.bytes,
                "unused_objects": checked.unused,
            }
        )
        return
    for error in checked.problems:
        output.write_line(error.message.encode())
    verdict = "sound" if not checked.problems else f"{len(checked.problems)} problems"
    output.note(
        f"{len(checked.backups)} backups in {place}: {verdict};"
        f" {output.size(checked.bytes)} verified"
    )


assert isinstance(command, WithVerbs)
command.verbs = {"list": list_command, "verify": verify_command}
