"""Marks set from within another process's user namespace."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.isolation.oci.marks import mark_from_within, read_queue

pytestmark = pytest.mark.root


@pytest.fixture
def inside() -> Iterator[int]:
    """The pid of a process with a user namespace of its own."""
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", "echo ready; read -r line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_the_queue_comes_back(inside: int, tmp_path: Path) -> None:
    """With what was marked and what was not."""
    file = tmp_path / "a"
    file.write_text("x")
    marked = mark_from_within(inside, [str(file), "/gone"])
    with os.fdopen(marked.fd, "rb"):
        assert marked.missing == {"/gone": "No such file or directory"}
        file.read_text()
        seen = read_queue(marked.mechanism, marked.fd)
        assert {marked.files[entry.file] for entry in seen if entry.file} == {str(file)}


def test_a_process_that_is_gone_is_an_error() -> None:
    """Its namespace is, too."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(OSError, match="No such"):
        mark_from_within(process.pid, ["/a"])
