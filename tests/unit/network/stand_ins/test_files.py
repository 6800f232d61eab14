"""A stand-in's files: what is listed is what may be served, and an author's are read, or it is said
why not. Nothing that isn't in the table of kinds is ever imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.network.stand_ins import files
from belljar.network.stand_ins.files import read_file


def test_only_regular_files_are_listed_and_opened(tmp_path: Path) -> None:
    """Links and hidden files are not; what leads out of the directory, or is none, is refused."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"a")
    (tmp_path / "link.deb").symlink_to("pool/a.deb")
    (tmp_path / ".hidden").write_bytes(b"")
    assert [file.name for file in files.list_files(tmp_path)] == ["pool/a.deb"]
    os.mkfifo(tmp_path / "pipe.deb")
    for name, why in {"link.deb": r"link\.deb", "pipe.deb": "regular"}.items():
        with pytest.raises(OSError, match=why):
            files.stored_file(tmp_path / name, name).open()
    with pytest.raises(ValueError, match=r"pipe\.deb is not"):
        files.list_files(tmp_path)
    (tmp_path / "a.deb").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match=r"a\.deb leads out"):
        files.list_files(tmp_path)


def test_lists_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, and directories too deep, are refused, not cut."""
    (tmp_path / "/".join("a" * 70)).mkdir(parents=True)
    with pytest.raises(ValueError, match="directories deep"):
        files.list_files(tmp_path)
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "bcd":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="more than 2 files"):
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
