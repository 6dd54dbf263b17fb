"""`shardnode topic` and `group` against a real node: what is stored, printed, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.cli.conftest import Kv
from tests.cli.kit import COMMAND, Running, environment, error_of, run, run_on_terminal


@pytest.fixture
def topic(shardnode: Kv, prefix: str) -> str:
    """A topic of three partitions for one test."""
    name = f"shop/{prefix.rstrip(':')}"
    done = shardnode("topic", "create", name, "--partitions", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n".encode(), b"")
    return name


def lines_of(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def append(shardnode: Kv, name: str, *values: bytes, words: tuple[str, ...] = ()) -> None:
    done = shardnode("topic", "append", name, *words, stdin=b"\n".join([*values, b""]))
    assert (done.returncode, done.stdout) == (0, b"%d\n" % len(values)), done.stderr


def test_topic_is_created_altered_described_listed_and_deleted(shardnode: Kv, topic: str) -> None:
    again = shardnode("topic", "create", topic)
    assert (again.returncode, again.stdout) == (6, b"")
    words = (
        "--partitions",
        "5",
        "--retention-time",
        "60",
        "--retention-bytes",
        "1000000",
        "--json",
    )
    altered = json.loads(shardnode("topic", "alter", topic, *words).stdout)
    assert altered.pop("created_at").endswith("Z")
    assert altered == {
        "name": topic,
        "partitions": 5,
        "retention_time": 60.0,
        "retention_bytes": 1000000,
    }
    append(shardnode, topic, b"a", b"b", words=("--partition", "4"))
    described = json.loads(shardnode("topic", "describe", topic, "--json").stdout)
    assert described["partitions"] == 5
    assert described["offsets"][4] == {"partition": 4, "first": 0, "end": 2}
    shown = shardnode("topic", "describe", topic)
    assert b"5 partitions, messages kept for 0:01:00" in shown.stderr
    assert shown.stdout.splitlines()[-1].split() == [b"4", b"0", b"2", b"2"]
    assert topic.encode() in shardnode("topic", "list").stdout.splitlines()
    assert topic in [each["name"] for each in lines_of(shardnode("topic", "list", "--json").stdout)]
    ended = shardnode("topic", "alter", topic, "--retention-time", "0", "--json")
    assert json.loads(ended.stdout)["retention_time"] is None
    deleted = shardnode("topic", "delete", topic)
    assert (deleted.returncode, deleted.stdout, deleted.stderr) == (0, b"", b"")
    for word, *more in (["describe"], ["delete"], ["read"], ["alter", "--partitions", "9"]):
        gone = shardnode("topic", word, topic, *more, "--json")
        assert (gone.returncode, error_of(gone)["code"]) == (3, "not_found"), word


def test_name_without_a_stream_is_in_default(shardnode: Kv, prefix: str) -> None:
    name = prefix.rstrip(":")
    assert shardnode("topic", "create", name).stdout == f"default/{name}\n".encode()
    assert shardnode("topic", "delete", f"default/{name}").returncode == 0


def test_lines_are_appended_and_read_as_they_are(shardnode: Kv, topic: str) -> None:
    values = [b"one", b"", b" two \t", b"\xff\xfe", b"last"]
    done = shardnode("topic", "append", topic, "--partition", "1", stdin=b"\n".join(values))
    assert done.stdout == b"5\n", "the last line needs no end"
    read = shardnode("topic", "read", topic, "--partition", "1")
    assert (read.returncode, read.stdout) == (0, b"\n".join([*values, b""]))
    words = ("--json", "--partition", "1", "--from", "3")
    fourth = lines_of(shardnode("topic", "read", topic, *words).stdout)[0]
    assert fourth.pop("timestamp").endswith("Z")
    assert fourth == {
        "partition": 1,
        "offset": 3,
        "key": None,
        "value": {"base64": "//4="},
        "headers": [],
    }
    hexed = shardnode("topic", "read", topic, "--encoding", "hex", "--count", "1")
    assert hexed.stdout == b"6f6e65\n"
    again = shardnode(
        "topic", "append", topic, "--encoding", "hex", "--partition", "0", stdin=b"FF00\n"
    )
    assert again.stdout == b"1\n"
    assert shardnode("topic", "read", topic, "--partition", "0").stdout == b"\xff\x00\n"


def test_key_chooses_the_partition_and_travels_along(shardnode: Kv, topic: str) -> None:
    for number in range(3):
        append(shardnode, topic, b"%d" % number, words=("--key", "customer-7"))
    found = lines_of(shardnode("topic", "read", topic, "--json").stdout)
    assert len({line["partition"] for line in found}) == 1
    assert [(line["key"], line["value"]) for line in found] == [
        ("customer-7", str(number)) for number in range(3)
    ]


def test_many_lines_of_all_partitions_and_compressed(shardnode: Kv, topic: str) -> None:
    values = [b"%06d" % number for number in range(5_000)]
    append(shardnode, topic, *values, words=("--compression", "zstd"))
    read = shardnode("topic", "read", topic)
    assert sorted(read.stdout.splitlines()) == values
    found = lines_of(shardnode("topic", "read", topic, "--json").stdout)
    assert {line["partition"] for line in found} == {0, 1, 2}
    assert len(shardnode("topic", "read", topic, "--count", "7").stdout.splitlines()) == 7


def test_where_to_begin(shardnode: Kv, topic: str) -> None:
    append(shardnode, topic, b"a", b"b", b"c", words=("--partition", "0"))

    def read(start: str) -> bytes:
        done = shardnode("topic", "read", topic, "--partition", "0", "--from", start)
        assert done.returncode == 0, done.stderr
        return bytes(done.stdout)

    assert read("earliest") == read("-1h") == read("2020-01-01T00:00:00Z") == b"a\nb\nc\n"
    assert read("1") == b"b\nc\n"
    assert read("last") == b"c\n"
    assert read("latest") == read("2100-01-01T00:00:00Z") == b""


@pytest.mark.parametrize(
    "words",
    [
        ("read", "t", "--from", "yesterday"),
        ("read", "t", "--from", "2020-01-01T00:00:00"),
        ("read", "t", "--count", "0"),
        ("read", "t", "--group", "g", "--partition", "1"),
        ("read", "a/b/c"),
        ("append", "t", "--partition", "1", "--key", "k"),
        ("create", "t", "--partitions", "0"),
        ("create", "t", "--retention-time", "-1"),
        ("alter", "t"),
        ("describe", ".."),
    ],
)
def test_wrong_usage_ends_with_2(shardnode: Kv, words: tuple[str, ...]) -> None:
    done = shardnode("topic", *words)
    assert (done.returncode, done.stdout) == (2, b""), done.stderr


def test_line_that_is_too_large_ends_with_2_and_says_what_came_before(
    shardnode: Kv, topic: str
) -> None:
    lines = b"\n".join([b"small", b"x" * ((4 << 20) + 1), b"never"])
    done = shardnode("topic", "append", topic, "--partition", "0", stdin=lines)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"value_bytes_max" in done.stderr
    assert b"messages were appended before it failed" in done.stderr


def test_partition_that_is_not_there_ends_with_3(shardnode: Kv, topic: str) -> None:
    done = shardnode("topic", "append", topic, "--partition", "9", "--json", stdin=b"x\n")
    assert (done.returncode, error_of(done)["code"]) == (3, "not_found")
    read = shardnode("topic", "read", topic, "--partition", "9", "--json")
    assert (read.returncode, error_of(read)["code"]) == (3, "not_found")


def test_follow_shows_messages_as_they_come_and_ends_with_130(
    shardnode: Kv, topic: str, address: str
) -> None:
    append(shardnode, topic, b"before", words=("--partition", "2"))
    words = ("topic", "read", topic, "--follow", "--connect", address)
    with Running(*words) as read:
        read.until(lambda each: each.out == b"before\n")
        append(shardnode, topic, b"after", words=("--partition", "0"))
        read.until(lambda each: each.out == b"before\nafter\n")
        assert read.signal(signal.SIGINT) == 130
    assert b"Traceback" not in read.err
    counted = run(*words, "--count", "2")
    assert (counted.returncode, counted.stdout.count(b"\n")) == (0, 2)


def test_line_is_appended_when_it_comes(shardnode: Kv, topic: str, address: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "topic", "append", topic, "--partition", "0", "--connect", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(b"first\nseco")
    process.stdin.flush()
    with Running("topic", "read", topic, "--follow", "--connect", address) as read:
        read.until(lambda each: each.out == b"first\n")
        process.stdin.write(b"nd\n")
        process.stdin.flush()
        read.until(lambda each: each.out == b"first\nsecond\n")
        read.signal(signal.SIGINT)
    assert process.communicate()[0] == b"2\n"
    assert shardnode("topic", "read", topic).stdout == b"first\nsecond\n"


def test_group_reads_each_message_once_and_is_described_and_moved(
    shardnode: Kv, topic: str, prefix: str
) -> None:
    group = prefix.rstrip(":")
    values = [b"%d" % number for number in range(30)]
    for number in range(3):
        append(shardnode, topic, *values[number::3], words=("--partition", str(number)))
    words = ("topic", "read", topic, "--group", group)
    first = shardnode(*words, "--count", "7")
    assert (first.returncode, len(first.stdout.splitlines())) == (0, 7)
    rest = shardnode(*words)
    assert sorted((first.stdout + rest.stdout).splitlines()) == sorted(values)
    assert shardnode(*words).stdout == b""
    assert {"name": group} in lines_of(shardnode("group", "list", "--json").stdout)
    assert group.encode() in shardnode("group", "list").stdout.splitlines()
    info = json.loads(shardnode("group", "describe", group, "--json").stdout)
    assert (info["name"], info["members"]) == (group, [])
    assert info["partitions"] == [
        {"topic": topic, "partition": n, "member": None, "committed": 10, "end": 10, "lag": 0}
        for n in range(3)
    ]
    moved = shardnode("group", "seek", group, f"{topic}:1", "8")
    assert (moved.returncode, moved.stdout) == (0, b"8\n")
    shown = shardnode("group", "describe", group).stdout.splitlines()
    assert shown[2].split() == [topic.encode(), b"1", b"-", b"8", b"10", b"2"]
    assert shardnode(*words).stdout.splitlines() == values[1::3][8:]
    back = json.loads(shardnode("group", "seek", group, f"{topic}:2", "-1h", "--json").stdout)
    assert back == {"group": group, "topic": topic, "partition": 2, "offset": 0}


def test_group_that_is_not_there_and_moves_that_cannot_be(shardnode: Kv, topic: str) -> None:
    gone = shardnode("group", "describe", "never-there", "--json")
    assert (gone.returncode, error_of(gone)["code"]) == (3, "not_found")
    for place, offset, code in [
        (topic, "0", 2),
        (f"{topic}:x", "0", 2),
        (f"{topic}:0", "yesterday", 2),
        (f"{topic}:0", "99", 2),
        (f"{topic}:9", "0", 3),
        ("none:0", "0", 3),
    ]:
        done = shardnode("group", "seek", "g", place, offset)
        assert (done.returncode, done.stdout) == (code, b""), done.stderr


def test_terminal_gets_harmless_lines(shardnode: Kv, topic: str, address: str) -> None:
    append(shardnode, topic, b"\x1b[2Jrude", words=("--partition", "0"))
    code, shown = run_on_terminal(["topic", "read", topic, "--connect", address], which="stdout")
    assert (code, shown) == (0, b"\\x1b[2Jrude\r\n")


def test_closed_pipe_is_silent(shardnode: Kv, topic: str, address: str) -> None:
    append(shardnode, topic, *[b"x" * 200] * 3_000, words=("--partition", "0"))
    process = subprocess.Popen(
        [*COMMAND, "topic", "read", topic, "--connect", address],
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


def test_nobody_there_ends_with_4_at_once() -> None:
    for words in (["read", "t"], ["read", "t", "--group", "g"], ["list"]):
        done = run("topic", *words, env={"SHARDNODE_CONNECT": "127.0.0.1:1"})
        assert (done.returncode, done.stdout) == (4, b"")
        assert b"shardnode start" in done.stderr
