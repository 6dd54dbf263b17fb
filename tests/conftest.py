"""What every test may rely on: property tests that do not depend on how busy the machine is."""

from __future__ import annotations

from hypothesis import settings

# Workers share the cores, so the time one example takes says nothing about the code under test.
settings.register_profile("shardnode", deadline=None)
settings.load_profile("shardnode")
