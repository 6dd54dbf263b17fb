"""`shardnode repair`: one damaged file is set aside, so that the replica gets back what was in it.

The one rule: nothing is removed, and nothing is lost that was not named before and accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.options import CONTEXT, json_option, version_option, wants_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardnode.offline.repair import Plan
    from shardnode.storage.audit import Finding


@click.command("repair", context_settings=CONTEXT)
@version_option
@click.argument("directory", metavar="DIR")
@click.option("--quarantine", "file", metavar="FILE", required=True, help="What verify has named.")
@click.option("--accept-loss", is_flag=True, help="Go on without what nobody can give back.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@json_option
def command(directory: str, file: str, accept_loss: bool, dry_run: bool) -> int:
    """Set a damaged FILE of DIR aside, or what depends on it when the file alone is no use.

    DIR is the directory of a stopped node. What is set aside lies in quarantine/ until you remove
    it; the next start makes the rest again, from the other files or from the node's peers. Where
    nobody has what is lost, --accept-loss must say so. Exit code 7: other files are still damaged.
    """
    from shardnode.offline.places import find_place, held
    from shardnode.offline.repair import make_plan, relative_path
    from shardnode.offline.repair_do import carry_out
    from shardnode.offline.verify import verify_place
    from shardnode.wire.errors import InvalidRequest

    place = find_place(Path(directory))
    with held(place.root, alone=True):
        plan = make_plan(place, relative_path(place, file, Path(directory)))
        if plan.lost and not (accept_loss or dry_run):
            raise InvalidRequest(
                f"{file}: expected peers that have what is damaged, found none; lost would be"
                f" {plan.lost}; restore a backup, or go on without it: --accept-loss"
            )
        moved = [] if dry_run else carry_out(place.root, plan)
        damage = [] if dry_run else verify_place(place).damage
    _tell(plan, moved, damage, dry_run=dry_run)
    return EXIT_UNHEALTHY if damage else 0


def _tell(plan: Plan, moved: Sequence[str], damage: Sequence[Finding], *, dry_run: bool) -> None:
    if wants_json():
        answer: dict[str, Any] = {
            "remedy": plan.remedy,
            "shard": plan.shard or None,
            "then": plan.then,
        }
        answer |= {"lost": plan.lost or None, "done": not dry_run}
        left = [str(finding) for finding in damage]
        output.write_json({**answer, "set_aside": list(moved or plan.aside), "still_damaged": left})
        return
    would = "would set aside" if dry_run else "set aside"
    lines = [f"{would}: {path}" for path in (plan.aside if dry_run else moved)]
    lines += [f"lost: {plan.lost}"] * bool(plan.lost)
    lines.append(f"the next start {plan.then}")
    lines += [f"still damaged: {finding}" for finding in damage]
    output.write_line("\n".join(lines).encode())
