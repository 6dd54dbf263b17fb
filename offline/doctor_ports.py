"""The ports and the sockets of a node that is to start here.

The one rule: a node that runs on the directory already has its ports; that is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardnode.node.config import Config
from shardnode.node.identity import DirectoryInUse
from shardnode.node.ports import choose_ports
from shardnode.node.supervisor_run import folder_for_sockets
from shardnode.offline.advice import Advice, note, ok, problem
from shardnode.offline.places import held
from shardnode.wire.errors import ShardnodeError


def look_at_ports(config: Config) -> Iterator[Advice]:
    try:
        with held(config.node.data):
            ports = choose_ports(config)
    except DirectoryInUse as error:
        yield note("ports", f"a node runs here already ({error.path}), so its ports are taken")
    except ShardnodeError as error:
        found, _, do = error.message.partition("; ")
        yield problem("ports", found, do or "choose another --listen")
    else:
        count = sum(1 for _ in ports.purposes())
        yield ok("ports", f"{count} are free, from {ports.listen} on")


def look_at_sockets() -> Iterator[Advice]:
    try:
        yield ok("sockets", f"those between processes go to {folder_for_sockets()}")
    except ShardnodeError as error:
        found, _, do = error.message.partition("; ")
        yield problem("sockets", found, do)
