"""Errors: the public tree, how they travel, and how partial failures are told."""

from __future__ import annotations

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.wire import errors, limits
from shardnode.wire.replies import decode_error, encode_error
from tests.wire.make_vectors import ERRORS

PUBLIC = {
    "Unavailable": True,
    "DeadlineExceeded": True,
    "OutcomeUnknown": False,
    "Overloaded": True,
    "Conflict": False,
    "NotFound": False,
    "InvalidRequest": False,
    "Denied": False,
    "SessionExpired": False,
    "Compacted": False,
    "Corrupt": False,
    "WrongShard": True,
    "NotLeader": True,
    "ShardnodeError": False,
}


def test_every_code_is_the_snake_case_name_of_its_class() -> None:
    for cls in errors.CODES.values():
        assert cls.code == re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def test_public_list_and_what_may_be_retried() -> None:
    assert {cls.__name__: cls.retryable for cls in errors.CODES.values()} == PUBLIC


def test_errors_are_also_the_ones_that_python_programs_expect() -> None:
    with pytest.raises(ConnectionError, match="nobody"):
        raise errors.Unavailable("nobody")
    with pytest.raises(TimeoutError, match="late"):
        raise errors.DeadlineExceeded("late")


def test_refinements_keep_the_code_of_their_public_class() -> None:
    for cls in errors.REFINEMENTS.values():
        assert issubclass(cls, errors.InvalidRequest)
        assert (cls.code, cls.number, cls.retryable) == ("invalid_request", 8, False)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_arrives_as_it_was_sent(error: errors.ShardnodeError) -> None:
    arrived = decode_error(encode_error(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error) == error.message
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_survives_being_copied(error: errors.ShardnodeError) -> None:
    """As process pools and test runners do, through the same protocol as pickling."""
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_error_of_a_newer_peer_keeps_what_it_came_with() -> None:
    newer = errors.from_wire(99, "moon_phase", "not today", True, {"phase": 3})
    assert type(newer) is errors.ShardnodeError
    assert (newer.number, newer.code, newer.retryable) == (99, "moon_phase", True)
    passed_on = decode_error(encode_error(newer))
    assert (passed_on.number, passed_on.code, passed_on.retryable) == (99, "moon_phase", True)


def test_unknown_details_and_refinements_are_left_out() -> None:
    details: dict[str, errors.Detail] = {"refinement": "moon", "phase": 3}
    assert type(errors.from_wire(8, "invalid_request", "", False, details)) is errors.InvalidRequest


def test_detail_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(errors.MalformedFrame, match="detail 'lag' of overloaded as int"):
        errors.from_wire(5, "overloaded", "", True, {"lag": "much"})


@given(st.text(max_size=3 * limits.error_message_bytes_max))
def test_any_message_can_be_sent_and_long_ones_are_cut(message: str) -> None:
    arrived = decode_error(encode_error(errors.NotFound(message))).message
    assert message.startswith(arrived)
    assert len(arrived.encode()) > limits.error_message_bytes_max - 4 or arrived == message


def test_message_with_a_lone_surrogate_can_be_sent() -> None:
    assert decode_error(encode_error(errors.NotFound("file \udcff"))).message == "file ?"


def test_limit_error_names_limit_value_and_what_to_do() -> None:
    error = errors.limit_exceeded("key_bytes_max", 480, 481, "send a shorter key")
    assert str(error) == "expected at most 480 (key_bytes_max), found 481; send a shorter key"
    assert (error.limit_name, error.limit, error.found) == ("key_bytes_max", 480, 481)


UNKNOWN, DENIED, BUSY = errors.OutcomeUnknown("?"), errors.Denied("no"), errors.Overloaded(lag=9)


@pytest.mark.parametrize(
    ("failures", "gravest"),
    [
        ([BUSY, DENIED, UNKNOWN], errors.OutcomeUnknown),
        ([BUSY, DENIED], errors.Denied),
        ([BUSY], errors.Overloaded),
        ([errors.Unavailable("gone")], errors.Unavailable),
    ],
)
def test_partial_failure_is_as_grave_as_its_gravest(
    failures: list[errors.ShardnodeError], gravest: type[errors.ShardnodeError]
) -> None:
    failed = {b"%d" % n: failure for n, failure in enumerate(failures)}
    error = errors.partial_failure({b"fine": 7}, failed)
    assert type(error) is gravest
    assert error.succeeded == {b"fine": 7}
    assert error.failed == failed
    assert str(error).startswith(f"{len(failures)} of {len(failures) + 1} keys failed")
    assert all(failure.failed == {} for failure in failures)


def test_partial_failure_keeps_the_details_of_its_gravest() -> None:
    error = errors.partial_failure({}, {b"a": BUSY})
    assert isinstance(error, errors.Overloaded)
    assert error.lag == 9
