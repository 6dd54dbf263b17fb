"""`shardnode start`: a node in the foreground.

The one rule: whatever ends it, it says why. SIGTERM and SIGINT are a clean stop with exit code 0,
from the first moment on; anything that keeps the node from starting is told before any process of
it runs.
"""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType
from typing import Any

import click

from shardnode.cli.config import load, node_options
from shardnode.cli.options import CONTEXT, json_option, version_option

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _StopAsked(BaseException):
    """A signal came before the node could take care of signals itself."""


@click.command("start", context_settings=CONTEXT)
@version_option
@node_options
@json_option
def command(config_file: str | None, **flags: Any) -> int:
    """Run a node until SIGTERM or Ctrl-C.

    When it serves it says `ready: N shards on HOST:PORT` on stderr, and lines to copy. A HOST:0
    takes any free ports. Without --shards and without a file it is one shard on ./data.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _ask_to_stop)
    try:
        from shardnode.node.handle import Node

        loaded = load(config_file, flags)
        logging.basicConfig(
            stream=sys.stderr,
            format=LOG_FORMAT,
            level=loaded.config.node.log_level.upper(),
        )
        if loaded.config.storage.engine == "memory":
            logging.getLogger("shardnode.cli").warning(
                "storage.engine is memory: everything is GONE when this node stops"
            )
        with Node(loaded) as node:
            return node.run_forever()
    except _StopAsked:
        return 0


def _ask_to_stop(_: int, __: FrameType | None) -> None:
    raise _StopAsked
