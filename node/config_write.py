"""A configuration as TOML: what is in force, and the reference of all settings.

The one rule: what is written is read back as the same configuration, and every line says where it
came from or what it is for.
"""

from __future__ import annotations

import json
import textwrap

from shardnode.node.config import SECTIONS, SETTINGS, Setting
from shardnode.node.config_kinds import Toml
from shardnode.node.config_load import Loaded

_REFERENCE_HEAD = """\
# Every setting of a node with its default and its reason. A line left out means its default, so a
# file of your own needs only what differs.
#
# A flag wins over the environment, the environment over the file. The variable of a setting is
# SHARDNODE_<SECTION>_<KEY>, as in SHARDNODE_SHARDING_SHARDS=4. Sizes have units of 1024 (KiB, MiB,
# GiB) or 1000 (KB, MB, GB), durations ms, s, m, h or d. Relative paths are relative to this file.
"""

_EFFECTIVE_HEAD = """\
# The configuration this node last started with, and where each setting came from. Written at every
# start and never read by the node: change your own file, flags or variables instead.
"""


def toml_value(value: Toml) -> str:
    """One value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    # A JSON string is a TOML string, but for one control character that only TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def show_toml(loaded: Loaded, *, origin: bool = False) -> str:
    """All settings; with `origin`, each with who decided it."""
    return _sections({path: _line(loaded, each, origin) for path, each in SETTINGS.items()})


def as_tree(loaded: Loaded, *, origin: bool = False) -> dict[str, dict[str, object]]:
    """Section → key → value for JSON; with `origin`, a value and who decided it."""
    tree: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for path, each in SETTINGS.items():
        value = each.kind.to_toml(loaded.config.value(each))
        by = {"value": value, "origin": loaded.origins[path].name}
        tree[each.section][each.key] = by if origin else value
    return tree


def effective_toml(loaded: Loaded) -> str:
    """What is kept beside the data. It says `data = "."`, so it still works after a move."""
    lines = {path: _line(loaded, each, True) for path, each in SETTINGS.items()}
    here = f"{loaded.origins['node.data'].name}: {loaded.config.node.data}"
    lines["node.data"] = f'data = "."  # {_one_line(here)}\n'
    return f"{_EFFECTIVE_HEAD}\n{_sections(lines)}"


def reference_toml() -> str:
    """The text of `configs/reference.toml`."""
    return f"{_REFERENCE_HEAD}\n{_sections({p: _explained(e) for p, e in SETTINGS.items()}, True)}"


def _sections(lines: dict[str, str], explain: bool = False) -> str:
    parts = []
    for section, cls in SECTIONS.items():
        own = [lines[path] for path, each in SETTINGS.items() if each.section == section]
        about = _comment(cls.__doc__ or "") if explain else ""
        parts.append(f"{about}[{section}]\n{''.join(own)}")
    return "\n".join(parts)


def _line(loaded: Loaded, each: Setting, origin: bool) -> str:
    value = toml_value(each.kind.to_toml(loaded.config.value(each)))
    name = _one_line(loaded.origins[each.path].name)
    return f"{each.key} = {value}{f'  # {name}' if origin else ''}\n"


def _explained(each: Setting) -> str:
    reason = f"{each.reason} Not available yet." if each.planned else each.reason
    return f"\n{_comment(reason)}{each.key} = {toml_value(each.kind.to_toml(each.default))}\n"


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, 96, break_on_hyphens=False))


def _one_line(text: str) -> str:
    """A path may hold anything; a comment ends with its line."""
    return "".join(char if char.isprintable() else "?" for char in text)
