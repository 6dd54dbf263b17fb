"""The `group` of every test here, checked when the test is over, and the flag that re-records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.raft.kit import Group


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="write what the members do now into tests/transcripts; read it before it is kept",
    )


@pytest.fixture
def group() -> Iterator[Group]:
    """No members yet: `start` or `add` them. The invariants are checked at the end."""
    group = Group()
    yield group
    group.check_invariants()
