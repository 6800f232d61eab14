"""Marks on files of this host, through the kernel's own queues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from belljar.isolation.oci.marks import Marked, Mechanism, mark_files

MECHANISMS = [pytest.param("fanotify", marks=pytest.mark.root), "inotify"]


@contextmanager
def marked(mechanism: Mechanism, root: Path, paths: list[str]) -> Iterator[Marked]:
    """The files below `root`, watched."""
    held = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        found = mark_files(mechanism, held, paths)
    finally:
        os.close(held)
    try:
        yield found
    finally:
        os.close(found.fd)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_no_file_of_the_root_is_missing(mechanism: Mechanism, tmp_path: Path) -> None:
    """No directory, no pipe (which is not waited for), nothing outside: a link there ends in it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../../../../../../etc/passwd")
    with marked(mechanism, tmp_path, ["/pipe", "/out", "/up", "/", "/gone"]) as found:
        assert set(found.missing) == {"/pipe", "/out", "/up", "/", "/gone"}
        assert found.files == {}
