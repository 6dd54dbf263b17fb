"""What users install: a wheel with every room once under `shardnode/`, and nothing else.

The tree is copied and built with what `[build-system]` asks for, and the wheel is installed into an
empty environment that sees only the declared dependencies, so that an undeclared one fails here and
not at a user's. In an environment that `scripts/test` made, none of this needs an index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement

Opener = Callable[[Path], ProjectBuilder]

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(link.name for link in (ROOT / "src" / "shardnode").iterdir() if link.is_symlink())
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.egg-info", ".*_cache")
# Rooms that need an extra or the user's own pytest.
NEEDS_MORE = ("pipeline", "testing")

IMPORT_EVERYTHING = f"""
import importlib, pkgutil, shardnode
for module in pkgutil.walk_packages(shardnode.__path__, "shardnode."):
    if module.name.split(".")[1] not in {NEEDS_MORE!r} and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, because setuptools writes into the tree that it builds."""
    copy = tmp_path_factory.mktemp("tree") / "shardnode"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_COPIED)
    return copy


@pytest.fixture(scope="module")
def builder() -> Iterator[Opener]:
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


@pytest.fixture(scope="module")
def wheel(builder: Opener, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(builder(tree).build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and its declared dependencies."""
    base = tmp_path_factory.mktemp("installed")
    venv.EnvBuilder(symlinks=True).create(base / "venv")
    python = base / "venv" / "bin" / "python"
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    (dependencies := base / "dependencies").mkdir()
    for found in declared_dependencies("shardnode", wheel):
        expose(found, dependencies)
    (site,) = (base / "venv" / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return python.parent


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """A user's folder with packages called like our rooms, none of which may be imported."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise RuntimeError('a stranger')\n")
    return tmp_path


def declared_dependencies(name: str, wheel: Path) -> list[Distribution]:
    """The distributions that installing the wheel without extras would bring."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    prefix = "Requires-Dist: "
    wanted = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            wanted += found[requirement.name].requires or []
    assert found, f"{name} declares no dependencies at all, which cannot be right"
    return list(found.values())


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


def expected_files() -> list[str]:
    """Every module of every room, plus the few files that are data on purpose."""
    source = ROOT / "src"
    paths = [p for p in source.rglob("*") if p.suffix == ".py" or p.name == "py.typed"]
    for room in ROOMS:
        paths += [source / "shardnode" / p.relative_to(ROOT) for p in (ROOT / room).rglob("*.py")]
    paths += [source / "shardnode" / p.relative_to(ROOT) for p in ROOT.glob("configs/*.toml")]
    return sorted({p.relative_to(source).as_posix() for p in paths})


def test_wheel_holds_every_module_once_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert sorted(n for n in names if ".dist-info/" not in n) == expected_files()


def test_source_archive_builds_the_same_wheel(
    builder: Opener, tree: Path, wheel: Path, tmp_path: Path
) -> None:
    archive = builder(tree).build("sdist", tmp_path)
    with tarfile.open(archive) as opened:
        files = [member.name for member in opened.getmembers() if member.isfile()]
        # Python 3.11.0 to 3.11.3 have no filters yet; the archive is our own.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(tmp_path)
    assert not [name for name, count in Counter(files).items() if count > 1]
    top = {name.split("/")[1] for name in files}
    assert not top & {*ROOMS, ".venv", ".git", "docs", "scripts"}, "a room is in the archive twice"
    unpacked = tmp_path / Path(archive).name.removesuffix(".tar.gz")
    again = builder(unpacked).build("wheel", tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_editable_install_is_a_path_and_not_an_import_hook(
    builder: Opener, tree: Path, tmp_path: Path
) -> None:
    editable = builder(tree).build("editable", tmp_path)
    with zipfile.ZipFile(editable) as archive:
        (entry,) = (name for name in archive.namelist() if ".dist-info/" not in name)
        assert entry.endswith(".pth")
        assert archive.read(entry).decode().split() == [str(tree / "src")]


def test_rooms_are_not_shadowed_by_folders_of_the_same_name(
    bin_folder: Path, foreign_folder: Path
) -> None:
    rooms = "shardnode.raft, shardnode.storage, shardnode.wire, shardnode.sim"
    code = f"import {rooms}; print(shardnode.raft.__file__)"
    where = Path(run([bin_folder / "python", "-c", code], foreign_folder).strip())
    assert where.is_relative_to(bin_folder.parent)


def test_declared_dependencies_suffice_for_every_module(
    bin_folder: Path, foreign_folder: Path
) -> None:
    imported = run([bin_folder / "python", "-c", IMPORT_EVERYTHING], foreign_folder).split()
    assert {"shardnode.cli.main", *(f"shardnode.{r}" for r in ROOMS if r not in NEEDS_MORE)} <= {
        *imported
    }


def test_every_door_opens_the_same_program(bin_folder: Path, foreign_folder: Path) -> None:
    doors: list[list[str | Path]] = [
        [bin_folder / "shardnode"],
        [bin_folder / "node"],
        [bin_folder / "python", "-m", "shardnode"],
    ]
    answers = {run([*door, "--version"], foreign_folder) for door in doors}
    assert len(answers) == 1
    assert answers.pop().startswith("shardnode, version ")


def test_command_starts_without_what_it_does_not_need(bin_folder: Path, tmp_path: Path) -> None:
    code = "import sys, shardnode.cli.main; print(*sys.modules)"
    loaded = set(run([bin_folder / "python", "-c", code], tmp_path).split())
    assert "click" in loaded
    slow = {"asyncio", "lmdb", "msgpack", "pyarrow", "rich", "zmq"}
    assert not loaded & {*slow, *(f"shardnode.{room}" for room in ROOMS if room != "cli")}


def test_simulator_runs_from_the_installed_command(bin_folder: Path, foreign_folder: Path) -> None:
    assert run([bin_folder / "shardnode", "sim", "1"], foreign_folder)


def test_pytest_finds_the_fixtures_of_an_installed_wheel(
    bin_folder: Path, foreign_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the user's own pytest beside it, and nothing said about a plugin."""
    users = tmp_path_factory.mktemp("users-pytest")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        expose(distribution(name), users)
    (foreign_folder / "test_users.py").write_text(
        "def test_it(shardnode_node):\n"
        "    with shardnode_node.client() as db:\n"
        "        assert db.get(b'user:1') is None\n"
    )
    main = f"import sys; sys.path.append({str(users)!r}); import pytest; sys.exit(pytest.main())"
    assert "1 passed" in run([bin_folder / "python", "-c", main], foreign_folder)
