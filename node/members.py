"""The nodes of the cluster, as this node last heard of them.

Shard 0 keeps the nodes that are wanted, as replicated state. Its worker tells the supervisor, the
supervisor tells every child, and writes it down: after a restart the node must find the others
before anything replicated can reach it.

The one rule: the file is a memory, never an authority. What shard 0 says replaces it, and an
address in this node's own configuration wins over both, because it says how *this* node gets there.

    members.json    {"version": 3, "routers": {"1": "tcp://10.0.0.1:7400", ...}, "checksum": …}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardnode.node.identity import checksum_of, publish

log = logging.getLogger("shardnode.node")

FILE = "members.json"


class Members:
    """What is known, and where it is written down."""

    def __init__(self, path: Path | None, own: Mapping[int, str]) -> None:
        """`own`: the addresses in this node's configuration."""
        self._path = path
        self._own = dict(own)
        self.version = 0
        self.routers: dict[int, str] = dict(own)
        if path is not None and path.exists():
            self._load(path)

    def learn(self, said: Mapping[str, Any]) -> bool:
        """A worker's line told about them; whether that is news."""
        version, routers = said.get("members_version"), said.get("members")
        if type(version) is not int or version <= self.version or not isinstance(routers, dict):
            return False
        try:
            self._take(version, routers)
        except ValueError as error:
            log.error("shard 0 named members that make no sense: %s", error)
            return False
        if self._path is not None:
            publish(self._path, encode_members(version, routers))
        return True

    def line(self) -> dict[str, Any]:
        """What the children are told."""
        routers = {str(node): router for node, router in sorted(self.routers.items())}
        return {"members": routers, "members_version": self.version}

    def _load(self, path: Path) -> None:
        try:
            self._take(*decode_members(path.read_bytes()))
        except ValueError as error:
            log.warning("%s is not readable (%s): the configuration's peers are used", path, error)

    def _take(self, version: int, routers: Mapping[str, Any]) -> None:
        found = {int(node): str(router) for node, router in routers.items()}
        if not found:
            raise ValueError("no members at all")
        self.version = version
        self.routers = {node: self._own.get(node, router) for node, router in found.items()}


def encode_members(version: int, routers: Mapping[str, Any]) -> bytes:
    """What is written down."""
    values = {"version": version, "routers": dict(routers)}
    return json.dumps({**values, "checksum": checksum_of(values)}, indent=2).encode() + b"\n"


def decode_members(data: bytes) -> tuple[int, dict[str, Any]]:
    """The inverse; `ValueError` for anything else than what was written."""
    try:
        values = json.loads(data)
        version, routers = values["version"], values["routers"]
        if type(version) is not int or encode_members(version, routers) != data:
            raise ValueError("it does not match its checksum")
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"other contents ({type(error).__name__})") from error
    return version, routers
