"""An author's files are read, or it is said why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.network.stand_ins.faults import Fault, read_file


@pytest.mark.parametrize(
    "name", ["", "../a", "/etc/passwd", "none", "dir", "out", "pipe", "a\0b", 3, None]
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: object) -> None:
    """A file outside, absent, or none is a sentence, not an exception."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/dir").mkdir()
    os.mkfifo(tmp_path / "in/pipe")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in/out").symlink_to("../secret")
    assert isinstance(read_file(tmp_path / "in", name, 100), Fault)


def test_what_is_too_large_says_so(tmp_path: Path) -> None:
    """It is not read in part."""
    (tmp_path / "a").write_bytes(b"x" * 101)
    assert "larger than" in str(read_file(tmp_path, "a", 100))
    assert read_file(tmp_path, "a", 101) == b"x" * 101


def test_a_fault_names_its_place_and_is_escaped() -> None:
    """File, line, column and field are there if known; what an author wrote can't act on a
    terminal."""
    assert str(Fault(message="bad", path=("a", 0, "b"))) == "a[0].b: bad"
    assert (
        str(Fault(message="bad", file="x.yaml", line=2, column=3, path=("a",)))
        == "x.yaml:2:3: a: bad"
    )
    assert str(Fault(message="bad", file="x\x1b[0m")) == "x\\x1b[0m: bad"
