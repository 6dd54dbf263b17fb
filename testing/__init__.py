"""pytest fixtures for users: a real node, a cluster, and the simulator.

    def test_it(shardnode_node):
        with shardnode_node.client() as db:
            db.put(b"user:1", b"Ada")

pytest finds the fixtures by itself once shardnode is installed (`fixtures` is its plugin), and
`NodeUnderTest` is for fixtures of your own. Names are loaded when they are first used, because
pytest imports this in every run, whether or not anybody uses it.

`Cluster` is real nodes with a proxy between them that cuts, delays, drops, doubles and damages what
they say; `Load` records what clients see meanwhile, and `judge` holds it against two checkers.

The one rule: what a fixture starts, it stops, whatever the test did to it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardnode.testing.checkers import Finding, check_by_index
    from shardnode.testing.checkers_search import check_by_search
    from shardnode.testing.cluster import Cluster
    from shardnode.testing.history import Operation, Recorder
    from shardnode.testing.load import Load
    from shardnode.testing.load_judge import judge
    from shardnode.testing.node import NodeUnderTest
    from shardnode.testing.proxy_control import Proxy
    from shardnode.testing.proxy_stream import Faults

__all__ = [
    "Cluster",
    "Faults",
    "Finding",
    "Load",
    "NodeUnderTest",
    "Operation",
    "Proxy",
    "Recorder",
    "check_by_index",
    "check_by_search",
    "judge",
]

_HOMES = {
    "Cluster": "shardnode.testing.cluster",
    "Faults": "shardnode.testing.proxy_stream",
    "Finding": "shardnode.testing.checkers",
    "Load": "shardnode.testing.load",
    "NodeUnderTest": "shardnode.testing.node",
    "Operation": "shardnode.testing.history",
    "Proxy": "shardnode.testing.proxy_control",
    "Recorder": "shardnode.testing.history",
    "check_by_index": "shardnode.testing.checkers",
    "check_by_search": "shardnode.testing.checkers_search",
    "judge": "shardnode.testing.load_judge",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
