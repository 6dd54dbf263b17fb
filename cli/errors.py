"""What went wrong, for people or as one JSON object on stderr, and the exit code for it.

    0  ok                                   4  Unavailable, Overloaded
    1  any other failure                    5  DeadlineExceeded, OutcomeUnknown
    2  usage, InvalidRequest                6  Conflict
    3  NotFound                             7  Corrupt, unhealthy
                                          130  interrupted

The one rule: a code depends on the error's `.code` alone, so scripts and the library agree.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import click

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_UNHEALTHY = 7
EXIT_INTERRUPT = 130

EXIT_CODES = {
    "invalid_request": EXIT_USAGE,
    "not_found": EXIT_NOT_FOUND,
    "unavailable": 4,
    "overloaded": 4,
    "deadline_exceeded": 5,
    "outcome_unknown": 5,
    "conflict": 6,
    "corrupt": EXIT_UNHEALTHY,
}


class Told(NamedTuple):
    """An error in the words of the command line."""

    code: str
    message: str
    retryable: bool
    exit_code: int


def told_of(error: Exception) -> Told | None:
    """How to tell an error; None for a bug of ours, which deserves its traceback."""
    if isinstance(error, click.ClickException):
        code = "invalid_request" if error.exit_code == EXIT_USAGE else "shardnode_error"
        return Told(code, error.format_message(), False, error.exit_code)
    from shardnode.wire.errors import ShardnodeError

    if isinstance(error, ShardnodeError):
        code = error.code
        return Told(code, error.message, error.retryable, EXIT_CODES.get(code, EXIT_FAILURE))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Told("shardnode_error", f"{where}{error.strerror or error}", False, EXIT_FAILURE)
    return None


def tell(error: Exception, told: Told, *, as_json: bool) -> None:
    """One object on stderr, or what a person can read."""
    if as_json:
        body = {"code": told.code, "message": told.message, "retryable": told.retryable}
        write_note(json.dumps({"error": body}))
    elif isinstance(error, click.ClickException):
        error.show()  # it knows the usage of its command
    else:
        write_note(f"Error: {told.message}")


def write_note(text: str) -> None:
    """A line on stderr. What a terminal cannot show is escaped: a message may quote a key."""
    if sys.stderr is not None:
        line = text.encode("utf-8", "backslashreplace").decode()
        click.echo(line, err=True)
