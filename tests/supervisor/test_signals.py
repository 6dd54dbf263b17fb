"""A node as `shardnode start` runs it: the ready line, signals, and sudden death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.supervisor.kit import fake_node, is_gone, until

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"^ready: (\d+) shards on (\S+)$", re.MULTILINE)


class Started:
    """The process, and what it has written to standard error so far."""

    def __init__(self, data: Path, *troubles: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.supervisor.run_node", str(data), *troubles],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self._chunks.append(chunk)

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode()

    def children(self) -> list[int]:
        return [each.pid for each in psutil.Process(self.process.pid).children()]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def started(data: Path, *troubles: str) -> Iterator[Started]:
    node = Started(data, *troubles)
    try:
        yield node
    finally:
        node.close()


def test_fenced_shard_is_named_in_the_ready_line_and_the_others_do_not_wait(tmp_path: Path) -> None:
    with started(tmp_path / "data", "fenced:1") as node:
        line = re.compile(r"^ready: 1 of 2 shards \(shard 1 is fenced\) on \S+:\d+$", re.MULTILINE)
        until(lambda: line.search(node.text))


def test_node_whose_shards_are_all_fenced_is_never_ready(tmp_path: Path) -> None:
    with started(tmp_path / "data", "fenced:0", "fenced:1") as node:
        time.sleep(1.0)
        assert "ready" not in node.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_everything_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path / "data") as node:
        found = until(lambda: READY.search(node.text))
        assert found[1] == "2"
        children = node.children()
        assert len(children) == 3
        node.process.send_signal(number)
        assert node.process.wait(10) == 0
        assert all(is_gone(pid) for pid in children)
        assert "Traceback" not in node.text


def test_impatient_signals_hurry_the_stop(tmp_path: Path) -> None:
    with started(tmp_path / "data", "deaf:0") as node:
        until(lambda: READY.search(node.text))

        def has_ended() -> bool:
            node.process.send_signal(signal.SIGINT)
            return node.process.poll() is not None

        until(has_ended, timeout_s=4)  # the patience of the fakes' node is 5 s
        assert node.process.returncode == 0


def test_signal_that_comes_twice_at_once_is_one(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        until(lambda: READY.search(node.text))
        node.process.send_signal(signal.SIGTERM)
        node.process.send_signal(signal.SIGINT)
        assert node.process.wait(10) == 0
        assert "killed" not in node.text


def test_signal_before_it_is_ready_stops_it_too(tmp_path: Path) -> None:
    with started(tmp_path / "data", "leaderless:0") as node:
        until(lambda: len(node.children()) == 3)
        until(lambda: psutil.Process(node.process.pid).name())
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(10) == 0
        assert not READY.search(node.text)


def test_killed_supervisor_leaves_no_process_and_the_directory_can_be_used(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        until(lambda: READY.search(node.text))
        children = node.children()
        node.process.kill()
        node.process.wait()
        until(lambda: all(is_gone(pid) for pid in children), timeout_s=3)
    with fake_node(tmp_path / "data") as again:
        again.wait_ready()


def test_new_node_waits_for_the_workers_of_one_that_was_killed(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        until(lambda: READY.search(node.text))
        node.process.kill()
        node.process.wait()
        with fake_node(tmp_path / "data") as again:  # at once
            again.wait_ready()


def test_processes_say_what_they_are(tmp_path: Path) -> None:
    with started(tmp_path / "data") as node:
        until(lambda: READY.search(node.text))
        titles = [" ".join(psutil.Process(pid).cmdline()) for pid in node.children()]
        assert "shardnode: router node 1" in " ".join(titles)
        own = " ".join(psutil.Process(node.process.pid).cmdline())
        assert own.strip() == "shardnode: supervisor node 1"
