"""Trees on this host: what is sent is what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.cell.local_tree import TreeDestination, TreeManifest, list_source, records_of
from belljar.channel import FileTooLargeError
from belljar.channel.trees import RecordKind, TreeReader, TreeRecord, encode

BOUNDS = {"max_files": 100, "max_bytes": 1 << 20}


def sent(path: Path) -> list[TreeRecord | bytes]:
    """What a directory or file becomes on its way, as a guest would send it back."""
    source = list_source(path, **BOUNDS)
    content = b"".join(records_of(source, "", TreeManifest()))
    if source.tree.is_directory:
        root = encode(TreeRecord(path="", kind=RecordKind.ENTER, mode=0o755))
        content = root + content + encode(TreeRecord(path="", kind=RecordKind.LEAVE))
    reader = TreeReader(contents=True, depth=64, max_entries=100, max_bytes=1 << 20)
    found = list(reader.feed(content))
    reader.finish()
    return found


def names(folder: Path) -> list[str]:
    """What a directory of this host holds."""
    return sorted(path.name for path in folder.iterdir())


def bring(items: list[TreeRecord | bytes], target: Path, **options: bool) -> TreeManifest:
    """All of it to its place."""
    settings = {"overwrite": False, "skip_unsafe": False, **options}
    destination = TreeDestination(target, **settings)
    try:
        destination.take(items)
        destination.place()
    finally:
        destination.discard()
    return destination.manifest


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


@pytest.mark.promise("4.3")
def test_a_directory_never_goes_through_a_link_that_is_there(tmp_path: Path) -> None:
    """A link to a directory is in the way of a directory, whatever is asked."""
    tree = tree_of(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "target" / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        bring(sent(tree), tmp_path / "target", overwrite=True)
    assert not names(tmp_path / "outside")
    assert names(tmp_path / "target") == ["a"]
