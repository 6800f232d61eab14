"""Subordinate ids."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from belljar.host.tools import ids_fact


def test_root_needs_none_and_a_user_is_told_what_lacks(tmp_path: Path) -> None:
    """First the tools, then the ids, each with the hint."""
    assert ids_fact(is_root=True).available
    tools = tmp_path / "bin"
    tools.mkdir()
    without = ids_fact(is_root=False, etc=tmp_path, search_path=str(tools))
    assert (without.available, without.reason) == (False, "newuidmap and newgidmap can't be found")
    for name in ("newuidmap", "newgidmap"):
        (tools / name).touch(mode=0o755)
    without = ids_fact(is_root=False, etc=tmp_path, search_path=str(tools))
    assert "no 65,536 subordinate ids in /etc/subuid or /etc/subgid" in without.reason
    assert "usermod" in without.hint
    name = pwd.getpwuid(os.geteuid()).pw_name
    for file in ("subuid", "subgid"):
        (tmp_path / file).write_text(f"{name}:100000:65536\n")
    found = ids_fact(is_root=False, etc=tmp_path, search_path=str(tools))
    assert (found.available, found.uid_start, found.gid_start) == (True, 100000, 100000)
