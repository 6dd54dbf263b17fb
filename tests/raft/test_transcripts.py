"""Golden transcripts: every file in tests/transcripts still happens exactly as it is written.

A change that alters one is understood first, then re-recorded with `--record` and read again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.scenario import rerun

FOLDER = Path(__file__).resolve().parents[1] / "transcripts"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript_still_happens(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text()
    after, group = rerun(before)
    group.check_invariants()
    if request.config.getoption("--record", default=False):
        path.write_text(after)
    else:
        assert after.splitlines() == before.splitlines()


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 20


def test_transcript_that_tells_something_else_is_found() -> None:
    text = (FOLDER / "election-first.txt").read_text()
    assert rerun(text)[0] == text
    assert rerun(text.replace("leads term 1", "leads term 2"))[0] == text
