"""Every error ends with its documented exit code."""

from __future__ import annotations

import click
import pytest

from shardnode.cli.errors import told_of
from shardnode.wire import errors
from shardnode.wire.errors import CODES, ShardnodeError
from tests.cli.kit import error_of, run
from tests.client.fake import FakeNode

EXITS: dict[str, int] = {
    "ShardnodeError": 1,
    "Unavailable": 4,
    "DeadlineExceeded": 5,
    "OutcomeUnknown": 5,
    "Overloaded": 4,
    "Conflict": 6,
    "NotFound": 3,
    "InvalidRequest": 2,
    "MalformedFrame": 2,
    "LimitExceeded": 2,
    "Denied": 1,
    "SessionExpired": 1,
    "Compacted": 1,
    "Corrupt": 7,
}


@pytest.mark.parametrize("name", EXITS)
def test_exit_code_of_each_error(name: str) -> None:
    error = getattr(errors, name)("why")
    told = told_of(error)
    assert told == (error.code, "why", error.retryable, EXITS[name])


def test_every_error_that_reaches_callers_is_in_the_table() -> None:
    internal = {"WrongShard", "NotLeader"}
    assert {cls.__name__ for cls in CODES.values()} - internal <= EXITS.keys()


def test_errors_of_click_and_of_the_system_have_codes_too() -> None:
    usage = told_of(click.UsageError("why"))
    assert usage is not None
    assert (usage.code, usage.exit_code) == ("invalid_request", 2)
    told = told_of(PermissionError(13, "Permission denied", "file"))
    assert told == ("shardnode_error", "file: Permission denied", False, 1)


def test_bug_keeps_its_traceback() -> None:
    assert told_of(RuntimeError("a bug")) is None


@pytest.mark.parametrize(
    ("error", "code"), [(errors.Corrupt("damaged"), 7), (errors.Denied("not you"), 1)]
)
def test_what_a_node_refuses_is_told(error: ShardnodeError, code: int) -> None:
    with FakeNode() as node:
        node.rule("refuse", error)
        words = ("kv", "get", "k", "--connect", node.address)
        done = run(*words)
        assert (done.returncode, done.stdout) == (code, b"")
        assert done.stderr == f"Error: {error.message}\n".encode()
        told = error_of(run(*words, "--json"))
        assert told == {"code": error.code, "message": error.message, "retryable": False}


def test_silence_after_a_write_is_an_unknown_outcome() -> None:
    with FakeNode() as node:
        node.rule("swallow")
        done = run("kv", "put", "k", "v", "--json", "--connect", node.address)
        assert done.returncode == 5
        told = error_of(done)
        assert (told["code"], told["retryable"]) == ("outcome_unknown", False)
