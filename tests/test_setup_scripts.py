"""The set-up scripts on machines that lack things, without installing anything from an index.

Most tests run in a small tree with the real scripts and a stub pip, which notes what it was asked
for. Where pip's own wheel matters, it is zipped together from the pip that is installed here.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

import _make_env
import _pip_wheel
from _make_env import INCOMPLETE, PYTHON_TAG, SetupError, Stamp, plan, read_stamp, write_stamp
from tests.chains import cores

ROOT = Path(__file__).resolve().parents[1]
BASH = shutil.which("bash") or "bash"
COMMANDS = (
    ".ci/run",
    "shardnode",
    *(f"scripts/{n}" for n in ["lint", "mutants", "sim", "soak", "start", "test"]),
)

# An editable install, as far as the scripts can see: a note, a pause, and a path.
STUB_PIP = """
import os, pathlib, sys, sysconfig, time
if "install" in sys.argv:
    with open("calls.txt", "a") as calls:
        calls.write(sys.argv[-1] + "\\n")
    time.sleep(float(os.environ.get("STUB_SLEEP", "0")))
    if "STUB_FAIL" in os.environ:
        sys.exit("no network")
    if "STUB_HOOK" not in os.environ:
        target = pathlib.Path(sysconfig.get_path("purelib"), "stub.pth")
        target.write_text(os.path.join(os.getcwd(), "src") + "\\n")
"""
NO_ENSUREPIP = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ensurepip":
            raise ModuleNotFoundError("No module named 'ensurepip'")
sys.meta_path.insert(0, Hide())
"""
SAY_WORDS = """
import os, pathlib, sys
print(pathlib.Path(__file__).stem, *sys.argv[1:])
sys.exit("STUB_FAIL" in os.environ)
"""


def site_packages(python: Path) -> Path:
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    return site


def plant_stub_pip(python: Path, *, quiet: bool) -> None:  # noqa: ARG001
    (package := site_packages(python) / "pip").mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STUB_PIP)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the real scripts, tools that only say what they were asked, and no .venv."""
    monkeypatch.setattr(_make_env, "give_pip", plant_stub_pip)
    for name in ("SHARDNODE_PYTHON", "PYTHONPATH", "STUB_FAIL", "STUB_HOOK", "STUB_SLEEP"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path.resolve() / "a tree"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / ".ci", root / ".ci")
    shutil.copy(ROOT / "shardnode", root)
    (root / "pyproject.toml").write_text("# first\n")
    (root / "src" / "shardnode").mkdir(parents=True)
    for tool in ("pytest", "ruff", "mypy", "shardnode/sim"):
        (root / "src" / f"{tool}.py").write_text(SAY_WORDS)
    return root


def make(root: Path, *extras: str, python: str | None = None) -> None:
    _make_env.make(root, list(extras), quiet=True, python=python)


def calls(root: Path) -> list[str]:
    """What pip was asked to install, so far."""
    return (root / "calls.txt").read_text().split() if (root / "calls.txt").exists() else []


def bash(root: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, "-c", code], cwd=root, env={**os.environ, **environ}, capture_output=True, text=True
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with nothing but what `_env` itself calls."""
    (folder := tmp_path / "programs").mkdir()
    (folder / "dirname").symlink_to(shutil.which("dirname") or "dirname")
    return folder


def add_python(programs: Path, name: str, answer: str, code: int) -> None:
    (programs / name).write_text(f"#!{BASH}\n{answer and f'echo {answer}'}\nexit {code}\n")
    (programs / name).chmod(0o755)


def find_python(programs: Path, asked: Path | str = "") -> subprocess.CompletedProcess[str]:
    code = ". scripts/_env && find_python"
    return bash(ROOT, code, PATH=str(programs), SHARDNODE_PYTHON=str(asked))


def test_newest_python_that_runs_is_taken(programs: Path) -> None:
    add_python(programs, "python3", "3.11.2", 0)
    add_python(programs, "python3.12", "3.12.1", 0)
    add_python(programs, "python3.14", "", 127)  # a pyenv shim of a version that is not chosen
    assert find_python(programs).stdout == "python3.12\n"


def test_plain_python3_is_taken_when_it_is_new_enough(programs: Path) -> None:
    add_python(programs, "python3", "3.15.0", 0)
    assert find_python(programs).stdout == "python3\n"


