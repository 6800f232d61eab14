"""Sizes and durations, read and shown; `printable`, the one escape; message words."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable
from typing import Final

# By the IEC's and SI's prefixes: no unit means 1024 in one tool and 1000 in another.
_SIZE_UNITS: Final = {
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
}
# Up to days: months and years have no fixed length.
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# The digits are bounded, since the text is anybody's and `int` takes the square of their number.
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]{1,3})\s*", re.ASCII)
# `ms` before `m`: the first alternative that fits is taken.
_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d)\s*", re.ASCII)

# YAML and JSON can write one; no program, file or record can hold it.
SURROGATE: Final = re.compile("[\ud800-\udfff]")
ALL_PORTS: Final = 0  # Of a target cell.
# As the author of a YAML file says it, not as Python does.
_KINDS: Final = {
    bool: "true/false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}


def parse_size(text: str) -> int:
    """Return `"512MiB"` as whole bytes. Raises `ValueError`."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(
            f"{printable(text)!r} is not a size; write a number and a unit, as in 512MiB; "
            "units: B, KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000)"
        )
    unit_bytes = _SIZE_UNITS[match[2].lower()]
    # A whole number never goes through a float, which is exact up to 2^53 only.
    return int(float(match[1]) * unit_bytes) if "." in match[1] else int(match[1]) * unit_bytes


def parse_duration(text: str) -> float:
    """Return `"1h30m"` as seconds. Raises `ValueError`."""
    rest, total = text.strip(), 0.0
    if not rest:
        raise ValueError("an empty duration; write a number with ms, s, m, h or d, as in 30m")
    while rest:
        match = _DURATION_PART.match(rest)
        if match is None:
            raise ValueError(
                f"{printable(text)!r} is not a duration; write a number with ms, s, m, h or d, "
                f"as in 30m or 1h30m"
            )
        total += float(match[1]) * _DURATION_UNITS[match[2]]
        rest = rest[match.end() :]
    return total


def format_size(size_bytes: int) -> str:
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # Not as 1024.0 of the smaller unit
        if round(size, 1) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size == int(size) else f"{size:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Return `850 ms`, `12.5 s`, `1h30m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left, text = round(seconds), ""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length_s)
        text += f"{count}{unit}" if count else ""
    return text


def iso_time(seconds: float) -> str:
    """Return a UTC time in whole seconds (ISO 8601)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds)))


def printable(text: str | bytes, *, max_chars: int = 4096) -> str:
    """Return the text with everything made visible that could act on a terminal or hide.

    Use it for every dynamic string that is shown. Undecodable bytes become `\\xNN`; text longer
    than `max_chars` is cut and marked.
    """
    if isinstance(text, bytes):
        # UTF-8 has at most four bytes a character, so the cut leaves more than is shown.
        text = text[: 4 * max_chars + 4].decode("utf-8", "backslashreplace") + (
            "…" if len(text) > 4 * max_chars + 4 else ""
        )
    shown = text[:max_chars]
    if not (shown.isascii() and shown.isprintable()):  # most text is: a tenth of the time
        shown = "".join(map(_visible, shown))
    return shown if len(text) <= max_chars else f"{shown}… (+{len(text) - max_chars} characters)"


# Nothing is drawn for these (Unicode's Default_Ignorable_Code_Point beyond format characters).
_UNSEEN: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)


def quoted(value: object) -> str:
    return f"`{printable(value if isinstance(value, str) else repr(value), max_chars=80)}`"


def _visible(char: str) -> str:
    if char in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[char]
    category = unicodedata.category(char)
    # C: controls, format characters, surrogates, private use and what Unicode has not assigned.
    if category[0] == "C" or category in {"Zl", "Zp"} or char in _UNSEEN:
        code = ord(char)
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def did_you_mean(word: object, allowed: Iterable[str]) -> str:
    """Return a message's end with the nearest allowed name."""
    import difflib

    text = word.lower()[:64] if isinstance(word, str) else ""
    near = difflib.get_close_matches(text, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def kind_of(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)
