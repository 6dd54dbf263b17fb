"""Builds the wheel that users install, and environments that see it and nothing undeclared.

The one rule: nothing here needs an index. What the wheel depends on is linked from the environment
that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement

Opener = Callable[[Path], ProjectBuilder]

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(link.name for link in (ROOT / "src" / "shardnode").iterdir() if link.is_symlink())
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.egg-info", ".*_cache")


def copy_tree(base: Path) -> Path:
    """A copy of the tree, because setuptools writes into the one that it builds."""
    copy = base / "shardnode"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_COPIED)
    return copy


@contextmanager
def opener() -> Iterator[Opener]:
    """Opens a tree for building: with what is installed here if that is recent enough, else in an
    environment of its own, as pip would. An environment made by hand often has an old setuptools.
    """
    requires = ProjectBuilder(ROOT).build_system_requires
    if all(is_installed(Requirement(text)) for text in requires):
        yield ProjectBuilder
        return
    with DefaultIsolatedEnv() as environment:
        environment.install(requires)
        yield lambda tree: ProjectBuilder.from_isolated_env(environment, tree)


def is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(distribution(requirement.name).version)
    except PackageNotFoundError:
        return False


def install(wheel: Path, base: Path, *extras: str) -> Path:
    """The folder of programs of a fresh environment with the wheel and what it declares."""
    venv.EnvBuilder(symlinks=True).create(base / "venv")
    python = base / "venv" / "bin" / "python"
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    (dependencies := base / "dependencies").mkdir()
    for found in declared_dependencies("shardnode", wheel, *extras):
        expose(found, dependencies)
    (site,) = (base / "venv" / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return python.parent


def put_strangers(folder: Path) -> Path:
    """A user's folder with packages called like our rooms, none of which may be imported."""
    for room in ROOMS:
        (folder / room).mkdir()
        (folder / room / "__init__.py").write_text("raise RuntimeError('a stranger')\n")
    return folder


def declared_dependencies(name: str, wheel: Path, *extras: str) -> list[Distribution]:
    """The distributions that installing the wheel with these extras would bring."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    prefix = "Requires-Dist: "
    lines = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    wanted = [requirement for line in lines if applies(requirement := Requirement(line), *extras)]
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            more = map(Requirement, found[requirement.name].requires or [])
            wanted += filter(applies, more)
    assert found, f"{name} declares no dependencies at all, which cannot be right"
    return list(found.values())


def applies(requirement: Requirement, *extras: str) -> bool:
    """Whether it is wanted here, alone or for one of the extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def expose(found: Distribution, folder: Path) -> None:
    """Links what one distribution installed, so that nothing else of this environment is seen."""
    for name in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
        if not (folder / name).exists():
            (folder / name).symlink_to(Path(str(found.locate_file(name))))


def run(command: list[str | Path], folder: Path) -> str:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
