"""A file that an author names is a regular one, and read no further than asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.policy.regular import open_regular, read_regular


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    """Through a link too: where it may lead is the caller's to check."""
    (tmp_path / "file").write_bytes(b"abcdef")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 4) == read_regular(tmp_path / "link", 4) == b"abcd"
    assert read_regular(tmp_path / "file", 10) == b"abcdef"


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes into would be waited for without end; a directory, a device and a bad name are refused too."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"), Path("a\0b")):
        with pytest.raises(ValueError, match=r"no regular file|null byte"):
            read_regular(path, 1)
    with pytest.raises(OSError, match="No such file"):
        read_regular(tmp_path / "none", 1)


def test_no_descriptor_stays(tmp_path: Path) -> None:
    """Neither when it is refused (a pipe then has no reader) nor when its user fails."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="no regular file"), open_regular(tmp_path / "pipe"):
        pass
    with pytest.raises(OSError, match="No such device or address"):
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    opened: list[int] = []

    def fail() -> None:
        with open_regular(tmp_path / "file") as fd:
            opened.append(fd)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
