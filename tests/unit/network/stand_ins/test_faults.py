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
