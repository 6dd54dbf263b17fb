"""The command line itself: help and version everywhere, options in any place, quick to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import environment, error_of, run

ROOT = Path(__file__).resolve().parents[2]
LINES: list[list[str]] = [
    [],
    ["start"],
    ["demo"],
    ["status"],
    ["health"],
    ["explain"],
    ["config"],
    ["config", "show"],
    ["job"],
    ["job", "list"],
    ["kv"],
    *(["kv", name] for name in ("put", "get", "del", "scan", "watch", "import", "export")),
]
HEAVY = "zmq rich msgpack orjson psutil shardnode.client shardnode.node shardnode.wire"


MORE: list[list[str]] = [["kv", "cas"], ["sim"], ["job", "run"], ["job", "run", "export"]]


@pytest.mark.parametrize("line", [*LINES, *MORE], ids=" ".join)
def test_help_is_everywhere(line: list[str]) -> None:
    done = run(*line, "-h")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.lower().startswith(b"usage:")
    assert run(*line, "--help").stdout == done.stdout


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_version_is_everywhere_but_where_it_is_a_key_s(line: list[str]) -> None:
    done = run(*line, "--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"shardnode, version ")


@pytest.mark.parametrize("words", [["--version"], ["-h"]])
def test_version_and_help_import_nothing_heavy(words: list[str]) -> None:
    program = f"""
import sys
from shardnode.cli.main import main
try:
    main({words!r})
except SystemExit as end:
    assert not end.code
loaded = [name for name in {HEAVY.split()!r} if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_kv_command_imports_no_server_and_no_table_drawing() -> None:
    program = """
import sys
from shardnode.cli.main import main
try:
    main(["kv", "get", "k", "--connect", "127.0.0.1:1"])
except SystemExit as end:
    assert end.code == 4, end.code
loaded = [n for n in sys.modules if n == "rich" or n.startswith(("shardnode.node", "waitress"))]
assert not loaded, loaded
assert "zmq" in sys.modules
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_program_is_the_same_program() -> None:
    folder = Path(sys.executable).parent
    for name in ("shardnode", "node"):
        done = subprocess.run([folder / name, "--version"], capture_output=True, env=environment())
        assert done.stdout.startswith(b"shardnode, version ")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["kv", "nonsense"], ["kv", "put", "k"], ["kv", "get", "--nonsense"]]
)
def test_wrong_usage_ends_with_2_and_an_empty_stdout(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Error: " in done.stderr


@pytest.mark.parametrize(
    "words",
    [["--json", "nonsense"], ["kv", "--json", "put", "k"], ["kv", "get", "--nonsense", "--json"]],
)
def test_wrong_usage_in_json_is_one_object(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    error = error_of(done)
    assert (error["code"], error["retryable"]) == ("invalid_request", False)


def test_option_without_its_value_is_named() -> None:
    done = run("kv", "put", "k", "v", "--ttl")
    assert done.returncode == 2
    assert b"'--ttl' requires an argument" in done.stderr


def test_nothing_listening_ends_at_once_with_4_and_says_how_to_start() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardnode", "kv", "get", "k", "--connect", "127.0.0.1:1"],
        capture_output=True,
        env=environment(),
        timeout=4,  # the client's own patience is 5 seconds
    )
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"nothing listens at 127.0.0.1:1" in done.stderr
    assert b"shardnode start" in done.stderr


def test_nothing_listening_in_json() -> None:
    done = run("--json", "--connect", "127.0.0.1:1", "status")
    assert done.returncode == 4
    error = error_of(done)
    assert (error["code"], error["retryable"]) == ("unavailable", True)


@pytest.mark.parametrize(
    "words",
    [
        ["--connect", "127.0.0.1:1", "kv", "get", "k"],
        ["kv", "--connect", "127.0.0.1:1", "get", "k"],
        ["kv", "get", "k", "--connect", "127.0.0.1:1"],
        ["kv", "get", "--connect=127.0.0.1:1", "k"],
        ["--connect", "127.0.0.1:2", "kv", "get", "k", "--connect", "127.0.0.1:1"],
    ],
)
def test_connect_stands_anywhere_and_the_last_one_wins(words: list[str]) -> None:
    done = run(*words, env={"SHARDNODE_CONNECT": "127.0.0.1:3"})
    assert done.returncode == 4
    assert b"127.0.0.1:1;" in done.stderr


def test_bad_address_ends_with_2() -> None:
    done = run("status", "--connect", "nowhere")
    assert done.returncode == 2
    assert b"host:port" in done.stderr


def test_completion_is_click_s_own() -> None:
    script = run(env={"_SHARDNODE_COMPLETE": "bash_source"})
    assert script.returncode == 0
    assert b"_SHARDNODE_COMPLETE=bash_complete" in script.stdout
    asked = {
        "_SHARDNODE_COMPLETE": "bash_complete",
        "COMP_WORDS": "shardnode he",
        "COMP_CWORD": "1",
    }
    assert run(env=asked).stdout == b"plain,health\n"
    asked |= {"COMP_WORDS": "shardnode kv p"}
    assert run(env=asked | {"COMP_CWORD": "2"}).stdout == b"plain,put\n"


def test_completion_line_is_documented() -> None:
    line = 'eval "$(_SHARDNODE_COMPLETE=bash_source shardnode)"'
    assert line.encode() in run("-h").stdout
    assert line in (ROOT / "README.md").read_text()
