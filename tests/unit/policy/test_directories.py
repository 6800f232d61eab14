"""Listing and reading what a task names."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.policy.files import MAX_DEPTH, EntryKind, list_tree, read_entry


def test_a_directory_is_listed_with_modes_and_links(tmp_path: Path) -> None:
    """Parents first; a link within stays one; modes are kept, but not set-uid."""
    (tmp_path / "d" / "s").mkdir(parents=True)
    (tmp_path / "d" / "s" / "f").write_text("four")
    (tmp_path / "d" / "s" / "f").chmod(0o4750)
    (tmp_path / "d" / "l").symlink_to("s/f")
    tree = list_tree(tmp_path, "d", max_entries=10)
    assert [(entry.path, entry.kind) for entry in tree.entries] == [
        ("", EntryKind.DIRECTORY),
        ("l", EntryKind.LINK),
        ("s", EntryKind.DIRECTORY),
        ("s/f", EntryKind.FILE),
    ]
    assert (tree.entries[1].link, tree.entries[3].mode, tree.total_bytes) == ("s/f", 0o750, 4)
    assert read_entry(tmp_path, tree, tree.entries[3]) == b"four"
    single = list_tree(tmp_path, "d/s/f", max_entries=1)
    assert not single.is_directory
    assert read_entry(tmp_path, single, single.entries[0]) == b"four"


@pytest.mark.parametrize("link", ["/etc/passwd", "..", "../../x", "s/../../x", "../d/s"])
def test_a_link_out_is_refused(tmp_path: Path, link: str) -> None:
    """In a tree; a source that is a link may stay below the root."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "l").symlink_to(link)
    with pytest.raises(ValueError, match="leads out"):
        list_tree(tmp_path, "d", max_entries=10)


def test_a_link_by_way_of_another_is_refused(tmp_path: Path) -> None:
    """`..` behind a name goes up from wherever another link may have put that name."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "here").symlink_to(".")
    (tmp_path / "d" / "l").symlink_to("here/../x")
    with pytest.raises(ValueError, match="leads out"):
        list_tree(tmp_path, "d", max_entries=10)


def test_no_more_names_are_read_than_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of a million files costs what its bound costs: the rest of it isn't read."""
    for number in range(20):
        (tmp_path / str(number)).touch()
    scan, read = os.scandir, []

    class Counted:
        def __init__(self, fd: int) -> None:
            self._found = scan(fd)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return self._entries()

        def _entries(self) -> Iterator[os.DirEntry[str]]:
            for entry in self._found:
                read.append(entry.name)
                yield entry

        def __exit__(self, *_: object) -> None:
            self._found.close()

    monkeypatch.setattr(os, "scandir", Counted)
    with pytest.raises(ValueError, match="more than 5"):
        list_tree(tmp_path, ".", max_entries=5)
    assert len(read) == 6


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A socket, wherever it is; a pipe is not waited for."""
    for name in ("d", "e"):
        (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "d" / "docker.sock"))
        os.mkfifo(tmp_path / "e" / "pipe")
        for source in ("d", "e", "e/pipe"):
            with pytest.raises(ValueError, match="no regular file"):
                list_tree(tmp_path, source, max_entries=10)
        with pytest.raises(OSError):  # noqa: PT011 - a socket can't be opened
            list_tree(tmp_path, "d/docker.sock", max_entries=10)


def test_the_bounds(tmp_path: Path) -> None:
    """Of entries and of depth; and a file has no more bytes than it had."""
    deep = tmp_path / "deep"
    for _ in range(MAX_DEPTH + 1):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(ValueError, match="deep"):
        list_tree(tmp_path, "deep", max_entries=1000)
    with pytest.raises(ValueError, match="more than 3"):
        list_tree(tmp_path, "deep", max_entries=3)
    (tmp_path / "f").write_text("1")
    tree = list_tree(tmp_path, "f", max_entries=1)
    (tmp_path / "f").write_text("12")
    with pytest.raises(ValueError, match="grown"):
        read_entry(tmp_path, tree, tree.entries[0])
