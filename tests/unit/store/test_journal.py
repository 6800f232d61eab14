"""The journal: what is written is read back, what is damaged harms nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.store.journal import Journal, JournalEntry, own_entry

CELL = "c-0123456789ab"


def entry(home: Path, **changes: object) -> JournalEntry:
    fields: dict[str, object] = {
        "cgroups": (Path(f"/sys/fs/cgroup/memory/cell-{CELL}"),),
        "directories": (home / f"proof-{CELL}",),
        "host_uid": 0x70000001,
        "namespaces": {"pid": 4026531836},
    }
    return own_entry(CELL, "cell", **{**fields, **changes})


def test_a_living_owner_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    """The same pid with another start time, or from another boot, is another process."""
    mine = entry(tmp_path)
    assert mine.owner_lives()
    for other in ({"owner": {"pid": os.getpid(), "start_ticks": 1}}, {"boot_id": "another"}):
        assert not JournalEntry.from_json({**mine.to_json(), **other}).owner_lives()


FOREIGN = ("/", "/etc", "relative/c-0123456789ab", "/a/../c-0123456789ab/..", "/srv/c-other")


@pytest.mark.parametrize("field", ["cgroups", "directories"])
def test_an_entry_names_only_its_own(tmp_path: Path, field: str) -> None:
    """A damaged or forged entry can't make reaping remove what is not the cell's."""
    for path in FOREIGN:
        with pytest.raises(ValueError, match="does not belong"):
            JournalEntry.from_json({**entry(tmp_path).to_json(), field: [path]})
    with pytest.raises(ValueError, match="not a cell id"):
        Journal(tmp_path).remove("../../etc/passwd")


def test_an_entry_that_lacks_a_part_is_none(tmp_path: Path) -> None:
    """It would be taken for a cell of which nothing is left, and forgotten."""
    for field in ("cgroups", "directories", "host_uid", "supervisor", "child", "namespaces"):
        words = entry(tmp_path).to_json()
        del words[field]
        with pytest.raises(ValueError, match="entry"):
            JournalEntry.from_json(words)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_anything_else_is_no_entry(data: object) -> None:
    """Whatever JSON lies there: an entry or a `ValueError`, nothing else."""
    with pytest.raises(ValueError, match="entry"):
        JournalEntry.from_json(data)  # type: ignore[arg-type]


def test_damaged_files_are_told_apart(tmp_path: Path) -> None:
    """A file that can't be read is reported, and the others are still found."""
    journal = Journal(tmp_path)
    journal.write(entry(tmp_path))
    damaged = ("{", "[" * 16_000, json.dumps(entry(tmp_path).to_json()))
    files = {
        journal.directory / f"c-{number:012x}.json": text for number, text in enumerate(damaged)
    }
    for path, text in files.items():
        path.write_text(text)
    assert len(journal.entries()) == 1
    assert set(journal.unreadable()) == files.keys()
    for path in journal.directory.iterdir():
        path.unlink()
