"""Sizes and durations as people write them: "64MiB", "500ms".

The one rule: a unit is always said. A bare number is bytes where a size is asked for, because bytes
are what sizes are counted in; a duration without a unit is refused, because half of the world would
read it as seconds and the other half as milliseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction

SIZES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
DURATIONS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_TEXT_CHARS_MAX = 32
"""More digits than any size has; Python refuses to read a number of thousands of them."""

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


class BadValue(ValueError):
    """A value that a setting cannot have: what was expected, what was found, what to do."""

    def __init__(self, expected: str, found: str, remedy: str = "") -> None:
        self.expected, self.found, self.remedy = expected, found, remedy
        super().__init__(f"expected {expected}, found {found}" + (f"; {remedy}" if remedy else ""))


def shown(value: object) -> str:
    """A value for a message: as TOML would have it, cut when it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    if isinstance(value, dict):
        return "a table"
    text = ascii(value).replace("'", '"') if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def parse_size(text: str) -> int:
    """`"64MiB"` → 67108864. KB, MB … are powers of 1000; KiB, MiB … of 1024."""
    expected = 'a size such as "64MiB"'
    number, unit = _quantity(text, expected)
    factors = {name.lower(): factor for name, factor in SIZES.items()} | {"": 1}
    if unit.lower() not in factors:
        raise BadValue(expected, shown(text), _unit_remedy(text, unit, SIZES))
    return _whole(number * factors[unit.lower()], "bytes", expected, text)


def parse_duration_ms(text: str) -> int:
    """`"1.5s"` → 1500."""
    expected = 'a duration such as "500ms" or "5s"'
    number, unit = _quantity(text, expected)
    if unit not in DURATIONS_MS:
        raise BadValue(expected, shown(text), _unit_remedy(text, unit, DURATIONS_MS))
    return _whole(number * DURATIONS_MS[unit], "milliseconds", expected, text)


def format_size(size: int) -> str:
    """The shortest exact spelling: 67108864 → `64MiB`, 1000 → `1KB`."""
    return _format(size, SIZES)


def format_duration_ms(duration_ms: int) -> str:
    """The shortest exact spelling: 90000 → `90s`, 60000 → `1m`."""
    return _format(duration_ms, DURATIONS_MS)


def _quantity(text: str, expected: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _TEXT_CHARS_MAX else None
    if match is None:
        raise BadValue(expected, shown(text), "write a number and a unit")
    return Fraction(match[1]), match[2]


def _whole(amount: Fraction, unit: str, expected: str, text: str) -> int:
    if amount.denominator != 1:
        raise BadValue(expected, shown(text), f"it must be a whole number of {unit}")
    return int(amount)


def _unit_remedy(text: str, unit: str, units: dict[str, int]) -> str:
    known = ", ".join(units)
    if not unit:
        return f"add a unit ({known}): {text.strip()}s or {text.strip()}ms"
    near = [name for name in units if name.lower() == unit.lower()]
    near = near or [name for name in units if name.lower().startswith(unit[:1].lower())]
    number = text.strip().removesuffix(unit).strip()
    guess = " or ".join(f'"{number}{name}"' for name in near)
    return f"units are {known}" + (f"; did you mean {guess}?" if guess else "")


def _format(amount: int, units: dict[str, int]) -> str:
    exact = [f"{amount // factor}{name}" for name, factor in units.items() if amount % factor == 0]
    return min(exact, key=len) if amount else f"0{next(iter(units))}"
