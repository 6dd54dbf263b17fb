"""Holds the tree to the house rules of `scripts/_tidy.py`, and each rule to samples.

Every rule is shown bad samples that it must find and good ones that it must leave alone, so that no
rule can pass by looking at nothing.
"""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

import _tidy
from _tidy import DATA, PYTHON_RULES, ROOMS, ROOT, RULES, File, Rule, findings, tree

DOC = '"""A sample."""\n'
SLASH = "/"  # keeps the samples of machine paths from being such paths themselves

BAD: dict[Rule, list[tuple[str, str]]] = {
    _tidy.imports_follow_the_table: [
        ("raft/x.py", "import shardnode.storage"),
        ("raft/x.py", "from shardnode import storage"),
        ("raft/x.py", "from shardnode.wire.limits import KEY_BYTES_MAX"),
        ("raft/x.py", "import xxhash"),
        ("storage/x.py", "from ..raft import log"),
        ("storage/x.py", "def f():\n    from shardnode.raft import log"),
        ("storage/x.py", "import typing\nif typing.TYPE_CHECKING:\n    import shardnode.raft"),
        ("storage/x.py", "import importlib\nimportlib.import_module('shardnode.raft')"),
        ("storage/x.py", "import obstore"),
        ("storage/log.py", "import pyarrow"),
        ("shard/x.py", "import shardnode.router"),
        ("router/x.py", "from shardnode import shard"),
        ("router/x.py", "from shardnode import Client"),
        ("node/x.py", "from shardnode.raft import core"),
        ("node/x.py", "from shardnode.shard.loop import Loop"),
        ("client/x.py", "import storage"),
        ("sim/x.py", "import rich"),
        ("testing/x.py", "from shardnode.cli.main import main"),
        ("bench/x.py", "import redis"),
        ("bench/x.py", "import shardnode.cli"),
        ("cli/x.py", "import shardnode.node"),
        ("wire/x.py", "from tests.wire import helpers"),
        ("scripts/x.py", "import click"),
    ],
    _tidy.relative_imports_stay_in_their_room: [
        ("storage/x.py", "from ..raft import log"),
        ("storage/tier/x.py", "from ... import raft"),
        ("src/shardnode/x.py", "from . import raft"),
    ],
    _tidy.imports_are_named: [("wire/x.py", "from shardnode.wire.limits import *")],
    _tidy.raft_imports_only_what_computes: [
        ("raft/x.py", f"import {name}")
        for name in ("time", "os", "socket", "threading", "asyncio", "select", "subprocess", "io")
    ]
    + [("raft/x.py", "def f():\n    from time import monotonic")],
    _tidy.banned_names_are_not_used: [
        ("wire/x.py", "hash(b'key')"),
        ("wire/x.py", "sorted([], key=hash)"),
        ("tests/x.py", "import pickle"),
        ("node/x.py", "from marshal import dumps"),
        ("node/x.py", "def f():\n    import shelve"),
        ("storage/x.py", "import time\ntime.time()"),
        ("storage/x.py", "import time as t\nclock = t.time_ns"),
        ("shard/x.py", "from time import time"),
        ("shard/x.py", "import datetime\ndatetime.datetime.now(datetime.UTC)"),
        ("sim/x.py", "from datetime import datetime\ndatetime.now()"),
        ("tests/x.py", "import random\nrandom.choice([1, 2])"),
        ("client/x.py", "from random import randint"),
        ("node/x.py", "import os\nos.fork()"),
        ("node/x.py", "print('ready')"),
        ("sim/x.py", "print('ready')"),
        ("raft/x.py", "open('log')"),
    ],
    _tidy.errors_are_not_swallowed: [
        ("wire/x.py", "try:\n    f()\nexcept:\n    raise"),
        ("wire/x.py", "try:\n    f()\nexcept Exception:\n    pass"),
        ("tests/x.py", "try:\n    f()\nexcept BaseException as e:\n    ..."),
        ("wire/x.py", "from contextlib import suppress\nwith suppress(Exception):\n    f()"),
    ],
    _tidy.modules_say_what_they_own: [("wire/x.py", ""), ("tests/x.py", "import os")],
    _tidy.files_are_short: [("wire/x.py", "x = 1\n" * (_tidy.FILE_LINES_MAX + 1))],
    _tidy.functions_fit_on_a_screen: [
        ("wire/x.py", "def f():\n" + "    x = 1\n" * _tidy.FUNCTION_LINES_MAX),
        ("wire/x.py", "class C:\n async def f(self):\n" + "  x = 1\n" * _tidy.FUNCTION_LINES_MAX),
    ],
    _tidy.nothing_is_left_to_do: [
        ("wire/x.py", "x = 1  # TO" + "DO: later"),
        ("docs/X.md", "FIX" + "ME"),
        ("scripts/x", "# X" + "XX"),
    ],
    _tidy.no_file_knows_the_machine: [
        ("docs/X.md", f"cd {SLASH}home/ada/shardnode"),
        ("tests/x.py", f"ROOT = '{SLASH}Users/ada'"),
        ("scripts/x", f"python={SLASH}opt/python/bin/python3"),
        ("pyproject.toml", "index = 'https://pypi" + ".org/simple'"),
    ],
}

