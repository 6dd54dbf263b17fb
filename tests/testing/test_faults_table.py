"""The table of failures says what was run, and only that."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shardnode.sim.faults import Faults
from shardnode.storage.failpoints import FAILPOINTS
from shardnode.testing.faults_kinds import Cases, Failure, Kills, Seeds, Soak
from shardnode.testing.faults_list import FAILURES
from shardnode.testing.faults_table import (
    BEGIN,
    DOCUMENT,
    END,
    Seen,
    line_of,
    merge,
    read_report,
    together,
)
from shardnode.testing.soak_faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
ONE = Failure(7, "it breaks", "with a hammer", (Cases(("a.py::test_a",)),))

REPORT = """<testsuites><testsuite>
<testcase classname="tests.storage.test_x" name="test_a[1]" />
<testcase classname="tests.storage.test_x" name="test_a[2]"><failure message="no" /></testcase>
<testcase classname="tests.storage.test_x" name="test_b"><skipped message="why" /></testcase>
</testsuite></testsuites>"""


def test_every_failure_from_1_to_36_is_injected_somehow() -> None:
    assert [failure.number for failure in FAILURES] == list(range(1, 37))
    assert all(failure.sources for failure in FAILURES)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: str(failure.number))
def test_what_a_failure_names_is_there(failure: Failure) -> None:
    for source in failure.sources:
        if isinstance(source, Cases):
            for name in source.names:
                file, _, test = name.partition("::")
                tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
                found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
                assert test.partition("[")[0] in found, name
        elif isinstance(source, Seeds):
            assert all(hasattr(Faults, f"_{kind}") for kind in source.kinds)
        elif isinstance(source, Soak):
            assert set(source.faults) <= set(FAULTS)
        else:
            assert isinstance(source, Kills)
            for point in source.points:
                assert point.startswith("SIG") or any(p.startswith(point) for p in FAILPOINTS)


def test_what_did_not_happen_is_not_survived() -> None:
    assert "| 0 | not reached |" in line_of(ONE, [Seen(), Seen()], "today")
    assert "| 2 tests | survived |" in line_of(ONE, [Seen("2 tests"), Seen()], "today")
    assert "| survived; 1 tests were skipped |" in line_of(
        ONE, [Seen("2 tests", remark="1 tests were skipped")], "today"
    )
    failed = line_of(
        ONE, [Seen("2 tests"), Seen("9 × simulated", ("seed 3: lost | a key\nmore",))], ""
    )
    assert "**FAILED**: seed 3: lost \\| a key |" in failed


def test_report_counts_every_case_of_a_test(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    found = read_report(path)
    assert found["storage/test_x.py::test_a"] == {"passed": 1, "failed": 1}
    assert found["storage/test_x.py::test_b"] == {"skipped": 1}
    assert found["storage/test_x.py::test_a[2]"] == {"failed": 1}
    assert found["storage/test_x.py"] == {"passed": 1, "failed": 1, "skipped": 1}


def test_tests_of_one_failure_are_counted_together() -> None:
    sources = (Cases(("a",)), Seeds(("crash",)), Cases(("b",)))
    assert together(sources) == [Cases(("a", "b")), Seeds(("crash",))]


def test_lines_of_earlier_runs_stay_until_they_are_run_again() -> None:
    first = merge(f"before\n{BEGIN}\n{END}\nafter\n", {2: "| 2 | old |", 9: "| 9 | old |"})
    second = merge(first, {9: "| 9 | new |", 1: "| 1 | new |"})
    lines = second.splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert [line for line in lines if "old" in line or "new" in line] == [
        "| 1 | new |",
        "| 2 | old |",
        "| 9 | new |",
    ]


def test_document_has_a_line_for_every_failure() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0]
    for failure in FAILURES:
        assert f"\n| {failure.number} | {failure.what} |" in table
