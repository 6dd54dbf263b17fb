"""Chains stay in one worker and the long ones begin first: shown by a run of two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.chains import CHAINS, FIRST, SPREAD

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    pass\n"
LAST, FREE, CHAIN = "tests/a/test_last.py", "tests/sim/test_free.py", "tests/spark/test_chain.py"


def test_places_are_places_of_tests() -> None:
    for place in {*FIRST, *SPREAD, *(place for places in CHAINS.values() for place in places)}:
        assert (ROOT / place).exists(), f"{place} is gone: correct tests/chains.py"
        assert place.endswith("/") == (ROOT / place).is_dir()


def test_chains_and_files_run_in_one_worker_and_long_tests_begin_first(tmp_path: Path) -> None:
    for name in (LAST, FREE, CHAIN):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(SAMPLE)
    words = ["-p", "tests.chains", "-p", "no:cacheprovider", "--rootdir", ".", "-v"]
    words += ["-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"\[(gw\d)\].* PASSED (\S+?)::", done.stdout)
    workers = {name: {worker for worker, at in passed if at == name} for _, name in passed}
    assert len(workers[CHAIN]) == len(workers[LAST]) == 1
    (chain,) = workers[CHAIN]
    order = [name for worker, name in passed if worker == chain]
    assert order[:6] == [CHAIN] * 6
    other = [name for worker, name in passed if worker != chain]
    assert other[0] == FREE
    assert other == sorted(other, key=[FREE, LAST].index)