GOOD = [
    ("raft/x.py", "import random\n\nimport shardnode.raft.log\n\nx: random.Random\nx.random()"),
    ("raft/x.py", "from .log import Log\nfrom . import log"),
    ("storage/tier/x.py", "from ..log import Log"),
    ("storage/snapshot_file.py", "import pyarrow"),
    ("storage/x.py", "def f():\n    import obstore"),
    ("shard/__main__.py", "import time\n\nclock = time.time"),
    ("node/x.py", "import time\n\nfrom shardnode.shard import Settings\n\ntime.time()"),
    ("node/x.py", "import shardnode.router.__main__"),
    ("sim/__main__.py", "import rich\n\nprint('seed 1')"),
    ("bench/x.py", "def f():\n    import redis\n\n    print(redis)"),
    ("cli/x.py", "import click\nfrom shardnode import __version__"),
    ("cli/x.py", "def f():\n    import shardnode.sim\n\n    print(shardnode)"),
    ("src/shardnode/__init__.py", "from shardnode.client import Client"),
    ("tests/x.py", "from shardnode.cli.main import main"),
    ("wire/x.py", "class Route:\n    hash: int\n\n\nRoute().hash"),
    ("wire/x.py", "try:\n    f()\nexcept Exception as error:\n    raise ValueError from error"),
    ("wire/x.py", "try:\n    f()\nexcept KeyError:\n    pass"),
    ("wire/x.py", "x = 'https://example.org/home/page ./home/ada ~/work/x /etc/pip.conf'"),
    ("wire/x.py", "def f():\n" + "    x = 1\n" * (_tidy.FUNCTION_LINES_MAX - 1)),
]


@pytest.fixture(scope="module")
def wrong() -> dict[Rule, list[str]]:
    """What each rule finds in the tree: file by file, so that each is read and parsed once."""
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for file in tree():
        if not any(fnmatch(file.path, pattern) for pattern in DATA.split()):
            for rule in RULES:
                if rule not in PYTHON_RULES or file.path.endswith(".py"):
                    found[rule] += findings(rule, file)
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_rule(rule: Rule, wrong: dict[Rule, list[str]]) -> None:
    assert not wrong[rule], "\n" + "\n".join(wrong[rule])


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        pytest.param(rule, path, text, id=f"{rule.__name__}-{number}")
        for rule, samples in BAD.items()
        for number, (path, text) in enumerate(samples)
    ],
)
def test_rule_finds_the_bad_sample(rule: Rule, path: str, text: str) -> None:
    assert len(findings(rule, File(path, text))) >= 1


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_no_rule_minds_the_good_sample(path: str, text: str) -> None:
    assert [line for rule in RULES for line in findings(rule, File(path, DOC + text))] == []


def test_walk_over_the_tree_reaches_every_room() -> None:
    assert {file.room for file in tree()} >= set(ROOMS)


def test_every_rule_has_a_bad_sample() -> None:
    assert set(BAD) == set(RULES)


def test_every_ban_is_proved_by_a_sample() -> None:
    messages = "\n".join(
        line
        for path, text in BAD[_tidy.banned_names_are_not_used]
        for line in findings(_tidy.banned_names_are_not_used, File(path, text))
    )
    assert [ban.names for ban in _tidy.BANS if ban.instead not in messages] == []


def test_table_names_every_room_and_each_is_linked_once() -> None:
    links = [path for path in (ROOT / "src" / "shardnode").iterdir() if path.is_symlink()]
    rooms = set(ROOMS) - {"src", "scripts"}
    assert {link.name: str(link.readlink()) for link in links} == {r: f"../../{r}" for r in rooms}
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= rooms
