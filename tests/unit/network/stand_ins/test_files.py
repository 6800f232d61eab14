"""A stand-in's files: what is listed is what may be served, and an author's are read, or it is said
why not. Nothing that isn't in the table of kinds is ever imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.network.stand_ins import files
from belljar.network.stand_ins.files import read_file


def test_only_regular_files_are_listed_and_opened(tmp_path: Path) -> None:
    """Links, pipes and hidden files are not, whatever they are called."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"a")
    (tmp_path / "link.deb").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / ".hidden").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.deb")
    assert [file.name for file in files.list_files(tmp_path)] == ["pool/a.deb"]
    for name, why in {"link.deb": r"link\.deb", "pipe.deb": "regular"}.items():
        with pytest.raises(OSError, match=why):
            files.stored_file(tmp_path / name, name).open()


def test_lists_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files are refused, not cut."""
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="more than 2 files"):
        files.list_files(tmp_path)


def test_directories_are_bounded_in_depth(tmp_path: Path) -> None:
    """A directory of an author's that no function may follow by calling itself."""
    (tmp_path / "/".join("a" * 70)).mkdir(parents=True)
    with pytest.raises(ValueError, match="64 directories deep"):
        files.list_files(tmp_path)


@pytest.mark.parametrize(
    "name", ["", "../a", "/etc/passwd", "none", "dir", "out", "pipe", "a\0b", 3, None, "large"]
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: object) -> None:
    """A file outside, absent, none, or too large is a sentence, not an exception."""
    (tmp_path / "in/dir").mkdir(parents=True)
    os.mkfifo(tmp_path / "in/pipe")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in/out").symlink_to("../secret")
    (tmp_path / "in/large").write_bytes(b"x" * 101)
    with pytest.raises(ValueError):  # noqa: PT011 - a sentence of any cause
        read_file(tmp_path / "in", name, 100)
    assert read_file(tmp_path / "in", "large", 101) == b"x" * 101
