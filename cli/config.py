"""`shardnode config`: show what a start would use, check a file, write a first one.

The one rule: nothing here starts, locks or changes a node. `show` takes the flags of `start` and
reads them the same way, so that what it shows is what a start would do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardnode import __version__

if TYPE_CHECKING:
    from shardnode.node.config_load import Loaded

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLES = ("single", "sharded", "three-node", "reference")
EXIT_CODES = {"invalid_request": 2, "not_found": 3, "conflict": 6, "corrupt": 7}
EXIT_FAILURE = 1

JSON_WANTED = "shardnode.json"
"""Of a context's `meta`, which a command shares with the groups before it: whether `--json` stood
anywhere on the line."""


def _want_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[JSON_WANTED] = value or ctx.meta.get(JSON_WANTED, False)


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_want_json, help="Answer in JSON."
)


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get(JSON_WANTED))


@contextmanager
def failures_told() -> Iterator[None]:
    """Ends the command when one of our errors passes: told to people, or as one JSON object."""
    from shardnode.wire.errors import ShardnodeError

    try:
        yield
    except ShardnodeError as error:
        told = {"code": error.code, "message": error.message, "retryable": error.retryable}
        text = json.dumps({"error": told}) if wants_json() else f"Error: {error.message}"
        click.echo(text, err=True)
        click.get_current_context().exit(EXIT_CODES.get(error.code, EXIT_FAILURE))


def node_options(function: F) -> F:
    """The options of `start` that are settings. The configuration reads their words and complains
    about them, so they are plain text here."""
    options = [
        click.option("--config", "config_file", metavar="FILE", help="A TOML file."),
        click.option("--shards", metavar="N", help="Turns sharding on with N shards."),
        click.option("--data", metavar="DIR", help="The data directory."),
        click.option("--listen", metavar="HOST:PORT", help="The router's address."),
        click.option("--node-id", metavar="N", help="This node's number in its cluster."),
        click.option("--peer", metavar="ID@HOST:PORT", multiple=True, help="A founding member."),
        click.option("--join", metavar="HOST:PORT", help="A node of the cluster to join."),
        click.option("--http", metavar="HOST:PORT|off", help="Where HTTP listens."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def load(config_file: str | None, flags: dict[str, Any]) -> Loaded:
    """The configuration of a command that has `node_options`; `flags` are all of them but one."""
    from shardnode.node.config_load import load_config

    file = None if config_file is None else Path(config_file)
    return load_config(file, environ=os.environ, flags=flags)


@click.group("config", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardnode")
@json_option
def command() -> None:
    """Show, check or write a node's configuration."""


@command.command()
@click.version_option(__version__, prog_name="shardnode")
@click.option("--origin", is_flag=True, help="Say who decided each setting.")
@node_options
@json_option
def show(origin: bool, config_file: str | None, **flags: Any) -> None:
    """Show the configuration that a start with these flags would use.

    A flag wins over the environment (SHARDNODE_<SECTION>_<KEY>), the environment over the file,
    and the file over the defaults.
    """
    from shardnode.node.config_write import as_tree, show_toml

    with failures_told():
        loaded = load(config_file, flags)
    if wants_json():
        click.echo(json.dumps(as_tree(loaded, origin=origin), ensure_ascii=False))
    else:
        click.echo(show_toml(loaded, origin=origin), nl=False)


@command.command()
@click.version_option(__version__, prog_name="shardnode")
@click.argument("file")
@json_option
def check(file: str) -> None:
    """Check FILE, and say everything that is wrong with it.

    The environment is left out, so that the answer is about the file alone.
    """
    from shardnode.node.config_load import load_config

    with failures_told():
        config = load_config(Path(file)).config
    summary = {
        "file": file,
        "ok": True,
        "node_id": config.node.id,
        "cluster": config.cluster.name,
        "listen": str(config.node.listen),
        "shards": config.shard_count,
    }
    words = f"{file}: ok: node {config.node.id} of cluster {config.cluster.name}, shards:"
    human = f"{words} {config.shard_count}, on {config.node.listen}"
    click.echo(json.dumps(summary, ensure_ascii=False) if wants_json() else human)


@command.command()
@click.version_option(__version__, prog_name="shardnode")
@click.argument("file", default="shardnode.toml")
@click.option(
    "--example", type=click.Choice(EXAMPLES), default="single", show_default=True, help="Which one."
)
@json_option
def init(file: str, example: str) -> None:
    """Write a first configuration to FILE (default shardnode.toml; `-` is stdout).

    A file that exists is never replaced.
    """
    from shardnode import configs
    from shardnode.wire.errors import Conflict, ShardnodeError

    text = configs.example(example)
    if file == "-":
        click.echo(text, nl=False)
        return
    with failures_told():
        try:
            with open(file, "x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            remedy = "name another one, or delete it first"
            raise Conflict(f"{file}: expected no such file, found one; {remedy}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ShardnodeError(f"{file}: cannot be written: {reason}; name another") from None
    click.echo(json.dumps({"file": file, "example": example}) if wants_json() else file)
    click.echo(f"start it with: shardnode start --config {file}", err=True)
