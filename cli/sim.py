"""`shardnode sim`: hands its words to the simulator, which has its own options and help."""

from __future__ import annotations

import click

from shardnode import __version__


@click.command(
    "sim",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.version_option(__version__, prog_name="shardnode")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> int:
    """Replay a seed in the deterministic simulator."""
    from shardnode.sim.__main__ import main

    return main(list(words))
