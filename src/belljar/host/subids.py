"""Subordinate ids: what lets an ordinary user map a range of ids besides his own."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final

from belljar.host.model import IdsFact
from belljar.host.tools import SEARCH_PATH

NEEDED_IDS: Final = 1 << 16
MAPPERS: Final = ("newuidmap", "newgidmap")
_MOST_ID: Final = 0xFFFF_FFFF


def ids_fact(*, is_root: bool, etc: Path = Path("/etc"), search_path: str = SEARCH_PATH) -> IdsFact:
    """Whether this user's containers can have ids of their own.

    Root's can: it gives each a range that nobody has.
    """
    if is_root:
        return IdsFact(available=True)
    missing = [name for name in MAPPERS if shutil.which(name, path=search_path) is None]
    if missing:
        return IdsFact(
            available=False,
            reason=f"{' and '.join(missing)} can't be found",
            hint="install the package uidmap",
        )
    name, uid = _user_name(), os.geteuid()
    files = {
        file: parse_subordinate(_text(etc / file), name=name, uid=uid)
        for file in ("subuid", "subgid")
    }
    without = [f"/etc/{file}" for file, start in files.items() if start is None]
    if without:
        return IdsFact(
            available=False,
            reason=f"{name} has no {NEEDED_IDS:,} subordinate ids in {' or '.join(without)}",
            hint=grant_hint(name),
        )
    return IdsFact(available=True, uid_start=files["subuid"] or 0, gid_start=files["subgid"] or 0)


def grant_hint(name: str) -> str:
    """What gives this user ids."""
    return (
        f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name} (any "
        f"range that nobody has)"
    )


def parse_subordinate(text: str, *, name: str, uid: int) -> int | None:
    """The first id of the first range of 65,536 or more that a file like /etc/subuid gives this
    user, by name or uid. Lines that can't be read are left out.
    """
    for line in text.splitlines():
        owner, _, rest = line.strip().partition(":")
        start, _, count = rest.partition(":")
        if owner not in {name, str(uid)} or not (_is_number(start) and _is_number(count)):
            continue
        if int(count) >= NEEDED_IDS and 0 < int(start) <= _MOST_ID - int(count):
            return int(start)
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
