"""`shardnode health`: one answer for scripts and load balancers.

The one rule: exit code 0 means that every shard of the node serves and knows its leader, and 7 that
one does not. A node that cannot be reached is neither: that is 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.options import CONTEXT, client_options, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.client.values import Status


@click.command("health", context_settings=CONTEXT)
@version_option
@client_options
def command() -> int:
    """Say whether every shard serves: exit code 0, or 7 and what is wrong."""
    with connected() as client:
        status = client.status()
    problems = problems_of(status)
    count = len(status.shards)
    if wants_json():
        answer = {"healthy": not problems, "node_id": status.node_id, "shards": count}
        output.write_json({**answer, "problems": problems})
    elif problems:
        output.write_line("\n".join(["unhealthy", *problems]).encode())
    else:
        output.write_line(f"healthy: {count} of {count} shards serve".encode())
    return EXIT_UNHEALTHY if problems else 0


def problems_of(status: Status) -> list[str]:
    """What is wrong, in words, one for each shard at most."""
    problems = []
    for shard in status.shards:
        if shard.state != "serving":
            problems.append(f"shard {shard.id} is {shard.state}")
        elif shard.leader is None:
            problems.append(f"shard {shard.id} has no leader")
    return problems if status.shards else ["the node has no shards"]
