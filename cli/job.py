"""`shardnode job list | run NAME`: work for Spark, on this machine or on a cluster of Spark's.

A job begins when its session has started, which takes some seconds. It says on a terminal how far
it is, and at the end what it has done: in words, as one object with `--json`, or in a file as well
with `--summary`.

The one rule: a command here only reads its options. What a job does is in `pipeline/jobs*.py`, as
a function of a session and what was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.job_options import (
    Source,
    address,
    place_options,
    run_options,
    source_options,
)
from shardnode.cli.job_run import run
from shardnode.cli.options import (
    CONTEXT,
    client_options,
    json_option,
    version_option,
    wants_json,
)

if TYPE_CHECKING:
    from shardnode.pipeline.jobs import Say, Summary


@click.group("job", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Export, import, measure and compare whole tables with Spark."""


@command.command("list", context_settings=CONTEXT)
@version_option
@json_option
def list_command() -> None:
    """Name the jobs there are."""
    from shardnode.pipeline.jobs import JOBS

    if wants_json():
        output.write_json({"jobs": [{"name": name, "does": does} for name, does in JOBS.items()]})
        return
    output.table(["job", "what it does"], list(JOBS.items()))


@command.group("run", context_settings=CONTEXT)
@version_option
@client_options
def run_command() -> None:
    """Run a job; each has a help of its own."""


@run_command.command("export", context_settings=CONTEXT)
@click.argument("dest", metavar="DEST")
@click.option("--topic", metavar="NAME", help="The messages of a topic instead of the keys.")
@click.option("--overwrite", is_flag=True, help="Replace the export that is in DEST.")
@source_options
@run_options
def export(source: Source, dest: str, topic: str | None, overwrite: bool) -> int:
    """Write keys, or a topic, to DEST as Parquet, with the cut in a manifest.

    DEST is a folder that is absent or empty, or a URL that Spark can write to. Rows are in
    directories by shard, with all their columns. The manifest comes last: where there is one, the
    export is whole.
    """

    options = source.options(**({"topic": topic} if topic is not None else {}))

    def job(spark: Any, say: Say) -> Summary:
        from shardnode.pipeline import jobs_export

        return jobs_export.export(spark, jobs_export.Export(options, dest, overwrite), say)

    return run("export", job)


@run_command.command("import", context_settings=CONTEXT)
@click.argument("src", metavar="SRC")
@click.option("--topic", metavar="NAME", help="The topic to append to, if not the one of before.")
@click.option("--create", is_flag=True, help="Create the topic if it is not there.")
@click.option("--again", is_flag=True, help="Append messages that were imported before once more.")
@click.option("--no-manifest", is_flag=True, help="SRC is any Parquet, with a key and a value.")
@client_options
@run_options
def import_(src: str, topic: str | None, create: bool, again: bool, no_manifest: bool) -> int:
    """Bring an export back: put its keys, or append its messages.

    All of SRC is compared with its manifest before anything is written. Keys whose time to live is
    over are left out, and the others keep theirs. Messages keep their partitions and their order,
    and get new offsets and timestamps; those of an import that ran before are not appended again.
    """

    target = {**address(), **({"topic": topic} if topic is not None else {})}

    def job(spark: Any, say: Say) -> Summary:
        from shardnode.pipeline import jobs_import

        ask = jobs_import.Import(src, target, not no_manifest, create, again)
        return jobs_import.import_(spark, ask, say)

    return run("import", job)


@run_command.command("stats", context_settings=CONTEXT)
@click.option("--picture", metavar="FILE.svg", help="Draw the distributions, as SVG.")
@source_options
@run_options
def stats(source: Source, picture: str | None) -> int:
    """Show how large keys and values are in each shard."""

    options = source.options()

    def job(spark: Any, say: Say) -> Summary:
        from shardnode.pipeline import jobs_stats

        return jobs_stats.stats(spark, jobs_stats.Stats(options, picture), say)

    return run("stats", job)


@run_command.command("verify", context_settings=CONTEXT)
@click.option("--replicas", is_flag=True, help="Compare the replicas of each shard.")
@click.option("--path", metavar="SRC", help="A backup, a stopped node's directory, or an export.")
@click.option(
    "--by",
    type=click.Choice(["auto", "versions", "values"]),
    default="auto",
    show_default=True,
    help="auto: by versions, if both are of one cluster.",
)
@click.option("--deleted-ok", is_flag=True, help="What is gone passes for deleted.")
@click.option("--sample", type=click.IntRange(0, 1000), default=10, show_default=True)
@place_options
@run_options
def verify(
    source: Source, replicas: bool, path: str | None, by: Any, deleted_ok: bool, sample: int
) -> int:
    """Compare the node with SRC, or its replicas with each other: exit code 0 or 7.

    A backup is brought to the index of the node's cut by its log, and must be equal then. Where the
    log does not reach back, and for a directory or an export, what was written since is told by its
    version; what is not there any more counts as a difference unless --deleted-ok is given.
    """
    if replicas == (path is not None):
        raise click.UsageError("expected --replicas or --path SRC, found " + _both(replicas))

    options = source.options()

    def job(spark: Any, say: Say) -> Summary:
        from shardnode.pipeline import jobs_verify

        ask = jobs_verify.Verify(options, path, by, deleted_ok, sample)
        return jobs_verify.verify(spark, ask, say)

    return run("verify", job)


def _both(there: bool) -> str:
    return "both" if there else "neither"


@run_command.command("reshard-plan", context_settings=CONTEXT)
@click.option(
    "--to", type=click.IntRange(min=1), required=True, metavar="N", help="The number of shards."
)
@click.option("--rows", metavar="DEST", help="Write the keys that would move, as Parquet.")
@source_options
@run_options
def reshard_plan(source: Source, to: int, rows: str | None) -> int:
    """Count the rows that would move, from which shard to which, if there were N shards."""

    options = source.options()

    def job(spark: Any, say: Say) -> Summary:
        from shardnode.pipeline import jobs_reshard

        ask = jobs_reshard.ReshardPlan(options, to, rows)
        return jobs_reshard.reshard_plan(spark, ask, say)

    return run("reshard-plan", job)
