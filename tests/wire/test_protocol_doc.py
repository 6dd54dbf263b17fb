"""`docs/PROTOCOL.md` says what the code does: every kind, field, number, limit and example.

The document is read as a client's author reads it: sections by their heading, tables by their
columns, examples in their fences. What is missing, extra or has another number fails. Copies of
the document with one such mistake each prove that it would.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import pytest

from shardnode.wire import errors, frames, kinds, limits, placement
from shardnode.wire.codec import parts_of
from shardnode.wire.cursors import ScanCursor, WatchCursor, position_of
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.replies import REPLIES
from shardnode.wire.requests import REQUESTS
from tests.wire.make_vectors import BATCH, EXAMPLES, FOLDER, LIMITS

TEXT = (FOLDER.parents[1] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
CHOICES = [
    value
    for value in vars(kinds).values()
    if inspect.isclass(value) and issubclass(value, IntEnum) and value not in (IntEnum, Kind)
]
SCAN = ScanCursor(3, [0, 2], [b"user:1", b""])
WATCH = WatchCursor(3, [0, 1], [position_of(70), 0])
_SHOWN = [*(body for pair in EXAMPLES.values() for body in pair), BATCH, SCAN, WATCH]
BODIES = {type(body).__name__: body for body in reversed(_SHOWN)}
"""The first example of each class, which is the one in the document."""
WIRE_TYPES = {bytes: "bin", int: "int", str: "str"}

Row = dict[str, str]


class Document:
    """The sections of a markdown text by heading; each has its tables and its fenced blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
        self.sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert len(self.sections) == len(parts) // 2, "two headings are the same"

    def tables(self, heading: str) -> list[list[Row]]:
        """Each table as rows by column; code marks are taken off."""
        found = []
        for block in re.findall(r"(?:^\|.*\n)+", self.sections[heading], flags=re.MULTILINE):
            head, _, *lines = [
                [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
                for line in block.splitlines()
            ]
            found.append([dict(zip(head, line, strict=True)) for line in lines])
        return found

    def table(self, heading: str, *columns: str) -> list[Row]:
        """The one table of a section that has these columns."""
        (found,) = [t for t in self.tables(heading) if t and set(columns) <= set(t[0])]
        return found

    def fences(self, language: str, heading: str | None = None) -> list[str]:
        text = self.text if heading is None else self.sections[heading]
        return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def vectors(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def strings_in(value: Any) -> Iterator[str]:
    """Every text somewhere in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


def check_kinds(doc: Document) -> None:
    assert [
        (int(r["number"]), r["kind"], r["request"], r["reply"], r["write"] == "yes")
        for r in doc.table("Kinds", "kind")
    ] == [
        (k.value, k.name, REQUESTS[k].__name__, REPLIES[k].__name__, k in kinds.WRITES)
        for k in Kind
    ]
    ranges = [(int(r["from"]), int(r["to"]), r["for"]) for r in doc.table("Kinds", "from", "to")]
    assert ranges == list(kinds.KIND_RANGES)


def check_routing(doc: Document) -> None:
    routed = {Kind[r["kind"]]: r["routed by"] for r in doc.table("Kinds", "kind")}
    assert {k for k, by in routed.items() if by == "namespace"} == kinds.PARTITION_ADDRESSED
    assert {k for k, by in routed.items() if by == "shard"} == kinds.SHARD_ADDRESSED
    fields = {kind: {part.name for part in parts_of(cls)} for kind, cls in REQUESTS.items()}
    for kind, by in routed.items():
        if by in ("key", "group"):
            assert {by, f"{by}s", f"then_{by}s"} & fields[kind], kind.name
    explained = {row["routed by"] for row in doc.table("Which shard", "routed by")}
    assert explained == set(routed.values())


def check_bodies(doc: Document) -> None:
    described = {name for name in doc.sections if re.fullmatch(r"(?:[A-Z][a-z]+)+", name)}
    others = {c.__name__ for c in CHOICES} | {
        "Transport", "Frames", "Bodies", "Kinds", "Keys", "Sessions", "Streams", "Control",
        "Choices", "Errors", "Cursors", "Limits", "Versions",
    }  # fmt: skip
    assert described - others == set(BODIES)
    for name, body in BODIES.items():
        table = doc.table(name, "field", "type") if parts_of(type(body)) else []
        assert [(row["field"], row["type"]) for row in table] == [
            (part.name, part.field.about) for part in parts_of(type(body))
        ], name
        (example,) = doc.fences("hex", name)
        assert bytes.fromhex(example) == body.encode(), name


def check_table_body(doc: Document) -> None:
    rows = doc.table("The table on the wire", "field")
    parts = parts_of(placement._TableBody)
    assert [(r["field"], r["type"]) for r in rows] == [(p.name, p.field.about) for p in parts]
    (example,) = doc.fences("hex", "The table on the wire")
    assert bytes.fromhex(example) == placement.initial_table(4).encode()


def check_choices(doc: Document) -> None:
    for enum in CHOICES:
        rows = doc.table(enum.__name__, "number", "name")
        assert {r["name"]: int(r["number"]) for r in rows} == {m.name: m.value for m in enum}
    assert len([s for s in doc.sections if s in {c.__name__ for c in CHOICES}]) == len(CHOICES)
    flags = {r["flag"]: 1 << int(r["bit"]) for r in doc.table("Request header", "bit")}
    assert flags == {flag.name: flag.value for flag in Flag}


def check_errors(doc: Document) -> None:
    def details(cls: type[errors.ShardnodeError]) -> str:
        pairs = (f"`{name}` {WIRE_TYPES[type_]}" for name, type_ in cls.detail_types.items())
        return (", ".join(pairs) or "–").strip("`")

    rows = doc.table("Errors", "number", "code")
    assert [(int(r["number"]), r["code"], r["retryable"], r["details"]) for r in rows] == [
        (number, cls.code, "yes" if cls.retryable else "no", details(cls))
        for number, cls in errors.CODES.items()
    ]
    advice = re.findall(r"^- `(\w+)`: \S", doc.sections["Errors"], flags=re.MULTILINE)
    assert advice == [cls.code for cls in errors.CODES.values()]
    refinements = doc.table("Errors", "refinement")
    assert [(int(r["of"]), r["refinement"], r["details"]) for r in refinements] == [
        (*key, details(cls)) for key, cls in errors.REFINEMENTS.items()
    ]


def check_limits(doc: Document) -> None:
    rows = doc.table("Limits", "limit")
    assert [(r["limit"], int(r["value"].replace(",", ""))) for r in rows] == [*LIMITS.items()]


def check_headers(doc: Document) -> None:
    layouts: dict[str, tuple[bytes, Any, tuple[str, ...]]] = {
        "Request header": (frames.REQUEST_MAGIC, frames._REQUEST, frames.Header._fields),
        "Reply header": (frames.REPLY_MAGIC, frames._REPLY, frames.ReplyHeader._fields),
    }
    for heading, (magic, struct, names) in layouts.items():
        rows = doc.table(heading, "offset", "field")
        assert rows[0]["meaning"] == magic.decode()
        assert [row["field"] for row in rows] == ["magic", *names]
        sizes = [int(row["size"]) for row in rows]
        assert [int(row["offset"]) for row in rows] == [sum(sizes[:n]) for n in range(len(sizes))]
        letters = {2: "H", 4: "I", 8: "Q", 16: "16s"}
        assert struct.format == ">4s" + "".join(letters[size] for size in sizes[1:])
        assert f"{struct.size} bytes, big endian" in doc.sections[heading]


def check_placement(doc: Document) -> None:
    known = {bytes.fromhex(v["key"]): v for v in vectors("placement.json")["keys"]}
    rows = doc.table("Which shard", "key", "slot")
    assert {"user:1", "{user:1}:cart"} <= {row["key"] for row in rows}
    for row in rows:
        vector = known[row["key"].encode()]
        assert (row["hashed bytes"], row["XXH64"]) == (vector["hashed"], vector["hash"])
        assert int(row["slot"]) == vector["slot"]
        shards = [int(row[column]) for column in ("of 4 shards", "of 7", "of 100")]
        assert shards == [vector["shard_of"][n] for n in ("4", "7", "100")]
    for columns, name in (
        (("stream", "topic", "partition", "namespace", "slot"), "namespaces"),
        (("shard", "node", "member"), "members"),
    ):
        rows = doc.table("Which shard", *columns)
        found = [tuple(row[column] for column in columns) for row in rows]
        published = vectors("placement.json")[name]
        assert found == [tuple(str(vector[column]) for column in columns) for vector in published]
    parts = [[*row.values()] for row in doc.table("Which shard", "key", "partitions")]
    assert parts == [
        [bytes.fromhex(v["key"]).decode(), str(v["partitions"]), str(v["partition"])]
        for v in vectors("placement.json")["message_keys"]
    ]


def check_frames(doc: Document) -> None:
    shown = []
    for fence in doc.fences("frames"):
        joined = fence.replace("\n  ", "").replace("(empty)", "")
        shown.append(joined.removesuffix("\n").split("\n"))
    published = vectors("frames.json")
    by_name = {(part, v["name"]): v["frames"] for part in published for v in published[part]}
    assert shown == [
        by_name["requests", "sharded"],
        by_name["requests", "placed by the router"],
        by_name["requests", "legacy from a REQ socket"],
        by_name["replies", "legacy from a REQ socket"],
    ]


def check_worked_example(doc: Document) -> None:
    heading = "One put, byte by byte"
    published = vectors("frames.json")
    request, reply = (published[part][0]["frames"] for part in ("requests", "replies"))
    spelled = []
    for table in doc.tables(heading):
        pieces = [row["bytes"] for row in table]
        sizes = [len(piece) // 2 for piece in pieces]
        assert [int(row["offset"]) for row in table] == [sum(sizes[:n]) for n in range(len(sizes))]
        spelled.append("".join(pieces))
    assert spelled == [request[1], request[3], reply[1], reply[2]]
    inline = re.findall(r"^.*rame \d, the .*: `([0-9a-f]+)`", doc.sections[heading], re.MULTILINE)
    assert inline == [request[0], request[2], reply[0]]


def check_every_other_example(doc: Document) -> None:
    """No hexadecimal text in the document is of its own making."""
    published = {text for name in FOLDER.glob("*.json") for text in strings_in(vectors(name.name))}
    published |= {"f" * 8, SCAN.encode().hex(), WATCH.encode().hex()}  # published as text
    inline = re.findall(r"`([0-9a-f]{8,})`", doc.text)
    fences = [*doc.fences("hex"), *doc.fences("zstd")]
    fenced = ["".join(fence.split()) for fence in fences]
    for table in doc.tables("One put, byte by byte"):
        published |= {row["bytes"] for row in table}
    assert [text for text in inline + fenced if text not in published] == []
    assert f"the letter `s`: `{SCAN.to_text()}`" in doc.text
    assert f"the letter `w`: `{WATCH.to_text()}`" in doc.text


CHECKS: list[Callable[[Document], None]] = [
    check_kinds,
    check_routing,
    check_bodies,
    check_table_body,
    check_choices,
    check_errors,
    check_limits,
    check_headers,
    check_placement,
    check_frames,
    check_worked_example,
    check_every_other_example,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_document_says_what_the_code_does(check: Callable[[Document], None]) -> None:
    check(Document(TEXT))


MISTAKES: list[tuple[Callable[[Document], None], str, str]] = [
    (check_kinds, r"^\| 5 \| DELETE_MANY .*\n", ""),
    (check_kinds, r"^\| 5 \| DELETE_MANY", "| 12 | DELETE_MANY"),
    (
        check_kinds,
        r"^(\| 5 \| DELETE_MANY .*\n)",
        r"\1| 12 | EXTRA | Put | Written | key | yes |\n",
    ),
    (check_kinds, r"^\| 1 \| 31 \|", "| 1 | 30 |"),
    (check_routing, r"(SCAN \| Scan \| Page \|) shard", r"\1 key"),
    (check_routing, r"^\| group \|.*\n", ""),
    (check_bodies, r"^#### Written$", "#### Wrote"),
    (check_bodies, r"^(#### Put\n)", r"#### Extra\n\n\1"),
    (check_bodies, r"^\| `ttl_ms` \| int 0..ttl_ms_max \|\n", ""),
    (check_bodies, r"^9492c40161c402ff", "9492c40161c402fe"),
    (check_table_body, r"^\| `run_lengths` .*\n", ""),
    (check_choices, r"^\| 2 \| STALE", "| 3 | STALE"),
    (check_choices, r"^\| 1 \| FORWARDED .*\n", ""),
    (check_errors, r"^\| 7 \| `not_found` .*\n", ""),
    (check_errors, r"^\| 7 \| `not_found`", "| 17 | `not_found`"),
    (check_errors, r"^(\| 7 \| `not_found` .*\n)", r"\1| 15 | `extra` | no | – |\n"),
    (check_errors, r"^- `denied`: .*\n", ""),
    (check_errors, r"(`overloaded` \|) yes", r"\1 no"),
    (check_errors, r"^\| `limit_exceeded` .*\n", ""),
    (check_limits, r"^\| `key_bytes_max` \| 480", "| `key_bytes_max` | 481"),
    (check_limits, r"^\| `key_bytes_max` \| .*\n", ""),
    (check_headers, r"^\| 16 \| 8 \| epoch", "| 16 | 4 | epoch"),
    (check_headers, r"`SNRP`", "`SNRX`"),
    (check_placement, r"\| 2377 \|", "| 2378 |"),
    (check_placement, r"\| 842479 \|", "| 842478 |"),
    (check_frames, r"^534e5251", "534e5250"),
    (check_worked_example, r"^\| 4 \| `0001`", "| 4 | `0002`"),
    (check_every_other_example, r"`8000000000000001`", "`8000000000000003`"),
    (check_every_other_example, r"^28b52ffd20", "28b52ffd21"),
]


@pytest.mark.parametrize(("check", "pattern", "wrong"), MISTAKES)
def test_mistake_in_the_document_is_found(
    check: Callable[[Document], None], pattern: str, wrong: str
) -> None:
    mistaken, count = re.subn(pattern, wrong, TEXT, count=1, flags=re.MULTILINE)
    assert count == 1, "the sample is no longer in the document"
    with pytest.raises((AssertionError, ValueError, KeyError)):
        check(Document(mistaken))


def test_every_check_is_proved_by_a_mistake() -> None:
    assert {check for check, _, _ in MISTAKES} == set(CHECKS)


def test_lines_fit_and_links_lead_somewhere() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 100] == []
    anchors = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in Document(TEXT).sections}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors
    assert limits.frame_bytes_max == 16 << 20  # what the section on transport builds on
