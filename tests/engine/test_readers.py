"""Readers of LMDB that were killed: their slots would keep old pages for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shardnode.storage.engine_lmdb import LmdbStore
from shardnode.storage.engine_store import EngineOptions
from shardnode.storage.engine_values import keep

READER = """
import sys
from shardnode.storage.engine_lmdb import LmdbReader
reader = LmdbReader(sys.argv[1])
next(iter(reader.batches(1)), None)
print("reading", flush=True)
sys.stdin.read()
"""

OPENER = """
import sys
from shardnode.storage.engine_lmdb import LmdbStore
from shardnode.storage.engine_store import EngineOptions
store = LmdbStore(sys.argv[1], EngineOptions())
print(store.index)
"""


def test_slot_of_a_killed_reader_is_freed_at_open(tmp_path: Path) -> None:
    first = LmdbStore(str(tmp_path), EngineOptions())
    first.begin()
    first.put([(b"key", keep(1, 0, b"key", bytes(32)))])
    first.commit(1, {})
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", READER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"reading\n"
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()
    assert str(process.pid) in first._environment.env.readers()
    # Another process opens it while ours has it open, as after the death of one of two.
    opened = subprocess.run(
        [sys.executable, "-P", "-c", OPENER, str(tmp_path)], capture_output=True, check=True
    )
    assert opened.stdout == b"1\n"
    assert str(process.pid) not in first._environment.env.readers()
    first.close()
