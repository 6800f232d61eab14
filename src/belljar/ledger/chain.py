"""Canonical JSON, digests, and how a line is bound to the line before it. Pure.

A line is the RFC 8785 form of an object; its `prev` is the SHA-256 of the previous line's bytes,
without the newline.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import rfc8785

NO_LINE: Final = "0" * 64
"""The `prev` of the first line."""

_MAX_INT: Final = 2**53 - 1
_MAX_DIGITS: Final = len(str(-_MAX_INT))


def sha256_hex(content: bytes) -> str:
    """The SHA-256 of the bytes, 64 lower-case hex digits."""
    return hashlib.sha256(content).hexdigest()


def canonical(value: object) -> bytes:
    """The RFC 8785 form of a JSON value.

    Text that UTF-8 can't carry (lone surrogates, as undecodable arguments give) is written as its
    escape, six characters of text: a record is never refused for the bytes a guest or an operator
    chose.

    Raises:
        ValueError: NaN, an infinity, an integer beyond ±(2^53 − 1), or something that is not JSON.
    """
    if _is_plain(value) or _is_plain(value := _with_whole_numbers(value)):
        text = _encode(value)
        # Where json's form and RFC 8785's can differ (some floats, the order of keys beyond ASCII),
        # the library decides. They agree on the rest, and this is four times faster.
        if text.isascii():
            return text.encode("ascii")
    anything: Any = value  # The library itself refuses what is not JSON.
    try:
        return rfc8785.dumps(anything)
    except rfc8785.CanonicalizationError:
        return rfc8785.dumps(_encodable(anything))


def parse_canonical(line: bytes) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        ValueError: not UTF-8, not JSON, not an object, too deep, or JSON but not in canonical form
            (which also refuses duplicate keys).
    """
    try:
        value = json.loads(line, parse_int=_number)
        again = canonical(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if again != line:
        raise ValueError("not in canonical form (RFC 8785)")
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _number(digits: str) -> int | float:
    # JSON's numbers are doubles: an integer beyond what they hold exactly can only be canonical as
    # a float's form.
    exact = len(digits) <= _MAX_DIGITS and abs(int(digits)) <= _MAX_INT
    return int(digits) if exact else float(digits)


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False
).encode


def _is_plain(value: object) -> bool:
    """No odd floats, no large integers, only text as keys: json's own encoder then gives the
    canonical form, if all of it is ASCII.
    """
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return -_MAX_INT <= value <= _MAX_INT
    if isinstance(value, float):
        # Python and ECMAScript write these alike: the shortest digits, no exponent, not a whole
        # number.
        return 1e-4 <= abs(value) < 1e16 and not value.is_integer()
    if isinstance(value, dict):
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, list | tuple) and all(map(_is_plain, value))


def _with_whole_numbers(value: Any) -> Any:  # noqa: ANN401 - JSON, whatever it is
    """The same for RFC 8785, which writes 60.0 as 60."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _MAX_INT else value
    if isinstance(value, dict):
        return {key: _with_whole_numbers(inner) for key, inner in value.items()}
    return list(map(_with_whole_numbers, value)) if isinstance(value, list | tuple) else value


def _encodable(value: Any) -> Any:  # noqa: ANN401 - JSON, whatever it is
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    return [_encodable(inner) for inner in value] if isinstance(value, list | tuple) else value
