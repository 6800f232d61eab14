"""Reading what an attacker may have laid out."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import LedgerError
from belljar.ledger import files


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "file").write_bytes(b"content")
    with files.open_directory(tmp_path) as opened:
        yield opened


def test_what_is_no_plain_file_is_not_read(root: int, tmp_path: Path) -> None:
    """No link is followed, neither as the file nor as a folder on the way."""
    (tmp_path / "/".join("d" * 40)).mkdir(parents=True)
    with pytest.raises(LedgerError, match="deep"):
        list(files.walk_files(root))
    os.mkfifo(tmp_path / "a pipe")
    with pytest.raises(LedgerError, match="special"):
        list(files.walk_files(root))
    (tmp_path / "a link").symlink_to("/etc/passwd")
    (tmp_path / "folders").symlink_to("folder")
    with pytest.raises(LedgerError, match="link"):
        list(files.walk_files(root))
    for path in ("a pipe", "folder"):
        with pytest.raises(LedgerError):
            files.open_beneath(root, path)
    for path in ("a link", "folders/inner/file"):
        with pytest.raises(LedgerError, match="link"):
            files.open_beneath(root, path)


def test_another_size_is_noticed_without_reading(root: int, tmp_path: Path) -> None:
    """A sparse terabyte in a small file's place costs nothing."""
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 40)
    with files.open_beneath(root, "big") as file:
        assert not files.has_digest(file, "0" * 64, 10)
        assert file.tell() == 0


def test_a_file_is_written_once(tmp_path: Path) -> None:
    """What is there is not replaced, not even a link that leads nowhere."""
    files.write_file(tmp_path / "a", b"1")
    (tmp_path / "b").symlink_to(tmp_path / "c")
    for name in ("a", "b"):
        with pytest.raises(FileExistsError):
            files.write_file(tmp_path / name, b"2")
    assert (tmp_path / "a").read_bytes() == b"1"


@given(st.binary(max_size=200), st.integers(1, 50))
def test_lines_are_bounded(content: bytes, max_bytes: int) -> None:
    """They give back the bytes, numbered from 1; one over the bound is named."""
    expected = re.findall(rb"[^\n]*\n|[^\n]+", content)
    reading = files.raw_lines(io.BytesIO(content), max_bytes=max_bytes, name="f")
    for number, whole in enumerate(expected, 1):
        if len(whole) > max_bytes:
            with pytest.raises(LedgerError, match=f"f:{number}: longer"):
                next(reading)
            return
        assert next(reading) == (number, whole.removesuffix(b"\n"), whole.endswith(b"\n"))
    assert next(reading, None) is None
