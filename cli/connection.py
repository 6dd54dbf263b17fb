"""The client of a command.

The one rule: every command that talks to a node gets its client here, so that `--connect`,
`SHARDNODE_CONNECT` and the default mean the same everywhere, and an interrupt ends at once. It may
come in the middle of anything, and closing would wait for what it left half done; so the client is
left alone then, and goes with the process, which `main` ends without looking back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardnode.cli.options import connect_address

if TYPE_CHECKING:
    from shardnode.client.sync import Client

_abandoned: list[Client] = []
"""Held until the end, because a client that is collected closes itself."""


@contextmanager
def connected(address: str | None = None) -> Iterator[Client]:
    """A client for an address, else for what the line or the environment names; it connects when
    it is used."""
    from shardnode.client.sync import Client

    client = Client(address or connect_address())
    try:
        yield client
    except Exception:
        client.close()
        raise
    except BaseException:
        _abandoned.append(client)
        raise
    client.close()
