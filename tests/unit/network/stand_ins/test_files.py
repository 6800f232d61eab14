"""A stand-in's files: what is listed is what may be served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.network.stand_ins import files


def test_only_regular_files_are_listed(tmp_path: Path) -> None:
    """Links, pipes and hidden files are not listed, whatever they are called."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"a")
    (tmp_path / "link.deb").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / ".hidden").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.deb")
    assert [file.name for file in files.list_files(tmp_path)] == ["pool/a.deb"]


def test_a_file_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    """Between listing and serving nothing may be put in a file's place that leads elsewhere."""
    path = tmp_path / "a.whl"
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"a\.whl"):
        files.open_file(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        files.open_file(tmp_path / "pipe")


def test_bounds(tmp_path: Path) -> None:
    """Too many files and too deep a tree are refused, not cut."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(files.FilesError, match="more than 2 files"):
        files.list_files(tmp_path, max_files=2)
    deep = tmp_path / "/".join(["d"] * 20)
    deep.mkdir(parents=True)
    with pytest.raises(files.FilesError, match="deep"):
        files.list_files(tmp_path / "d")
