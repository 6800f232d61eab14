"""Whether an ordinary user can map a range of ids besides the own one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from belljar.host.model import IdsFact
from belljar.host.tools import SEARCH_PATH
from belljar.subids import NEEDED_IDS, first_subordinate_id, grant_hint, user_name

MAPPERS: Final = ("newuidmap", "newgidmap")


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
    name = user_name()
    files = {file: first_subordinate_id(etc / file) for file in ("subuid", "subgid")}
    without = [f"/etc/{file}" for file, start in files.items() if start is None]
    if without:
        return IdsFact(
            available=False,
            reason=f"{name} has no {NEEDED_IDS:,} subordinate ids in {' or '.join(without)}",
            hint=grant_hint(name),
        )
    return IdsFact(available=True, uid_start=files["subuid"] or 0, gid_start=files["subgid"] or 0)
