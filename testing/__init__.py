"""pytest fixtures for users: a real node, a cluster, and the simulator.

    def test_it(shardnode_node):
        with shardnode_node.client() as db:
            db.put(b"user:1", b"Ada")

pytest finds the fixtures by itself once shardnode is installed (`fixtures` is its plugin), and
`NodeUnderTest` is for fixtures of your own. Names are loaded when they are first used, because
pytest imports this in every run, whether or not anybody uses it.

The one rule: what a fixture starts, it stops, whatever the test did to it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.testing.node import NodeUnderTest

__all__ = ["NodeUnderTest"]

_HOMES = {"NodeUnderTest": "shardnode.testing.node"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
