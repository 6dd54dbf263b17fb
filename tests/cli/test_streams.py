"""Pipes that close, interrupts, watches: what a shell sees of a command that is cut short."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import pytest

from tests.cli.conftest import Kv
from tests.cli.kit import COMMAND, Running, environment, run


@pytest.fixture
def many_keys(shardnode: Kv, prefix: str) -> str:
    """The prefix of more keys than a pipe holds."""
    lines = [json.dumps({"key": f"{prefix}{n:05}", "value": "v" * 200}) for n in range(3_000)]
    done = shardnode("kv", "import", "-", stdin="\n".join(lines).encode())
    assert done.returncode == 0, done.stderr
    return prefix


@pytest.mark.parametrize("words", [["kv", "scan"], ["kv", "scan", "--json"], ["kv", "export", "-"]])
def test_closed_pipe_is_silent(words: list[str], many_keys: str, address: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, *words, "--prefix", many_keys, "--connect", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 1
    process.stderr.close()


@pytest.mark.parametrize("words", [["--version"], ["explain", "k"], ["kv", "put", "pipe", "1"]])
def test_pipe_that_was_never_read_is_silent(words: list[str], address: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, *words],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment({"SHARDNODE_CONNECT": address}),
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a full disk at hand")
def test_full_disk_is_told(address: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "status", "--connect", address],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    assert done.returncode == 1
    assert done.stderr == b"Error: No space left on device\n"


def test_watch_shows_changes_and_ends_with_130(shardnode: Kv, prefix: str, address: str) -> None:
    key = f"{prefix}k"
    with Running("kv", "watch", "--prefix", prefix, "--connect", address) as watch:
        watch.until(lambda each: b"watching" in each.err)
        version = shardnode("kv", "put", key, "1").stdout.decode().strip()
        watch.until(lambda each: each.out.count(b"\n") == 1)
        shardnode("kv", "del", key)
        shardnode("kv", "put", "other", "1")
        watch.until(lambda each: each.out.count(b"\n") == 2)
        assert watch.signal(signal.SIGINT) == 130
    put, deleted = watch.out.decode().splitlines()
    assert put == f"put\t{version}\t{key}\t1"
    assert deleted.startswith("delete\t")
    assert b"shardnode kv watch --from w" in watch.err
    assert b"Traceback" not in watch.err


def test_watch_goes_on_behind_a_cursor(shardnode: Kv, prefix: str, address: str) -> None:
    words = ("kv", "watch", "--prefix", prefix, "--connect", address, "--json")
    with Running(*words) as watch:
        # In JSON nothing tells when it has begun, so one key is put until it is seen.
        def seen(each: Running) -> bool:
            shardnode("kv", "put", f"{prefix}a", "0")
            return b"\n" in each.out

        watch.until(seen)
        assert watch.signal(signal.SIGINT) == 130
        assert watch.err.strip() == b""
    last = json.loads(watch.out.splitlines()[-1])
    assert last.keys() == {"kind", "key", "value", "version", "cursor"}
    assert (last["kind"], last["key"], last["value"]) == ("put", f"{prefix}a", "0")
    shardnode("kv", "put", f"{prefix}b", "1")
    shardnode("kv", "del", f"{prefix}b")
    with Running(*words, "--from", last["cursor"]) as watch:
        watch.until(lambda each: b'"delete"' in each.out)
    after = [json.loads(line) for line in watch.out.splitlines()]
    assert [(each["kind"], each["value"]) for each in after if each["key"] == f"{prefix}b"] == [
        ("put", "1"),
        ("delete", None),
    ]
    assert all(each["version"] > last["version"] for each in after if each["key"] == last["key"])


def test_bad_cursor_ends_with_2(shardnode: Kv) -> None:
    done = shardnode("kv", "watch", "--from", "nonsense")
    assert (done.returncode, done.stdout) == (2, b"")


def test_interrupt_of_a_waiting_command_ends_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Running("kv", "get", "k", "--connect", address) as get:
            silent.accept()  # from here on the command is connected and waits
            assert get.signal(signal.SIGINT) == 130
        assert get.out == b""
        assert b"Traceback" not in get.err


def test_output_is_plain_when_nobody_looks(address: str) -> None:
    for words in (["status"], ["explain", "k"], ["-h"]):
        done = run(*words, env={"SHARDNODE_CONNECT": address, "FORCE_COLOR": ""})
        assert done.returncode == 0
        assert b"\x1b" not in done.stdout + done.stderr
