"""The linter, the formatter and the type checker find nothing, and would find something.

The commands are those of `scripts/lint`, as `test_setup_scripts.py` proves. Each is also run on a
small bad project with our own settings: a checker that looks at nothing would pass for ever.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["src/shardnode", "tests", "tests/raft", "scripts"]
TOOLS = ["ruff check", "ruff format --check", "mypy"]
UNSORTED = '"""Bad."""\n\nimport sys\nimport os\n\nprint(os, sys)\n'
UNFORMATTED = '"""Bad."""\n\nx = {  "a":1 }\n'
UNTYPED = '"""Bad."""\n\n\ndef f(x):\n    return x\n'
BAD = {"ruff check": UNSORTED, "ruff format --check": UNFORMATTED, "mypy": UNTYPED}


def run(tool: str, folder: Path) -> subprocess.CompletedProcess[str]:
    where = [] if tool == "mypy" else ["."]
    command = [sys.executable, "-P", "-m", *tool.split(), *where]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("tool", TOOLS)
def test_tree_is_clean(tool: str) -> None:
    done = run(tool, ROOT)
    assert done.returncode == 0, f"{tool} (scripts/lint --fix may help)\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("tool", TOOLS)
def test_bad_files_are_found_in_every_folder(tool: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        # Names differ, because mypy knows modules by them where there are no packages.
        (tmp_path / folder / f"bad_{Path(folder).name}.py").write_text(BAD[tool])
    done = run(tool, tmp_path)
    assert done.returncode == 1
    for folder in FOLDERS:
        assert f"{folder}/bad_{Path(folder).name}.py" in done.stdout + done.stderr
