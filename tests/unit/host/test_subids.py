"""Subordinate ids."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.host.subids import ids_fact, parse_subordinate


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("ann:100000:65536\n", 100000),
        ("1000:200000:65536\n", 200000),
        ("bob:100000:65536\nann:165536:1000\nann:300000:70000\n", 300000),
        ("ann:100000:65535\n", None),
        ("ann:0:65536\n", None),
        ("ann:4294967000:65536\n", None),
        ("ann:x:65536\nann:100000\n# ann:1:65536\n\nann:-5:65536\nann:１00000:65536\n", None),
    ],
)
def test_the_first_range_that_is_large_enough(text: str, start: int | None) -> None:
    """By name or uid; host root and what is no id are never in it."""
    assert parse_subordinate(text, name="ann", uid=1000) == start


@given(st.text())
def test_any_file_is_read(text: str) -> None:
    """A line that can't be read gives nothing."""
    parse_subordinate(text, name="ann", uid=1000)


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
