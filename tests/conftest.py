"""What every test may rely on: property tests that do not depend on how busy the machine is, and
workers among whom tests are spread by `tests/chains.py`."""

from __future__ import annotations

from hypothesis import settings

from tests.chains import pytest_collection_modifyitems, pytest_xdist_make_scheduler

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# Workers share the cores, so the time one example takes says nothing about the code under test.
settings.register_profile("shardnode", deadline=None)
settings.load_profile("shardnode")
