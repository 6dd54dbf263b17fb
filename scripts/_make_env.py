"""Makes the project's `.venv`; run by `scripts/_env` with any Python that is new enough.

Its one rule: the stamp is written last, so an environment with a valid stamp is whole. Only the
standard library is used here, because nothing else is installed yet; what only the slow path needs
is imported there, because `./shardnode` asks "is it ready?" on every start.

What is found in the stamp decides what happens:

    .venv                                           what is done
    ----------------------------------------------  -----------------------------------------------
    absent, or its Python does not run              made from nothing
    "incomplete": an earlier run was cut short      made from nothing: half a package may be in it
    made for another folder or another Python       made from nothing: its paths are wrong
    pyproject.toml changed, or an extra is missing  installed into: others may be running from it
    no stamp: somebody else made it                 installed into; it has a stamp from then on
    all as wanted                                   nothing
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAMP_NAME = "shardnode-stamp.json"
INCOMPLETE = "incomplete"
PIP_FINDER = Path(__file__).with_name("_pip_wheel.py")

# The Python a compiled package was built for; a new patch release does not change it.
PYTHON_TAG = f"{sys.implementation.cache_tag}-{sys.platform}-{os.uname().machine}"
PRINT_TAG = (
    "import os, sys; print(sys.implementation.cache_tag, sys.platform, os.uname().machine, sep='-')"
)


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an environment holds: enough to know whether it still fits."""

    root: str
    python: str
    pyproject: str
    extras: list[str]


def digest(root: Path) -> str:
    return hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest()


def read_stamp(environment: Path) -> Stamp | str | None:
    """The stamp; INCOMPLETE if the last run did not finish; None if there is no stamp at all."""
    try:
        text = (environment / STAMP_NAME).read_text()
    except FileNotFoundError:
        return None
    try:
        return Stamp(**json.loads(text))
    except (ValueError, TypeError):
        return INCOMPLETE


def write_stamp(environment: Path, stamp: Stamp | str) -> None:
    """Atomically, so that a crash leaves the old stamp or the new one."""
    text = stamp if isinstance(stamp, str) else json.dumps(asdict(stamp), indent=1)
    partial = environment / f"{STAMP_NAME}.{os.getpid()}"
    partial.write_text(text + "\n")
    partial.replace(environment / STAMP_NAME)


def plan(found: Stamp | str | None, wanted: Stamp, python: str | None) -> str:
    """`ready`, `update` or `rebuild`; `python` is the tag of .venv's own Python, None if broken."""
    if python is None or found == INCOMPLETE:
        return "rebuild"
    if not isinstance(found, Stamp):
        return "update"
    if (found.root, found.python, python) != (wanted.root, wanted.python, wanted.python):
        return "rebuild"
    if found.pyproject != wanted.pyproject or not set(wanted.extras) <= set(found.extras):
        return "update"
    return "ready"


def tag_of(python: Path) -> str | None:
    """The tag of a Python, or None if it does not run."""
    try:
        done = subprocess.run([python, "-I", "-S", "-c", PRINT_TAG], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def say(text: str) -> None:
    print(f"shardnode: {text}", file=sys.stderr, flush=True)


def run(command: list[str | Path], *, cwd: Path | None = None) -> bool:
    """Runs a step of set-up. Its output goes to standard error: our caller's output is data."""
    # PIP_USER would send packages past the environment into the user's home.
    environ = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, cwd=cwd, env=environ, stdout=sys.stderr).returncode == 0


