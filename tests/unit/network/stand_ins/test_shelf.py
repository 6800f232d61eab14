"""A stand-in's files: what is listed is what may be served."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from belljar.network.stand_ins import shelf


def test_only_regular_files_are_listed(tmp_path: Path) -> None:
    """Links, pipes and hidden files are not on the shelf, whatever they are called."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"a")
    (tmp_path / "link.deb").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / ".hidden").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.deb")
    assert [file.name for file in shelf.list_files(tmp_path)] == ["pool/a.deb"]


def test_a_file_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    """Between listing and serving nothing may be put in a file's place that leads elsewhere."""
    path = tmp_path / "a.whl"
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"a\.whl"):
        shelf.open_file(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        shelf.open_file(tmp_path / "pipe")


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files and too deep a tree are refused, not cut."""
    monkeypatch.setattr(shelf, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(shelf.ShelfError, match="more than 2 files"):
        shelf.list_files(tmp_path)
    deep = tmp_path / "/".join(["d"] * 20)
    deep.mkdir(parents=True)
    with pytest.raises(shelf.ShelfError, match="deep"):
        shelf.list_files(tmp_path / "d")


def test_digests_are_those_of_the_file(tmp_path: Path) -> None:
    """Every algorithm that was asked for, over several pieces, and a second question reads nothing again."""
    content = os.urandom(2 * shelf.CHUNK_BYTES + 17)
    (tmp_path / "a").write_bytes(content)
    (file,) = shelf.list_files(tmp_path)
    digests = shelf.Digests("sha256", "sha1")
    found = asyncio.run(_digests(digests, file))
    assert found == {"sha256": hashlib.sha256(content).hexdigest(), "sha1": hashlib.sha1(content).hexdigest()}  # noqa: S324
    file.path.unlink()
    assert asyncio.run(_digests(digests, file)) == found


async def _digests(digests: shelf.Digests, file: shelf.ShelfFile) -> dict[str, str]:
    return dict(await digests.of(file))


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    """No directory, a missing one, an empty one and a link are each a sentence that names it."""
    assert "directory: PATH" in str(shelf.check_directory(None, "wheels")[0])
    assert str(tmp_path / "gone") in str(shelf.check_directory(tmp_path / "gone", "wheels")[0])
    assert "empty" in str(shelf.check_directory(tmp_path, "wheels")[0])
    (tmp_path / "a").write_bytes(b"")
    assert shelf.check_directory(tmp_path, "wheels") == ()
    (tmp_path / "b").symlink_to("a")
    assert "symbolic link" in str(shelf.check_directory(tmp_path, "wheels")[0])
