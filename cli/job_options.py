"""The options that jobs share: what is read, and how Spark runs.

The one rule: `--master`, `--conf` and `--summary` are kept in the `meta` of the context, as
`--connect` and `--json` are, so that a command of a job gets what belongs to that job alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from shardnode.cli.encodings import argument
from shardnode.cli.options import client_options, connect_address, encoding_option

F = TypeVar("F", bound=Callable[..., Any])

MASTER, CONF, SUMMARY = "shardnode.master", "shardnode.conf", "shardnode.summary"


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, as the line says it."""

    path: str | None
    prefix: bytes
    start: bytes | None
    end: bytes | None
    access: str

    def options(self, **more: str) -> dict[str, str]:
        """… and as options of the data source."""
        given = dict(more)
        if self.path is not None:
            if connect_address() is not None:
                raise click.UsageError("expected --connect or --path, found both")
            given["path"] = self.path
        else:
            given |= address()
        keys = {"prefix": self.prefix or None, "start": self.start, "end": self.end}
        given |= {name: key.hex() for name, key in keys.items() if key is not None}
        if any(key is not None for key in keys.values()):
            given["keyEncoding"] = "hex"
        if self.access != "auto":
            given["access"] = self.access
        return given


def address() -> dict[str, str]:
    """The node, as an option of the data source."""
    from shardnode.client.arguments import to_endpoints

    endpoints = to_endpoints(connect_address())
    return {"connect": ",".join(each.removeprefix("tcp://") for each in endpoints)}


def place_options(function: F) -> F:
    """A running node, and which of its keys."""

    def wrapped(
        *, prefix: str, start: str | None, end: str | None, encoding: str, access: str, **more: Any
    ) -> Any:
        low, high = _key(start, encoding), _key(end, encoding)
        source = Source(
            more.pop("from_path", None), _key(prefix, encoding) or b"", low, high, access
        )
        return function(source=source, **more)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = list(getattr(function, "__click_params__", ()))  # type: ignore[attr-defined]
    access = click.option(
        "--access",
        type=click.Choice(["auto", "local", "remote"]),
        default="auto",
        show_default=True,
        help="local: from the node's files on this machine; remote: through its shards.",
    )
    for option in (
        client_options,
        access,
        encoding_option,
        click.option("--end", metavar="KEY", help="Only keys below it."),
        click.option("--start", metavar="KEY", help="Only keys from it on."),
        click.option("--prefix", default="", metavar="KEY", help="Only keys that begin so."),
    ):
        option(wrapped)
    return wrapped  # type: ignore[return-value]


def source_options(function: F) -> F:
    """… or the directory of a stopped node, or a backup."""
    placed = place_options(function)
    click.option(
        "--path", "from_path", metavar="SRC", help="A stopped node, or a backup, instead of a node."
    )(placed)
    return placed


def _key(word: str | None, encoding: str) -> bytes | None:
    return None if word is None else argument(word, encoding)


def run_options(function: F) -> F:
    """How Spark runs, and where the summary goes."""
    for option in (
        click.option(
            "--summary",
            metavar="FILE",
            expose_value=False,
            callback=_keep(SUMMARY),
            help="Write the summary there as well, as JSON.",
        ),
        click.option(
            "--conf",
            metavar="NAME=VALUE",
            multiple=True,
            expose_value=False,
            callback=_keep_conf,
            help="A setting of Spark's, such as spark.driver.memory=4g; may be repeated.",
        ),
        click.option(
            "--master",
            metavar="URL",
            expose_value=False,
            callback=_keep(MASTER),
            help="Where Spark runs; else MASTER, else local[*]: this machine, all cores.",
        ),
    ):
        function = option(function)
    return function


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        ctx.meta[name] = value

    return keep


def _keep_conf(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    found = {}
    for each in values:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise click.BadParameter(
                f"expected NAME=VALUE, such as spark.driver.memory=4g, found {each}", ctx, param
            )
        found[name.strip()] = value
    ctx.meta[CONF] = found