def has_pip(python: Path) -> bool:
    command: list[str | Path] = [python, "-I", "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True).returncode == 0


def give_pip(python: Path, *, quiet: bool) -> None:
    """Puts pip into an environment that has none, by the first means that this machine offers."""
    import tempfile

    command: list[str | Path] = [python, "-I", "-m", "ensurepip", "--default-pip"]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return
    if not quiet:
        say("this Python has no ensurepip that works; looking for pip's own wheel")
    with tempfile.TemporaryDirectory() as folder:
        if not run([sys.executable, PIP_FINDER, folder]):
            raise SetupError("no pip for the new environment; the lines above say what to do")
        (wheel,) = Path(folder).glob("pip-*.whl")
        # A wheel is a zip file, and Python runs the pip inside it.
        silent = ["-qq"] if quiet else []
        itself: list[str | Path] = [python, "-I", wheel / "pip", "install", *silent]
        if not run([*itself, "--no-index", "--no-deps", wheel]):
            raise SetupError(f"{wheel.name} could not install itself; see above")


def install(root: Path, python: Path, extras: list[str], *, quiet: bool) -> None:
    """Installs the project from its tree, and proves that the tree itself is on the path."""
    target = f".[{','.join(extras)}]" if extras else "."
    command: list[str | Path] = [python, "-I", "-m", "pip", "install", "--no-input"]
    if not run([*command, *(["-qq"] if quiet else []), "--editable", target], cwd=root):
        raise SetupError("pip failed (see above); mend that and run the same command again")
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([python, "-I", "-c", show], text=True).strip()
    lines = {line for f in Path(site).glob("*.pth") for line in f.read_text().splitlines()}
    if str(root / "src") not in lines:
        # An import hook would hide src/pyspark_*.py, which Spark looks for by listing the path.
        raise SetupError(f"the editable install put no path to {root / 'src'} into {site}")


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keeps a second run out of the same tree until this one is done."""
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is preparing .venv; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            say(f"cannot lock {root} ({error}); do not run two set-ups at once")
        yield
    finally:
        os.close(handle)


def make(root: Path, extras: list[str], *, quiet: bool, python: str | None) -> None:
    """Leaves a complete environment. `python` is the tag that the user asked for, if any."""
    environment = root / ".venv"
    own_python = environment / "bin" / "python"
    with alone(root):
        tag = tag_of(own_python)
        found = read_stamp(environment)
        wanted = Stamp(str(root), python or tag or PYTHON_TAG, digest(root), sorted(set(extras)))
        step = plan(found, wanted, tag)
        if step == "ready":
            return
        if found is None and tag not in (None, wanted.python):
            raise SetupError(f"{environment} is not ours and is for {tag}; move it away first")
        say(f"preparing .venv ({', '.join(['shardnode', *wanted.extras])}); this can take a minute")
        if step == "rebuild":
            wanted = Stamp(wanted.root, PYTHON_TAG, wanted.pyproject, wanted.extras)
            start_over(environment, quiet=quiet)
        elif isinstance(found, Stamp) and found.pyproject == wanted.pyproject:
            both = sorted({*found.extras, *wanted.extras})
            wanted = Stamp(wanted.root, wanted.python, wanted.pyproject, both)
        if found is not None:
            write_stamp(environment, INCOMPLETE)
        if not has_pip(own_python):
            give_pip(own_python, quiet=quiet)
        try:
            install(root, own_python, sorted(set(extras)), quiet=quiet)
        except SetupError:
            # pip gave up in an orderly way, say for want of a network: what was there still is.
            if step == "update" and found is not None:
                write_stamp(environment, found)
            raise
        write_stamp(environment, wanted)
        if not quiet:
            say("ready")


def start_over(environment: Path, *, quiet: bool) -> None:
    """An empty environment, marked incomplete from its first moment."""
    import shutil

    try:
        import venv
    except ImportError as error:  # some systems split even this off
        raise SetupError(f"{sys.executable} lacks the venv module; install it") from error
    if not quiet:
        say(f"making {environment} with Python {sys.version.split()[0]}")
    if environment.is_symlink():
        environment.unlink()
    elif environment.exists():
        shutil.rmtree(environment)
    environment.mkdir()
    write_stamp(environment, INCOMPLETE)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(environment)


def main(argv: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(description="Makes the project's .venv.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="an extra of pyproject.toml")
    parser.add_argument("--quiet", action="store_true", help="say little")
    parser.add_argument("--check", action="store_true", help="only tell whether there is work")
    options = parser.parse_args(argv)
    if options.check:
        wanted = Stamp(str(ROOT), PYTHON_TAG, digest(ROOT), options.extras)
        return 0 if plan(read_stamp(ROOT / ".venv"), wanted, PYTHON_TAG) == "ready" else 1
    asked = PYTHON_TAG if os.environ.get("SHARDNODE_PYTHON") else None
    try:
        make(ROOT, options.extras, quiet=options.quiet, python=asked)
    except (SetupError, OSError) as error:
        say(f"set-up failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("set-up interrupted; the next run starts it again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
