"""An ordinary user's subordinate ids, from /etc/subuid and /etc/subgid (subuid(5))."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

NEEDED_IDS: Final = 1 << 16  # From root to `nobody` (65534) and one more, as images use them.
_MAX_ID: Final = 0xFFFF_FFFF  # It means no id at all.


def first_subordinate_id(file: Path) -> int | None:
    """Return the first id of this user's first range of 65,536."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return None
    return parse_subordinate(text, name=user_name(), uid=os.geteuid())


def parse_subordinate(text: str, *, name: str, uid: int) -> int | None:
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        start, _, count = rest.partition(":")
        if owner not in {name, str(uid)} or not (_is_number(start) and _is_number(count)):
            continue
        if int(count) >= NEEDED_IDS and 0 < int(start) <= _MAX_ID - int(count):
            return int(start)
    return None


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def grant_hint(name: str) -> str:
    return (
        f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name} (any "
        f"unused range)"
    )


def _is_number(text: str) -> bool:
    # `isdigit` alone takes other scripts' digits; 2^32 has ten.
    return text.isascii() and text.isdigit() and len(text) <= 10
