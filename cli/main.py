"""The `shardnode` command: the group, the table of commands, and how each line ends.

A new command is a module of this folder that holds one click command called `command`, and a line
in COMMANDS. The line repeats the summary, because help must not import every command to show it. A
command returns its exit code, or nothing for 0, and lets errors pass: they are told here.

The one rule: nothing but click is imported before it is known which command runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import NoReturn

import click

from shardnode.cli.errors import EXIT_FAILURE, EXIT_INTERRUPT, tell, told_of
from shardnode.cli.options import CONTEXT, client_options, version_option

# name -> (module, what `shardnode -h` says about it)
COMMANDS = {
    "start": ("shardnode.cli.start", "Run a node until it is stopped."),
    "demo": ("shardnode.cli.demo", "See a temporary node survive the death of a worker."),
    "status": ("shardnode.cli.status", "Show the shards of a node."),
    "health": ("shardnode.cli.health", "Say whether every shard serves: exit code 0 or 7."),
    "kv": ("shardnode.cli.kv", "Put, get, delete, scan and watch keys."),
    "topic": ("shardnode.cli.topic", "Create, change, fill and read topics."),
    "group": ("shardnode.cli.group", "Show consumer groups, and move them."),
    "explain": ("shardnode.cli.explain", "Show where a key is, and why."),
    "cluster": ("shardnode.cli.cluster", "Show and change the nodes of a cluster."),
    "doctor": ("shardnode.cli.doctor", "Say what is wrong with this machine for a node."),
    "verify": ("shardnode.cli.verify", "Look for damage in the directory of a stopped node."),
    "inspect": ("shardnode.cli.inspect", "Show what a directory or a file of a node holds."),
    "repair": ("shardnode.cli.repair", "Set a damaged file aside, to be fetched again."),
    "backup": ("shardnode.cli.backup", "Back up a running cluster, list and verify backups."),
    "restore": ("shardnode.cli.restore", "Make a data directory from a backup."),
    "job": ("shardnode.cli.job", "Export, import, measure and compare tables with Spark."),
    "config": ("shardnode.cli.config", "Show, check or write a node's configuration."),
    "sim": ("shardnode.cli.sim", "Replay a seed in the deterministic simulator."),
}

EPILOG = """\b
Completion in bash (zsh_source and fish_source for others):
  eval "$(_SHARDNODE_COMPLETE=bash_source shardnode)"
"""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command), f"{cmd_name} has no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=CONTEXT, epilog=EPILOG)
@version_option
@client_options
def group() -> None:
    """A sharded, replicated key-value and stream store."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Runs one command line and exits with its code."""
    words = sys.argv[1:] if argv is None else argv
    cut_short = False
    try:
        # Not standalone: click would answer an interrupt with exit code 1.
        code = group.main(words, prog_name="shardnode", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        code, cut_short = EXIT_INTERRUPT, True
    except SystemExit as end:  # click's answer to a closed pipe, or a signal's
        code, cut_short = end.code, True
    except BrokenPipeError:
        code = EXIT_FAILURE  # the reader left, as in `… | head`: no word about it
    except Exception as error:
        told = told_of(error)
        if told is None:
            raise
        with suppress(BrokenPipeError):
            tell(error, told, as_json=_asks_for_json(words))
        code = told.exit_code
    _settle_stdout()
    if cut_short and isinstance(code, int):
        os._exit(code)  # what an interrupt left half done is not waited for; see `connection`
    sys.exit(code)


def _asks_for_json(words: list[str]) -> bool:
    """Whether `--json` stands on a line that perhaps could not be understood."""
    end = words.index("--") if "--" in words else len(words)
    return "--json" in words[:end]


def _settle_stdout() -> None:
    """What is still buffered and cannot be written must not fail again when Python exits."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
