"""Chains stay in one worker and the long ones begin first: shown by a run of two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chains import CHAINS, FIRST, SPREAD

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    pass\n"
SPREAD_WORDS = ("-n", "2", "--dist", "loadgroup")
LAST, FREE, CHAIN = "tests/a/test_last.py", "tests/sim/test_free.py", "tests/spark/test_chain.py"


def test_places_are_places_of_tests() -> None:
    for place in {*FIRST, *SPREAD, *(place for places in CHAINS.values() for place in places)}:
        assert (ROOT / place).exists(), f"{place} is gone: correct tests/chains.py"
        assert place.endswith("/") == (ROOT / place).is_dir()


def passed_in(folder: Path, names: Sequence[str], *words: str) -> list[tuple[str, str]]:
    """(worker, file) of each test of such files, run by two workers."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(SAMPLE)
    words = ("-p", "xdist", "-p", "tests.chains", "-p", "no:cacheprovider", *words)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words, "-v", "--rootdir", ".", *SPREAD_WORDS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"\[(gw\d)\].* PASSED (\S+?)::", done.stdout)


FEW = """
import os
from tests import chains

chains.cores = lambda: {count}


def pytest_runtest_call():
    is_spare = os.environ["PYTEST_XDIST_WORKER"] == "gw{count}"
    assert os.nice(0) == {nice} + is_spare * chains.SPARE_NICE
"""


def with_cores(folder: Path, count: int) -> tuple[str, str]:
    """The words that make a run believe in so many cores."""
    (folder / "few.py").write_text(FEW.format(count=count, nice=os.nice(0)))
    return "-p", "few"


def test_chains_and_files_run_in_one_worker_and_long_tests_begin_first(tmp_path: Path) -> None:
    passed = passed_in(tmp_path, [LAST, FREE, CHAIN], *with_cores(tmp_path, 2))
    workers = {name: {worker for worker, at in passed if at == name} for _, name in passed}
    assert len(workers[CHAIN]) == len(workers[LAST]) == 1
    (chain,) = workers[CHAIN]
    order = [name for worker, name in passed if worker == chain]
    assert order[:6] == [CHAIN] * 6
    other = [name for worker, name in passed if worker != chain]
    assert other[0] == LAST
    assert other == sorted(other, key=[LAST, FREE].index)


@pytest.mark.parametrize("names", [[LAST, FREE, CHAIN], [LAST, CHAIN]])
def test_one_worker_more_than_cores_gives_way_and_only_computes(
    names: list[str], tmp_path: Path
) -> None:
    passed = passed_in(tmp_path, names, *with_cores(tmp_path, 1))
    assert len(passed) == 6 * len(names)
    assert {name for worker, name in passed if worker == "gw1"} == {FREE} & set(names)
