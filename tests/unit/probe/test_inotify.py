"""The kernel's word on one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.probe.witness import watch_file


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda path: path.read_bytes(), "read"),
        (lambda path: os.close(os.open(path, os.O_RDONLY)), "opened"),
        (lambda path: path.write_text("x"), "changed"),
        (lambda path: path.chmod(0o600), "its attributes changed"),
        (lambda path: path.rename(path.with_suffix(".moved")), "moved"),
        (lambda path: path.unlink(), "removed"),
    ],
)
def test_each_act_is_seen_once(tmp_path: Path, act: Callable[[Path], object], word: str) -> None:
    """What anybody does to the file is said once; before and after there is silence."""
    file = tmp_path / "f"
    file.write_text("content")
    with watch_file(file) as happened:
        assert happened() == []
        act(file)
        assert word in happened()
        assert word not in happened()


def test_what_is_not_there_can_not_be_watched(tmp_path: Path) -> None:
    """A missing file is an error, not a silent watch."""
    with pytest.raises(FileNotFoundError):
        watch_file(tmp_path / "missing").__enter__()
