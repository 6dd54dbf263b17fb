"""The `shardnode` command: the group, the table of commands, and the exit codes of mishaps.

A new command is a module of this folder that holds one click command called `command`, and a line
in COMMANDS. The line repeats the summary, because help must not import every command to show it. A
command returns its exit code, or nothing for 0.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from shardnode import __version__

# name -> (module, what `shardnode -h` says about it)
COMMANDS = {
    "sim": ("shardnode.cli.sim", "Replay a seed in the deterministic simulator."),
}

EXIT_FAILURE = 1
EXIT_INTERRUPT = 130


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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardnode")
def group() -> None:
    """A sharded, replicated key-value and stream store."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Runs one command line and exits with its code."""
    try:
        # Not standalone: click would answer an interrupt with exit code 1.
        code = group.main(argv, prog_name="shardnode", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPT)
    except BrokenPipeError:
        # The reader left, as in `… | head`. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILURE)
    sys.exit(code)
