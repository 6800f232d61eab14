"""The thread that reads marks, on files of this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.channel.operations import OwnReads
from belljar.isolation.oci.marks import Mechanism, mark_files
from belljar.isolation.oci.watching import MarkWatch, Processes
from belljar.isolation.touches import Access

pytestmark = pytest.mark.anyio


def watch(mechanism: Mechanism, root: Path, own: OwnReads, agent: int) -> MarkWatch:
    """One file, `/a`."""
    held = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return MarkWatch(mark_files(mechanism, held, ["/a"]), Processes(agent), own)
    finally:
        os.close(held)


async def test_a_callback_that_raises_ends_the_sensor(tmp_path: Path) -> None:
    """It is said why; the process goes on."""
    (tmp_path / "a").write_text("x")
    ends = list[str]()

    def fail(access: Access) -> None:
        raise RuntimeError(access.path)

    watching = watch("inotify", tmp_path, OwnReads(), os.getpid())
    watching.begin(fail, ends.append)
    (tmp_path / "a").read_bytes()
    await watching.aclose()
    assert ends == ["RuntimeError: /a"]
