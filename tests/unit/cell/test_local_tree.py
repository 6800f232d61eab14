"""Trees on this host: what is sent is what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.cell.local_tree import TreeManifest, list_source, records_of
from belljar.channel import FileTooLargeError

BOUNDS = {"max_files": 100, "max_bytes": 1 << 20}


def tree_of(folder: Path) -> Path:
    """Directories next to each other, deep and empty."""
    tree = folder / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "b" / "empty").mkdir(parents=True)
    (tree / "a" / "b" / "c" / "f").write_text("deep")
    (tree / "z").write_text("last")
    (tree / "b" / "l").symlink_to("../a/b")
    return tree


def test_what_is_sent_is_bounded_and_stays_inside(tmp_path: Path) -> None:
    """Before anything is read: too many, too large, a link out, a pipe."""
    tree = tree_of(tmp_path)
    with pytest.raises(ValueError, match="more than 3"):
        list_source(tree, max_files=3, max_bytes=100)
    with pytest.raises(FileTooLargeError):
        list_source(tree, max_files=100, max_bytes=7)
    source = list_source(tree, **BOUNDS)
    for text in ("", "much more than it was"):
        (tree / "z").write_text(text)
        with pytest.raises(ValueError, match="z has changed its size"):
            list(records_of(source, "", TreeManifest()))
    (tree / "out").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="leads out"):
        list_source(tree, **BOUNDS)
    (tree / "out").unlink()
    os.mkfifo(tree / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        list_source(tree, **BOUNDS)