def test_old_python_is_refused_with_its_version(programs: Path) -> None:
    add_python(programs, "python3", "3.9.2", 1)
    done = find_python(programs)
    assert (done.returncode, done.stdout) == (1, "")
    assert "python3: 3.9.2" in done.stderr
    assert "python3.14: not found" in done.stderr


def test_python_asked_for_is_taken_alone(programs: Path, tmp_path: Path) -> None:
    add_python(programs, "python3.14", "3.14.0", 0)
    (folder := tmp_path / "my pythons").mkdir()
    add_python(folder, "python", "3.11.0", 0)
    assert find_python(programs, folder / "python").stdout == f"{folder / 'python'}\n"
    add_python(folder, "python", "3.10.0", 1)
    assert find_python(programs, folder / "python").returncode == 1


def test_real_python_understands_the_question(programs: Path) -> None:
    assert find_python(programs, sys.executable).stdout == f"{sys.executable}\n"


WANTED = Stamp("root", "tag", "digest", ["dev"])


@pytest.mark.parametrize(
    ("found", "python", "expected"),
    [
        (WANTED, "tag", "ready"),
        (Stamp("root", "tag", "digest", ["dev", "spark"]), "tag", "ready"),
        (None, None, "rebuild"),
        (WANTED, None, "rebuild"),
        (INCOMPLETE, "tag", "rebuild"),
        (WANTED, "other tag", "rebuild"),
        (Stamp("root", "other tag", "digest", ["dev"]), "tag", "rebuild"),
        (Stamp("other root", "tag", "digest", ["dev"]), "tag", "rebuild"),
        (Stamp("root", "tag", "other digest", ["dev"]), "tag", "update"),
        (Stamp("root", "tag", "digest", []), "tag", "update"),
        (None, "tag", "update"),
    ],
)
def test_stamp_decides(found: Stamp | str | None, python: str | None, expected: str) -> None:
    assert plan(found, WANTED, python) == expected


@pytest.mark.parametrize("text", ["", "incomplete", "{", "[]", '{"root": "x"}', '"x"'])
def test_stamp_that_is_not_whole_counts_as_incomplete(text: str, tmp_path: Path) -> None:
    assert read_stamp(tmp_path) is None
    (tmp_path / _make_env.STAMP_NAME).write_text(text)
    assert read_stamp(tmp_path) == INCOMPLETE


def test_stamp_survives_the_round_trip_and_leaves_no_scraps(tmp_path: Path) -> None:
    write_stamp(tmp_path, WANTED)
    assert read_stamp(tmp_path) == WANTED
    assert len(list(tmp_path.iterdir())) == 1


def test_fresh_tree_is_installed_once(tree: Path) -> None:
    make(tree, "dev")
    assert calls(tree) == [".[dev]"]
    done = bash(tree, ". scripts/_env && make_env dev && make_env")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert calls(tree) == [".[dev]"]


def test_server_alone_is_installed_without_extras(tree: Path) -> None:
    make(tree)
    assert calls(tree) == ["."]
    assert bash(tree, ". scripts/_env && make_env dev").returncode == 0
    assert calls(tree) == [".", ".[dev]"]
    assert bash(tree, ". scripts/_env && make_env").stderr == ""


def test_changed_pyproject_is_installed_into_the_same_environment(tree: Path) -> None:
    make(tree, "dev")
    (tree / ".venv" / "witness").touch()
    (tree / "pyproject.toml").write_text("# second\n")
    done = bash(tree, ". scripts/_env && make_env")
    assert done.stdout == ""
    assert "preparing .venv" in done.stderr
    assert (tree / ".venv" / "witness").exists()
    # `dev` was installed for the old file; nobody knows whether it still fits.
    assert bash(tree, ". scripts/_env && make_env dev").returncode == 0
    assert calls(tree) == [".[dev]", ".", ".[dev]"]


def test_install_that_was_cut_short_is_made_from_nothing(tree: Path) -> None:
    make(tree, "dev")
    (tree / ".venv" / "witness").touch()
    write_stamp(tree / ".venv", INCOMPLETE)
    make(tree, "dev")
    assert not (tree / ".venv" / "witness").exists()
    assert calls(tree) == [".[dev]", ".[dev]"]


