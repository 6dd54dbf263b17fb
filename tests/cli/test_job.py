"""`shardnode job` as people type it, as far as no session of Spark is needed."""

from __future__ import annotations

import json

import click
import pytest

from shardnode.cli.job import run_command
from shardnode.cli.job_options import CONF
from tests.cli.kit import error_of, run


def test_jobs_are_listed_for_people_and_for_programs() -> None:
    done = run("job", "list")
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(run("job", "list", "--json").stdout)["jobs"]
    assert [each["name"] for each in told] == [
        "export",
        "import",
        "stats",
        "verify",
        "reshard-plan",
    ]
    for each in told:
        assert f"{each['name']} ".encode() in done.stdout
        assert each["does"].encode() in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify",), "expected --replicas or --path SRC, found neither"),
        (("verify", "--replicas", "--path", "x"), "expected --replicas or --path SRC, found both"),
        (("reshard-plan",), "Missing option '--to'"),
        (("export",), "Missing argument 'DEST'"),
        (("stats", "--conf", "memory"), "expected NAME=VALUE"),
        (("stats", "--prefix", "xyz", "--encoding", "hex"), "expected hex, found 'xyz'"),
        (("stats", "--path", "x", "--connect", "h:1"), "expected --connect or --path, found both"),
        (("stats", "--connect", "nowhere"), "host:port"),
        (("sort",), "No such command 'sort'"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    done = run("job", "run", *words, "--json")
    assert done.returncode == 2
    error = error_of(done)
    assert error["code"] == "invalid_request"
    assert said in error["message"]


def test_settings_of_spark_may_be_repeated_and_hold_equal_signs() -> None:
    words = ["--conf", "a.b=1", "--conf", "c=d=e"]
    context = run_command.commands["stats"].make_context("stats", words)
    assert context.meta[CONF] == {"a.b": "1", "c": "d=e"}
    with pytest.raises(click.BadParameter):
        run_command.commands["stats"].make_context("stats", ["--conf", "=1"])
