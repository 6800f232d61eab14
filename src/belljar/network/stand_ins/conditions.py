"""Which bytes of a file a request is answered with: preconditions (RFC 9110, section 13) and one
range (section 14). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

FIELDS: Final = (
    "if-match",
    "if-unmodified-since",
    "if-none-match",
    "if-modified-since",
    "if-range",
    "range",
)
"""All that decides, besides the method."""
_RANGE: Final = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII)
_MAX_DATE_CHARS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is asked for. `etag` is a strong validator, without its quotes."""

    etag: str
    modified_s: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """The answer's status (200, 206, 304, 412 or 416) and, of the first two, which bytes: `[start,
    end)`.
    """

    status: int
    start: int = 0
    end: int = 0


def share_of(method: str, fields: Mapping[str, str], stored: Stored) -> Share:
    """What a GET or HEAD is answered with.

    `fields` have lower-case names. Several ranges in one request are answered by the whole, as the
    RFC allows. Total.
    """
    if "if-match" in fields:
        if not _names(fields["if-match"], stored.etag):
            return Share(412)
    elif (
        since := _date(fields.get("if-unmodified-since", ""))
    ) is not None and stored.modified_s > since:
        return Share(412)
    if is_fresh(fields, stored.etag, stored.modified_s):
        return Share(304)
    return _range(method, fields, stored)


def is_fresh(fields: Mapping[str, str], etag: str, modified_s: int) -> bool:
    """Whether the client's copy is the newest: by `If-None-Match`, or, without it, by
    `If-Modified-Since` (13.2.2).
    """
    if "if-none-match" in fields:
        return etag_matches(fields["if-none-match"], etag)
    since = _date(fields.get("if-modified-since", ""))
    return since is not None and modified_s <= since


def etag_matches(stated: str, etag: str) -> bool:
    """Whether `If-None-Match` names this entity (weak comparison)."""
    return _names(stated, etag) or f'W/"{etag}"' in _tags(stated)


def _range(method: str, fields: Mapping[str, str], stored: Stored) -> Share:
    whole, size = Share(200, 0, stored.size_bytes), stored.size_bytes
    match = _RANGE.fullmatch(fields.get("range", ""))
    condition = fields.get("if-range", "")
    if match is None or match.groups() == ("", "") or method != "GET":
        return whole
    if condition and condition != f'"{stored.etag}"' and _date(condition) != stored.modified_s:
        return whole
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)
        if match[2] and int(match[2]) < start:
            return whole
    else:
        start, end = max(0, size - int(match[2])), size
    return Share(206, start, end) if start < end else Share(416)


def _names(stated: str, etag: str) -> bool:
    """Strong comparison."""
    return not {f'"{etag}"', "*"}.isdisjoint(_tags(stated))


def _tags(stated: str) -> list[str]:
    return [tag.strip() for tag in stated.split(",")]


def _date(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text[:_MAX_DATE_CHARS]).timestamp()) if text else None
    except (ValueError, OverflowError, OSError):  # the last: a date of no zone, far away
        return None
