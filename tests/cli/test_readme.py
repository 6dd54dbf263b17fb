"""The README's commands work as they stand there."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.kit import ANY_PORTS, Running, environment, run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


# What the scripts do after they have made the environment; tests/test_setup_scripts.py runs them.
PROGRAMS: dict[str, list[str]] = {"./shardnode": [], "scripts/start": ["start", "--shards", "4"]}


def commands_of(block: str) -> list[list[str]]:
    """The words that `shardnode` gets, line by line."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [[*PROGRAMS[words[0]], *words[1:]] for words in lines]


FIRST, SECOND = (commands_of(text) for _, text in BLOCKS[:2])
PYTHON = [text for language, text in BLOCKS if language == "python"]
[JOBS] = [commands_of(text) for _, text in BLOCKS if "job list" in text]
[STREAMS] = [text for _, text in BLOCKS if "topic create" in text]


def test_first_terminal_shows_the_demo_and_starts_a_node() -> None:
    assert [words[0] for words in FIRST] == ["demo", "start"]
    assert len(SECOND) > 5


def test_second_terminal_and_python(tmp_path: Path) -> None:
    python = PYTHON[0]
    with Running(*FIRST[1], *ANY_PORTS, cwd=tmp_path) as node:
        shards, address = node.ready()
        assert shards == 4
        env = {"SHARDNODE_CONNECT": address}
        for words in SECOND:
            if "watch" in words:
                with Running(*words, env=env) as watch:
                    watch.until(lambda each: b"watching" in each.err)
                    assert watch.signal(signal.SIGINT) == 130
                continue
            done = run(*words, env=env, cwd=tmp_path)
            assert done.returncode == 0, (words, done.stderr)
        assert b"b'user:1' b'Grace'" in run_python(python, address)
    assert (tmp_path / "users.jsonl").read_bytes().count(b"\n") == 3


def run_python(text: str, address: str) -> bytes:
    """What a program of the README prints, with a node of ours."""
    program = text.replace('"127.0.0.1:7400"', repr(address))
    assert program != text
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_streams_in_the_shell_and_in_python(address: str, tmp_path: Path) -> None:
    script = STREAMS.replace("./shardnode", shlex.join([sys.executable, "-P", "-m", "shardnode"]))
    assert script != STREAMS
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        capture_output=True,
        env=environment({"SHARDNODE_CONNECT": address}),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"shop/orders\n2\ntea\ncake\n")
    shown = run_python(PYTHON[1], address)
    assert shown.count(b"\n") == 4
    assert b"b'customer-7' b'coffee'" in shown


def test_jobs_are_lines_that_the_command_understands() -> None:
    """What they do is seen in tests/spark; a session for each of them would take a minute."""
    from shardnode.cli.job import run_command

    assert JOBS[0] == ["job", "list"]
    assert run(*JOBS[0]).returncode == 0
    names = []
    for job, does, name, *words in JOBS[1:]:
        assert (job, does) == ("job", "run")
        run_command.commands[name].make_context(name, words)
        names.append(name)
    assert sorted(names) == sorted(run_command.commands)


def test_every_program_and_document_named_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 3
    assert [name for name in (*PROGRAMS, *links) if not (ROOT / name).exists()] == []


def test_exit_codes_are_those_of_the_code() -> None:
    from shardnode.cli.errors import EXIT_CODES, EXIT_INTERRUPT

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert listed == {0, 1, EXIT_INTERRUPT, *EXIT_CODES.values()}
