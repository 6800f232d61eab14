"""Files that an author names are opened and listed below one directory, bounded."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from belljar.policy import files


@pytest.mark.promise("8.3")
def test_a_file_below_is_read_up_to_a_bound(tmp_path: Path) -> None:
    """Also by a link that stays below, and in a directory that is one itself."""
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "real/sub/file").write_bytes(b"abcdef")
    (tmp_path / "real/link").symlink_to("sub/file")
    (tmp_path / "way").symlink_to("real")
    for name in ("sub/file", "link"):
        assert files.read_regular(tmp_path / "way", name, 4) == b"abcd"
    tracemalloc.start()
    try:
        assert files.read_regular(tmp_path, "real/sub/file", 1 << 30) == b"abcdef"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.promise("1.7")
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("link", "../secret"),
        ("link", "{root}/secret"),
        ("link", "one"),
        ("up/secret", ".."),
        ("../secret", ""),
        ("a/../../secret", ""),
        ("/proc/self/environ", ""),
        ("magic", "/proc/self/root/etc/hostname"),
    ],
)
def test_nothing_outside_is_read(tmp_path: Path, name: str, target: str) -> None:
    """By a link or a chain of them, a directory that is one, dots, or an absolute name."""
    (tmp_path / "secret").write_text("s")
    (base := tmp_path / "base").mkdir()
    (base / "a").mkdir()
    (base / "one").symlink_to("../secret")
    if target:
        (base / name.partition("/")[0]).symlink_to(target.format(root=tmp_path))
    with pytest.raises(files.OutsideError):
        files.read_regular(base, name, 10)


@pytest.mark.promise("1.7")
def test_what_is_exchanged_meanwhile_is_never_read(tmp_path: Path) -> None:
    """It becomes a link between two looks: the file below is read, or it is refused."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_bytes(b"secret")
    (base := tmp_path / "base").mkdir()
    (base / "real").mkdir()
    (base / "real/file").write_bytes(b"own")
    (base / "link").symlink_to("../secret")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for name in ("real", "link"):
                (base / "sub").unlink(missing_ok=True)
                (base / "sub").symlink_to(name)

    thread = threading.Thread(target=exchange)
    thread.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(files.read_regular(base, "sub/file", 10))
            except (files.OutsideError, OSError):
                seen.add(b"refused")
    finally:
        stop.set()
        thread.join()
    assert b"secret" not in seen


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes into would be waited for without end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name, told in {
        **dict.fromkeys(("pipe", "sub"), "not a regular file"),
        "a\0b": "null byte",
        "missing": "No such file",
        "loop": "Too many levels of symbolic links",
    }.items():
        with pytest.raises((ValueError, OSError), match=told):
            files.read_regular(tmp_path, name, 1)
    with pytest.raises(ValueError, match="not a regular file"):
        files.read_regular(Path("/dev"), "null", 1)


@pytest.mark.promise("1.7")
def test_a_directory_is_listed_with_modes_and_links(tmp_path: Path) -> None:
    """Parents first; a link within stays one; modes are kept, but not set-uid."""
    (tmp_path / "d" / "s").mkdir(parents=True)
    (tmp_path / "d" / "s" / "f").write_text("four")
    (tmp_path / "d" / "s" / "f").chmod(0o4750)
    (tmp_path / "d" / "l").symlink_to("s/f")
    tree = files.list_tree(tmp_path, "d", max_entries=10)
    kinds = {"": "directory", "l": "link", "s": "directory", "s/f": "file"}
    assert [(entry.path, entry.kind) for entry in tree.entries] == [*kinds.items()]
    assert (tree.entries[1].link, tree.entries[3].mode, tree.total_bytes) == ("s/f", 0o750, 4)
    assert files.read_entry(tree, tree.entries[3]) == b"four"


@pytest.mark.promise("1.7")
@pytest.mark.parametrize("link", ["/etc/passwd", "..", "../d/s", "here/../x"])
def test_a_link_out_is_refused(tmp_path: Path, link: str) -> None:
    """In a tree; `..` behind a name goes up from wherever another link may have put that name."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "here").symlink_to(".")
    (tmp_path / "d" / "l").symlink_to(link)
    with pytest.raises(ValueError, match="leads out"):
        files.list_tree(tmp_path, "d", max_entries=10)


@pytest.mark.promise("1.7")
def test_the_bounds(tmp_path: Path) -> None:
    """Of entries and of depth; and a file has no more bytes than it had."""
    deep = tmp_path / "deep"
    for _ in range(files.MAX_DEPTH + 1):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(ValueError, match="deep"):
        files.list_tree(tmp_path, "deep", max_entries=1000)
    with pytest.raises(ValueError, match="more than 3"):
        files.list_tree(tmp_path, "deep", max_entries=3)
    (tmp_path / "f").write_text("1")
    tree = files.list_tree(tmp_path, "f", max_entries=1)
    (tmp_path / "f").write_text("12")
    with pytest.raises(ValueError, match="grown"):
        files.read_entry(tree, tree.entries[0])
