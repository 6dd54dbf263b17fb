"""A real node for the tests of commands that talk to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest

from tests.cli.kit import Running, Word, run

Kv = Callable[..., "CompletedProcess[bytes]"]

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a node of two shards listens, as long as the tests run."""
    data = tmp_path_factory.mktemp("node") / "data"
    words = ("start", "--shards", "2", "--data", str(data), "--listen", "127.0.0.1:0")
    with Running(*words, "--http", "off") as node:
        shards, address = node.ready()
        assert shards == 2
        yield address


@pytest.fixture
def shardnode(address: str) -> Kv:
    """Runs a command against that node."""

    def call(*words: Word, stdin: bytes = b"", **env: str) -> CompletedProcess[bytes]:
        return run(*words, stdin=stdin, env={"SHARDNODE_CONNECT": address, **env})

    return call


@pytest.fixture
def prefix() -> str:
    """Begins the keys of one test and of no other."""
    return f"test-{next(_prefixes)}:"
