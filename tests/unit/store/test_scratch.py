"""Scratch directories of the store."""

from __future__ import annotations

import os
from pathlib import Path

from belljar.store.scratch import remove_tree

LEVELS = 3_000


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    """A build step can make more levels than Python has frames or a process descriptors: what it
    left still goes."""
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("level", dir_fd=at)
        deeper = os.open("level", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(at)
    remove_tree(top)
    assert not top.exists()