def test_killed_install_leaves_no_valid_stamp(tree: Path) -> None:
    make(tree)
    process = subprocess.Popen(
        [sys.executable, tree / "scripts" / "_make_env.py", "dev"],
        env={**os.environ, "STUB_SLEEP": "60"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while len(calls(tree)) < 2:
        time.sleep(0.01)
    os.killpg(process.pid, 9)
    process.wait()
    assert read_stamp(tree / ".venv") == INCOMPLETE


def test_failed_first_install_is_not_stamped(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAIL", "1")
    with pytest.raises(SetupError, match="run the same command again"):
        make(tree, "dev")
    assert read_stamp(tree / ".venv") == INCOMPLETE


def test_failed_update_keeps_the_environment_that_worked(tree: Path) -> None:
    make(tree)
    done = bash(tree, ". scripts/_env && make_env dev", STUB_FAIL="1")
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert bash(tree, ". scripts/_env && make_env").stderr == ""


def test_import_hook_instead_of_a_path_is_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_HOOK", "1")
    with pytest.raises(SetupError, match="no path to"):
        make(tree)


def test_moved_tree_gets_an_environment_of_its_own(tree: Path) -> None:
    make(tree, "dev")
    (tree / ".venv" / "witness").touch()
    moved = tree.rename(tree.with_name("moved"))
    make(moved, "dev")
    assert not (moved / ".venv" / "witness").exists()
    assert bash(moved, ". scripts/_env && make_env dev").stderr == ""


def test_environment_of_somebody_else_is_kept(tree: Path) -> None:
    venv.EnvBuilder(symlinks=True).create(tree / ".venv")
    (tree / ".venv" / "witness").touch()
    with pytest.raises(SetupError, match="not ours"):
        make(tree, "dev", python="cpython-399")
    make(tree, "dev")
    assert (tree / ".venv" / "witness").exists()
    assert read_stamp(tree / ".venv") == Stamp(
        str(tree), PYTHON_TAG, hashlib.sha256(b"# first\n").hexdigest(), ["dev"]
    )


def test_environment_whose_python_is_gone_is_made_again(tree: Path) -> None:
    make(tree)
    for name in ("python", "python3"):
        (tree / ".venv" / "bin" / name).unlink(missing_ok=True)
        (tree / ".venv" / "bin" / name).symlink_to(tree / "gone")
    make(tree)
    assert calls(tree) == [".", "."]
    assert bash(tree, ". scripts/_env && make_env").stderr == ""


def test_two_runs_at_once_install_once(tree: Path) -> None:
    make(tree)
    one = "(make_env dev && echo made)"
    done = bash(tree, f". scripts/_env; {one} & {one} & wait", STUB_SLEEP="0.5")
    assert done.stdout == "made\nmade\n"
    assert calls(tree) == [".", ".[dev]"]


@pytest.mark.parametrize("name", [*COMMANDS, "scripts/_env"])
def test_script_is_sound_shell(name: str) -> None:
    assert subprocess.run([BASH, "-n", ROOT / name]).returncode == 0
    assert os.access(ROOT / name, os.X_OK) == (name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("scripts/sim --seeds 10 'a b'", ["sim --seeds 10 a b"]),
        ("scripts/test -n 3 -k raft", ["pytest -n 3 -k raft"]),
        ("scripts/test -p no:xdist", ["pytest -p no:xdist"]),
        ("scripts/test --pdb", ["pytest --pdb"]),
        ("scripts/lint", ["ruff check .", "ruff format --check .", "mypy"]),
        ("scripts/lint --fix", ["ruff check --fix .", "ruff format .", "mypy"]),
    ],
)
def test_words_are_passed_on(command: str, expected: list[str], tree: Path) -> None:
    make(tree, "dev")
    assert bash(tree, command).stdout.splitlines() == expected


@pytest.mark.parametrize("command", ["scripts/test", ".ci/run"])
def test_tests_run_on_every_usable_core(command: str, tree: Path) -> None:
    make(tree, "dev")
    told = bash(tree, f"{command} -k x").stdout
    assert told == f"pytest -n {cores() + 1} --dist loadgroup -k x\n"


def test_lint_runs_every_tool_and_fails_if_one_does(tree: Path) -> None:
    make(tree, "dev")
    done = bash(tree, "scripts/lint", STUB_FAIL="1")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 3)
    assert bash(tree, "scripts/lint --fox").returncode == 2


def test_launcher_works_through_a_link_and_stays_in_its_folder(tree: Path, tmp_path: Path) -> None:
    make(tree)
    add_python(tree / ".venv" / "bin", "shardnode", '"$PWD $*"', 7)
    (tmp_path / "link").symlink_to("a tree/shardnode")
    done = bash(tmp_path, "./link kv get k")
    assert (done.returncode, done.stdout) == (7, f"{tmp_path} kv get k\n")


@pytest.fixture(scope="module")
def pip_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pip that is installed here, as the wheel it came from."""
    pip = distribution("pip")
    files = [f for f in pip.files or [] if f.parts[0] != ".." and "__pycache__" not in f.parts]
    wheel = tmp_path_factory.mktemp("pip") / f"pip-{pip.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            if file.name != "RECORD":
                archive.write(str(file.locate()), str(file))
        archive.writestr(f"pip-{pip.version}.dist-info/RECORD", "".join(f"{f},,\n" for f in files))
    return wheel


@pytest.fixture
def index(pip_wheel: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a package index that has pip, and worse wheels of it."""
    (page := tmp_path / "simple" / "pip").mkdir(parents=True)
    shutil.copy(pip_wheel, page)
    digest = hashlib.sha256(pip_wheel.read_bytes()).hexdigest()
    (page / "index.html").write_text(
        f'<a href="{pip_wheel.name}#sha256={digest}" data-requires-python="&gt;=3.8">pip</a>'
        '<a href="pip-98.0-py3-none-any.whl" data-requires-python="&gt;=3.99">too new</a>'
        '<a href="pip-97.0-py3-none-any.whl" data-yanked="broken">withdrawn</a>'
        '<a href="pip-96.0b1-py3-none-any.whl">unfinished</a><a href="pip-95.0.tar.gz">source</a>'
    )
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def test_environment_without_ensurepip_gets_pip_from_its_wheel(
    pip_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.EnvBuilder(symlinks=True).create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    (site_packages(python) / "sitecustomize.py").write_text(NO_ENSUREPIP)
    finder = tmp_path / "finder.py"
    finder.write_text(f"import shutil, sys\nshutil.copy({str(pip_wheel)!r}, sys.argv[1])\n")
    monkeypatch.setattr(_make_env, "PIP_FINDER", finder)
    assert not _make_env.has_pip(python)
    _make_env.give_pip(python, quiet=True)
    assert _make_env.has_pip(python)


@pytest.mark.parametrize("source", ["index", "configuration", "folder", "local index"])
def test_pip_is_found_where_pip_is_configured_to_look(
    source: str, index: str, pip_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "index": {"PIP_INDEX_URL": index},
        "configuration": {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")},
        "folder": {"PIP_FIND_LINKS": str(pip_wheel.parent), "PIP_NO_INDEX": "1"},
        "local index": {"PIP_EXTRA_INDEX_URL": (tmp_path / "simple").as_uri()},
    }
    (tmp_path / "pip.conf").write_text(f"[global]\nextra-index-url =\n  {index}\n")
    only(monkeypatch, settings[source])
    (folder := tmp_path / "found").mkdir()
    assert _pip_wheel.from_configured_sources(folder).read_bytes() == pip_wheel.read_bytes()


def only(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Leaves pip no settings but these."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(
        _pip_wheel, "configuration_files", lambda env: filter(None, [env.get("PIP_CONFIG_FILE")])
    )
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def test_damaged_wheel_is_refused_without_telling_the_password(
    index: str, pip_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simple" / "pip" / pip_wheel.name).write_bytes(b"damaged")
    only(monkeypatch, {"PIP_INDEX_URL": index})
    with pytest.raises(_pip_wheel.NotFound, match="the index says") as caught:
        _pip_wheel.from_configured_sources(tmp_path)
    assert "secret" not in str(caught.value)


def test_machine_with_nothing_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, {"PATH": str(tmp_path)})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: None)
    assert _pip_wheel.main([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "set PIP_INDEX_URL" in told
    assert "no other pip on this machine" in told
    assert "no package index is configured" in told
