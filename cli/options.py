"""What the commands share: options that may stand anywhere on the line, and words that look like
options and are not.

The one rule: `--connect` and `--json` mean the same before and after a subcommand; the last one
wins. So they are kept in the `meta` that a command's context shares with the groups before it, and
never passed to a command as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from shardnode import __version__

F = TypeVar("F", bound=Callable[..., Any])

JSON = "shardnode.json"  # the name under which `cli.config` keeps it too
CONNECT = "shardnode.connect"
CONTEXT = {"help_option_names": ["-h", "--help"]}

version_option = click.version_option(__version__, prog_name="shardnode")


def _keep_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[JSON] = value or ctx.meta.get(JSON, False)


def _keep_connect(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[CONNECT] = value


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Answer in JSON; an error is one object on stderr.",
)

connect_option = click.option(
    "--connect",
    metavar="HOST:PORT",
    expose_value=False,
    callback=_keep_connect,
    help="The node to talk to; else SHARDNODE_CONNECT, else 127.0.0.1:7400.",
)


def encoding_option(function: F) -> F:
    """How keys and values are written on the command line and in its output."""
    return click.option(
        "--encoding",
        type=click.Choice(["utf8", "hex", "base64"]),
        default="utf8",
        show_default=True,
        help="How keys and values are written. utf8: the bytes as they are.",
    )(function)


def client_options(function: F) -> F:
    """The options of every command that talks to a node."""
    return connect_option(json_option(function))


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get(JSON))


def connect_address() -> str | None:
    """What `--connect` said, if anything."""
    address: str | None = click.get_current_context().meta.get(CONNECT)
    return address


class DataCommand(click.Command):
    """A command whose arguments may begin with a dash: `kv put k -5` stores "-5".

    Only `-h` and words that begin with two dashes are options; behind `--` nothing is.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not (param.is_flag or param.count)
            for name in param.opts
        }
        options: list[str] = []
        arguments: list[str] = []
        left = iter(args)
        for word in left:
            if word == "--":
                arguments.extend(left)
            elif word.startswith("--") or word in ctx.help_option_names:
                options.append(word)
                if word in takes_value:
                    value = next(left, None)
                    if value is None:  # click says what is missing
                        return super().parse_args(ctx, options)
                    options.append(value)
            else:
                arguments.append(word)
        return super().parse_args(ctx, [*options, "--", *arguments])
