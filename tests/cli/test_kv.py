"""`shardnode kv` against a real node: what is stored, what is printed, how it ends."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.conftest import Kv
from tests.cli.kit import error_of, run_on_terminal


def lines_of(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_put_prints_the_version_and_get_the_exact_bytes(shardnode: Kv, prefix: str) -> None:
    first = shardnode("kv", "put", f"{prefix}k", "Ada")
    assert (first.returncode, first.stderr) == (0, b"")
    second = shardnode("kv", "put", f"{prefix}k", "Grace")
    assert int(second.stdout) > int(first.stdout) > 0
    got = shardnode("kv", "get", f"{prefix}k")
    assert (got.returncode, got.stdout, got.stderr) == (0, b"Grace", b"")


def test_get_adds_a_newline_only_on_a_terminal(shardnode: Kv, prefix: str, address: str) -> None:
    shardnode("kv", "put", f"{prefix}k", "Ada")
    words = ["kv", "get", f"{prefix}k", "--connect", address]
    assert run_on_terminal(words, which="stdout") == (0, b"Ada\r\n")


def test_missing_key_ends_with_3_and_an_empty_stdout(shardnode: Kv, prefix: str) -> None:
    done = shardnode("kv", "get", f"{prefix}none")
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"{prefix}none".encode() in done.stderr
    error = error_of(shardnode("kv", "get", f"{prefix}none", "--json"))
    assert (error["code"], error["retryable"]) == ("not_found", False)


@pytest.mark.parametrize("value", ["-5", "-", "-h", "--json", "--", "-hello", ""])
def test_values_that_look_like_options(shardnode: Kv, prefix: str, value: str) -> None:
    name = f"{prefix}k"
    plain = value in ("-5", "-hello", "")
    words = ["kv", "put", name, value] if plain else ["kv", "put", "--", name, value]
    done = shardnode(*words, stdin=b"-")  # a single dash is the standard input, here another dash
    assert done.returncode == 0, done.stderr
    assert shardnode("kv", "get", name).stdout == value.encode()


def test_key_may_begin_with_a_dash(shardnode: Kv) -> None:
    assert shardnode("kv", "put", "-k", "1").returncode == 0
    assert shardnode("kv", "get", "-k").stdout == b"1"
    assert shardnode("kv", "del", "-k").stdout == b"1\n"


def test_arguments_are_bytes_whatever_they_are(shardnode: Kv, prefix: str) -> None:
    key, value = prefix.encode() + b"\xff\xc3", b"\xfe \xe2\x82\xac"
    for locale in ("C", "C.UTF-8"):
        assert shardnode("kv", "put", key, value, LC_ALL=locale).returncode == 0
        assert shardnode("kv", "get", key, LC_ALL=locale).stdout == value
    found = json.loads(shardnode("kv", "get", key, "--json").stdout)
    assert found["value"] == {"base64": "/iDigqw="}
    assert found["key"].keys() == {"base64"}


def test_value_from_stdin_is_kept_exactly(shardnode: Kv, prefix: str) -> None:
    value = bytes(range(256)) * 1_000 + b"\n"
    assert shardnode("kv", "put", f"{prefix}k", "-", stdin=value).returncode == 0
    assert shardnode("kv", "get", f"{prefix}k").stdout == value


def test_value_that_is_too_large_ends_with_2(shardnode: Kv, prefix: str) -> None:
    done = shardnode("kv", "put", f"{prefix}k", "-", stdin=bytes((4 << 20) + 1))
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"value_bytes_max" in done.stderr


@pytest.mark.parametrize(
    ("encoding", "key", "value", "data"),
    [("hex", "6bff", "00FF", b"\0\xff"), ("base64", "a/8=", "AP8=", b"\0\xff")],
)
def test_encoding_governs_input_and_output(
    shardnode: Kv, encoding: str, key: str, value: str, data: bytes
) -> None:
    words = ("--encoding", encoding)
    assert shardnode("kv", "put", key, value, *words).returncode == 0
    assert shardnode("kv", "get", b"k\xff").stdout == data
    shown = shardnode("kv", "get", key, *words).stdout
    assert shown.lower() == value.lower().encode()
    assert json.loads(shardnode("kv", "get", key, *words, "--json").stdout)["key"] == key
    assert shardnode("kv", "put", key, "-", *words, stdin=shown + b"\n").returncode == 0
    assert shardnode("kv", "get", b"k\xff").stdout == data
    assert shardnode("kv", "del", key, *words).stdout == b"1\n"


@pytest.mark.parametrize(("encoding", "word"), [("hex", "abc"), ("hex", "zz"), ("base64", "a")])
def test_word_that_is_not_in_its_encoding_ends_with_2(
    shardnode: Kv, encoding: str, word: str
) -> None:
    done = shardnode("kv", "get", word, "--encoding", encoding)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"expected {encoding}".encode() in done.stderr


def test_json_answers_of_single_commands(shardnode: Kv, prefix: str) -> None:
    key = f"{prefix}k"
    put = json.loads(shardnode("--json", "kv", "put", key, "1").stdout)
    assert put.keys() == {"key", "version"}
    got = json.loads(shardnode("kv", "--json", "get", key).stdout)
    assert got == {"key": key, "value": "1", "version": put["version"], "expires_at": None}
    version = str(put["version"])
    cas = json.loads(shardnode("kv", "cas", key, "2", "--version", version, "--json").stdout)
    assert cas["version"] > put["version"]
    assert json.loads(shardnode("kv", "del", key, "--json").stdout) == {"deleted": 1}


def test_delete_prints_the_count_and_ends_with_0(shardnode: Kv, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(5)]
    for key in keys:
        shardnode("kv", "put", key, "1")
    done = shardnode("kv", "del", *keys, f"{prefix}none")
    assert (done.returncode, done.stdout) == (0, b"5\n")
    again = shardnode("kv", "del", *keys)
    assert (again.returncode, again.stdout) == (0, b"0\n")


def test_cas_prints_the_version_or_ends_with_6(shardnode: Kv, prefix: str) -> None:
    key = f"{prefix}k"
    version = shardnode("kv", "cas", key, "1", "--version", "0").stdout.decode().strip()
    refused = shardnode("kv", "cas", key, "2", "--version", "0")
    assert (refused.returncode, refused.stdout) == (6, b"")
    refused = shardnode("kv", "cas", key, "2", "--version", "0", "--json")
    assert error_of(refused)["code"] == "conflict"
    done = shardnode("kv", "cas", key, "-2", "--version", version)
    assert int(done.stdout) > int(version)
    assert shardnode("kv", "get", key).stdout == b"-2"


def test_ttl_ends_a_key(shardnode: Kv, prefix: str) -> None:
    key = f"{prefix}k"
    shardnode("kv", "put", key, "1", "--ttl", "1.5")
    expires_at = json.loads(shardnode("kv", "get", key, "--json").stdout)["expires_at"]
    assert expires_at.endswith("Z")
    time.sleep(2.1)
    assert shardnode("kv", "get", key).returncode == 3
    assert shardnode("kv", "put", key, "1", "--ttl", "-1").returncode == 2


def test_scan_is_in_order_over_all_shards(shardnode: Kv, prefix: str) -> None:
    keys = [f"{prefix}{number:02}" for number in range(20)]
    for key in reversed(keys):
        shardnode("kv", "put", key, f"value of {key}")
    words = ("kv", "scan", "--prefix", prefix)
    plain = shardnode(*words).stdout.decode().splitlines()
    assert plain == [f"{key}\tvalue of {key}" for key in keys]
    assert shardnode(*words, "--keys").stdout.decode().split() == keys
    assert shardnode(*words, "--keys", "--limit", "7").stdout.decode().split() == keys[:7]
    found = lines_of(shardnode(*words, "--json").stdout)
    assert [line["key"] for line in found] == keys
    assert {*found[0]} == {"key", "value", "version", "expires_at"}
    assert {*lines_of(shardnode(*words, "--json", "--keys").stdout)[0]} == {
        "key",
        "version",
        "expires_at",
    }
    nothing = shardnode("kv", "scan", "--prefix", f"{prefix}none")
    assert (nothing.returncode, nothing.stdout) == (0, b"")


def test_scan_on_a_terminal_cannot_play_tricks(shardnode: Kv, prefix: str, address: str) -> None:
    value = b"a\x1b[2Jb\nc"
    shardnode("kv", "put", f"{prefix}k", value)
    words = ["kv", "scan", "--prefix", prefix, "--connect", address]
    code, shown = run_on_terminal(words, which="stdout")
    assert (code, shown) == (0, f"{prefix}k\ta\\x1b[2Jb\\nc\r\n".encode().replace(b"\t", b"\t"))
    assert shardnode("kv", "scan", "--prefix", prefix).stdout.endswith(value + b"\n")
