"""`shardnode kv import` and `export`: what goes out comes in again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardnode.cli.transfer import record_of
from tests.cli.conftest import Kv
from tests.cli.kit import error_of, run, run_on_terminal


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def without_versions(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: each[name] for name in each if name != "version"} for each in lines]


def test_export_is_read_back_as_the_same(shardnode: Kv, prefix: str, tmp_path: Path) -> None:
    shardnode("kv", "put", f"{prefix}a", "Ada\n\t€")
    shardnode("kv", "put", prefix.encode() + b"\xff", b"\xfe")
    shardnode("kv", "put", f"{prefix}t", "soon gone", "--ttl", "1000")
    first, second = tmp_path / "first", tmp_path / "second"
    done = shardnode("kv", "export", str(first), "--prefix", prefix)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"exported 3 keys\n"
    assert [*tmp_path.iterdir()] == [first]
    keys = shardnode("kv", "scan", "--keys", "--prefix", prefix).stdout.splitlines()
    assert shardnode("kv", "del", *keys).stdout == b"3\n"
    done = shardnode("kv", "import", str(first))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"imported 3 keys\n")
    shardnode("kv", "export", str(second), "--prefix", prefix)
    before, after = lines_of(first), lines_of(second)
    times = [[each.pop("expires_at", None) for each in lines] for lines in (before, after)]
    assert without_versions(before) == without_versions(after)
    assert [bool(time) for time in times[0]] == [bool(time) for time in times[1]]
    assert sum(map(bool, times[0])) == 1


def test_many_batches(shardnode: Kv, prefix: str, tmp_path: Path) -> None:
    lines = [json.dumps({"key": f"{prefix}{n:05}", "value": str(n)}) for n in range(4_321)]
    done = shardnode("kv", "import", "-", "--json", stdin="\n".join(lines).encode())
    assert json.loads(done.stdout) == {"imported": 4_321, "expired": 0}
    file = tmp_path / "all"
    done = shardnode("kv", "export", str(file), "--prefix", prefix, "--json")
    assert json.loads(done.stdout) == {"exported": 4_321, "file": str(file)}
    assert [each["value"] for each in lines_of(file)] == [str(n) for n in range(4_321)]
    piped = shardnode("kv", "export", "-", "--prefix", prefix)
    assert piped.stdout == file.read_bytes()


def test_last_line_of_a_key_wins_and_expired_ones_are_left_out(shardnode: Kv, prefix: str) -> None:
    lines = [
        {"key": f"{prefix}k", "value": "first"},
        {"key": f"{prefix}k", "value": "last"},
        {"key": f"{prefix}old", "value": "1", "expires_at": "2001-01-01T00:00:00Z"},
        {"key": f"{prefix}new", "value": "1", "expires_at": "2101-01-01T00:00:00+02:00"},
    ]
    done = shardnode("kv", "import", "-", stdin="\n\n".join(map(json.dumps, lines)).encode())
    assert done.stderr == b"imported 2 keys; 1 had expired and were left out\n"
    keys = shardnode("kv", "scan", "--prefix", prefix).stdout
    assert keys == f"{prefix}k\tlast\n{prefix}new\t1\n".encode()


def test_bad_line_is_named_and_what_was_done_is_told(shardnode: Kv, prefix: str) -> None:
    good = [json.dumps({"key": f"{prefix}{n}", "value": ""}) for n in range(1_500)]
    done = shardnode("kv", "import", "-", stdin="\n".join([*good, '{"key": 1}']).encode())
    assert (done.returncode, done.stdout) == (2, b"")
    assert b'-:1501: expected an object with "key" and "value"' in done.stderr
    assert b"1000 keys were imported before it failed" in done.stderr
    done = shardnode("kv", "import", "-", "--json", stdin=b"nonsense")
    assert error_of(done)["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"[]", "an object"),
        (b'{"key": "k"}', "an object"),
        (b'{"key": 1, "value": ""}', 'in "key": expected text'),
        (b'{"key": "k", "value": {"base64": "?"}}', 'in "value"'),
        (b'{"key": "k", "value": {"base64": "", "more": 1}}', 'in "value"'),
        (b'{"key": "k", "value": "\\ud800"}', "a line of JSON"),
        (b'{"key": "k", "value": "", "expires_at": "tomorrow"}', 'in "expires_at"'),
        (b'{"key": "k", "value": "", "expires_at": "2030-01-01T00:00:00"}', 'in "expires_at"'),
        (b'{"key": "k", "value": "", "expires_at": 5}', 'in "expires_at"'),
    ],
)
def test_what_a_line_must_be(line: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        record_of(line, "utf8")


def test_encoding_is_that_of_the_lines(shardnode: Kv, prefix: str) -> None:
    key = prefix.encode().hex()
    line = json.dumps({"key": key, "value": "00ff"}).encode()
    assert shardnode("kv", "import", "-", "--encoding", "hex", stdin=line).returncode == 0
    assert shardnode("kv", "get", prefix).stdout == b"\x00\xff"
    words = ("kv", "export", "-", "--encoding", "hex", "--prefix", key)
    assert json.loads(shardnode(*words).stdout)["value"] == "00ff"


def test_failed_export_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    assert run("kv", "export", str(file), "--connect", "127.0.0.1:1").returncode == 4
    assert file.read_text() == "old"
    assert [*tmp_path.iterdir()] == [file]


def test_missing_file_and_missing_folder(shardnode: Kv, tmp_path: Path) -> None:
    assert shardnode("kv", "import", str(tmp_path / "none")).returncode == 2
    done = shardnode("kv", "export", str(tmp_path / "none" / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: ")
    assert b"No such file" in done.stderr


def test_terminal_sees_progress_and_the_count(shardnode: Kv, address: str, prefix: str) -> None:
    shardnode("kv", "put", f"{prefix}k", "1")
    words = ["kv", "export", "-", "--prefix", prefix, "--connect", address]
    code, shown = run_on_terminal(words, which="stderr")
    assert code == 0
    assert b"keys exported" in shown
    assert shown.rstrip().endswith(b"exported 1 keys")
    code, plain = run_on_terminal(words, which="stderr", env={"NO_COLOR": "1"})
    assert code == 0
    assert b"\x1b[3" not in plain  # no colour; a bar may still move the cursor
