"""The fixtures themselves; pytest loads this as a plugin when shardnode is installed.

    shardnode_node      a real node with one shard; `@pytest.mark.shardnode(shards=4)` asks for more
    shardnode_cluster   three real nodes with two shards, and proxies between them that can be cut;
                        `@pytest.mark.shardnode(nodes=5, shards=1)` asks for others
    shardnode_sim       shardnode_sim(123) runs one seed of the simulator and returns its report

The one rule: importing it costs nothing. It is loaded in every run of pytest on a machine that has
shardnode, so everything of ours is imported by the fixture that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardnode.sim import Report
    from shardnode.testing.cluster import Cluster
    from shardnode.testing.node import NodeUnderTest

RunSeed = Callable[..., "Report"]

MARKER = "shardnode(shards=…, nodes=…): how many `shardnode_node` or `shardnode_cluster` has"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def shardnode_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeUnderTest]:
    """A real node, ready to serve, with files and ports of its own; gone after the test."""
    from shardnode.testing.node import NodeUnderTest

    folder = tmp_path_factory.mktemp("shardnode")
    with NodeUnderTest(_wanted(request, "shards", 1), folder=folder) as node:
        yield node


@pytest.fixture
def shardnode_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A real cluster, ready to serve: `.addresses`, `.client()`, `.nodes[2].kill()`, `.isolate(1)`,
    `.heal()`; gone after the test."""
    from shardnode.testing.cluster import Cluster

    nodes, shards = _wanted(request, "nodes", 3), _wanted(request, "shards", 2)
    with Cluster(nodes=nodes, shards=shards) as cluster:
        yield cluster


def _wanted(request: pytest.FixtureRequest, what: str, default: int) -> int:
    marker = request.node.get_closest_marker("shardnode")
    return int(marker.kwargs.get(what, default)) if marker is not None else default


@pytest.fixture
def shardnode_sim() -> RunSeed:
    """Runs one seed: `report = shardnode_sim(123)`, or with bounds of a `Plan`, as in
    `shardnode_sim(123, operations_min=50)`. A broken promise raises `SimFailure`, which names the
    seed; `shardnode sim 123` replays it with its trace."""
    from shardnode.sim import Plan, run_seed

    def run(seed: int, **plan: Any) -> Report:
        return run_seed(seed, Plan(**plan))

    return run
