"""Fixtures: a fake node, and a client that is closed whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardnode import Client
from tests.client.fake import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(2) as fake:
        yield fake


@pytest.fixture
def db(node: FakeNode) -> Iterator[Client]:
    with Client(node.address) as client:
        yield client
