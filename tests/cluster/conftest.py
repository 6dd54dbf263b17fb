"""One cluster for the tests of a module: starting one takes longer than most faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardnode.testing.cluster import Cluster
from shardnode.testing.load_judge import recover


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(nodes=3, shards=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Three nodes, two shards, everything in order before and after."""
    yield running
    recover(running)
