"""The client of a command.

The one rule: every command that talks to a node gets its client here, so that `--connect`,
`SHARDNODE_CONNECT` and the default mean the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardnode.cli.options import connect_address

if TYPE_CHECKING:
    from shardnode.client.sync import Client


@contextmanager
def connected() -> Iterator[Client]:
    """A client for the address that the line or the environment names; it connects when used."""
    from shardnode.client.sync import Client

    with Client(connect_address()) as client:
        yield client
