"""A whole `start` with fake workers, as its own process: run_node.py DATA [TROUBLE:SHARD]..."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tests.supervisor.kit import fake_node

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(fake_node(Path(sys.argv[1]), *sys.argv[2:]).run_forever())
