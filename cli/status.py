"""`shardnode status`: how the shards of a node are.

The one rule: `--json` has the documented names and everything that the node told; the table is for
eyes and may change.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.options import CONTEXT, client_options, version_option, wants_json

COLUMNS = {
    "shard": "id",
    "state": "state",
    "role": "role",
    "leader": "leader",
    "term": "term",
    "commit": "commit_index",
    "applied": "applied_index",
    "durable": "durable_index",
    "truncated": "truncation_index",
    "pid": "pid",
    "core": "core",
    "restarts": "restarts",
}


@click.command("status", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Show the shards of a node: who leads, how far they are, where they run."""
    with connected() as client:
        status = asdict(client.status())
    if wants_json():
        output.write_json(status)
        return
    about = f"node {status['node_id']} of cluster {status['cluster']}, epoch {status['epoch']}"
    output.write_line(about.encode())
    rows = [[shard[name] for name in COLUMNS.values()] for shard in status["shards"]]
    output.table(list(COLUMNS), rows)
    for shard in status["shards"]:
        if shard["error"]:
            output.write_line(f"shard {shard['id']} is {shard['state']}: {shard['error']}".encode())
