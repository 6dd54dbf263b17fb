"""What users install: a wheel with every room once under `shardnode/`, and nothing else.

The tree is copied and built with what `[build-system]` asks for, and the wheel is installed into an
empty environment that sees only the declared dependencies, so that an undeclared one fails here and
not at a user's. In an environment that `scripts/test` made, none of this needs an index.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.wheels import ROOMS, ROOT, Opener, copy_tree, expose, install, opener, put_strangers, run

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
    return copy_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def builder() -> Iterator[Opener]:
    with opener() as found:
        yield found


@pytest.fixture(scope="module")
def wheel(builder: Opener, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(builder(tree).build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and its declared dependencies."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    return put_strangers(tmp_path)


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
