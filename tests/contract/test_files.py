"""Directories of a cell: copied in and out, listed, looked at, removed; and what a cell uses."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from belljar.cell.cell import Cell
from belljar.cell.local_tree import TreeManifest, records_of
from belljar.channel import FileTooLargeError
from belljar.policy.files import Tree

pytestmark = pytest.mark.anyio
MIB = 1 << 20


def project(folder: Path) -> Path:
    """A directory with a little of everything that can be copied."""
    tree = folder / "project"
    (tree / "src" / "deep").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "src" / "deep" / "large").write_bytes(bytes(range(256)) * 8192)
    (tree / "src" / "nothing").write_bytes(b"")
    (tree / "src" / "link").symlink_to("../run.sh")
    return tree


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def everything(tree: Path) -> dict[str, tuple[int, bytes]]:
    """What is in a directory: by path its kind and permissions, its contents or where it leads."""
    found = {}
    for path in sorted(tree.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(tree))
        if stat.S_ISLNK(mode):
            found[name] = (stat.S_IFMT(mode), os.fsencode(path.readlink()))
        else:
            found[name] = (mode & 0o170755, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.promise("4.3")
async def test_a_directory_comes_back_as_it_was(cell: Cell, tmp_path: Path) -> None:
    """A directory goes into the cell and out of it again whole: contents, links, permissions."""
    tree = project(tmp_path)
    there = await cell.upload(tree, "/tmp/up/project")
    assert (there.files, there.directories, there.links) == (3, 4, 1)
    back = await cell.download("/tmp/up/project", tmp_path / "back")
    assert everything(tmp_path / "back") == everything(tree)
    assert back.total_bytes == there.total_bytes
    await cell.remove("/tmp/up", recursive=True)


@pytest.mark.promise("4.3")
async def test_a_directory_that_is_there_keeps_what_it_has(cell: Cell, tmp_path: Path) -> None:
    """Copying into a directory that exists adds to it; a file in the way stops all of it first."""
    tree = project(tmp_path)
    await cell.write_file("/tmp/merge/src/own", b"mine")
    await cell.write_file("/tmp/merge/run.sh", b"theirs")
    with pytest.raises(FileExistsError, match=r"run\.sh"):
        await cell.upload(tree, "/tmp/merge")
    assert {info.name for info in await cell.list_dir("/tmp/merge")} == {"src", "run.sh"}
    assert {info.name for info in await cell.list_dir("/tmp/merge/src")} == {"own"}
    await cell.upload(tree, "/tmp/merge", overwrite=True)
    assert await cell.read_file("/tmp/merge/src/own", max_bytes=10) == b"mine"
    assert await cell.read_file("/tmp/merge/run.sh", max_bytes=100) == b"#!/bin/sh\n"
    with pytest.raises(FileExistsError):
        await cell.download("/tmp/merge", tree)
    assert not (tree / "src" / "own").exists()
    await cell.download("/tmp/merge", tree, overwrite=True)
    assert (tree / "src" / "own").read_bytes() == b"mine"
    await cell.remove("/tmp/merge", recursive=True)


@pytest.mark.promise("4.3")
async def test_bounds_are_kept_before_harm(cell: Cell, tmp_path: Path) -> None:
    """More files or bytes than allowed is an error, and nothing is left on either side."""
    tree = project(tmp_path)
    with pytest.raises(FileTooLargeError):
        await cell.upload(tree, "/tmp/bounds", max_bytes=MIB)
    with pytest.raises(ValueError, match="more than 3"):
        await cell.upload(tree, "/tmp/bounds", max_files=3)
    with pytest.raises(FileNotFoundError):
        await cell.stat("/tmp/bounds")
    await cell.upload(tree, "/tmp/bounds")
    with pytest.raises(FileTooLargeError):
        await cell.download("/tmp/bounds", tmp_path / "back", max_bytes=MIB)
    with pytest.raises(OSError, match="more than 3"):
        await cell.download("/tmp/bounds", tmp_path / "back", max_files=3)
    with pytest.raises(OSError, match="more than 1"):
        await cell.list_dir("/tmp/bounds", max_entries=1)
    assert names(tmp_path) == ["project"]
    await cell.remove("/tmp/bounds", recursive=True)


@pytest.mark.promise("4.3")
async def test_what_may_lead_out_is_not_brought(cell: Cell, tmp_path: Path) -> None:
    """A link that leads out, also by another, and a pipe are refused, or left out and named."""
    script = (
        "mkdir /tmp/out && cd /tmp/out && ln -s /etc abs && ln -s ../.. up && ln -s . here && ln -s"
        " here/.. by"
    )
    assert (await cell.exec(["sh", "-c", f"{script} && mkfifo pipe && echo x >file"])).success
    with pytest.raises(ValueError, match="skip_unsafe"):
        await cell.download("/tmp/out", tmp_path / "back")
    assert not names(tmp_path)
    found = await cell.download("/tmp/out", tmp_path / "back", skip_unsafe=True)
    assert found.skipped == ("abs", "by", "pipe", "up")
    assert names(tmp_path / "back") == ["file", "here"]
    await cell.remove("/tmp/out", recursive=True)


@pytest.mark.promise("4.3")
async def test_no_set_user_id_file_comes_out(cell: Cell, tmp_path: Path) -> None:
    """Set-user-ID bits and others' right to write stay in the cell."""
    await cell.write_file("/tmp/suid/tool", b"x", mode=0o6777)
    await cell.download("/tmp/suid", tmp_path / "back")
    assert stat.S_IMODE((tmp_path / "back" / "tool").stat().st_mode) == 0o755
    await cell.remove("/tmp/suid", recursive=True)


@pytest.mark.promise("4.3")
async def test_list_and_stat(cell: Cell) -> None:
    """Entries say what they are; a name that is no UTF-8 comes whole; links are told apart."""
    make = r'mkdir /tmp/list && cd /tmp/list && touch "$(printf "\\377")" && mkdir d && ln -s d l'
    await cell.exec(["sh", "-c", make])
    await cell.write_file("/tmp/list/file", b"12345", mode=0o640)
    found = {os.fsencode(info.name): info for info in await cell.list_dir("/tmp/list")}
    assert {name: info.kind for name, info in found.items()} == {
        b"d": "directory", b"file": "file", b"l": "link", b"\xff": "file",
    }  # fmt: skip
    assert (found[b"file"].size_bytes, found[b"file"].mode) == (5, 0o640)
    assert found[b"l"].link_target == "d"
    assert (await cell.stat("/tmp/list/file")) == found[b"file"]
    assert (await cell.stat("/tmp/list/l")).kind == "directory"
    assert (await cell.stat("/tmp/list/l", follow_symlinks=False)).kind == "link"
    assert found[b"file"].mtime_s > 1_500_000_000
    await cell.remove("/tmp/list/l")
    await cell.remove("/tmp/list", recursive=True)


@pytest.mark.promise("4.3")
async def test_errors_are_pythons_own(cell: Cell, tmp_path: Path) -> None:
    """What is not there, no directory, a directory, or another's is told by the builtin errors."""
    await cell.write_file("/tmp/errors/file", b"x")
    await cell.exec(["sh", "-c", "mkdir -m 700 /tmp/errors/closed"])
    for call in (cell.list_dir, cell.stat, cell.remove):
        with pytest.raises(FileNotFoundError, match="no-such"):
            await call("/tmp/errors/no-such")
    with pytest.raises(FileNotFoundError):
        await cell.download("/tmp/errors/no-such", tmp_path / "x")
    with pytest.raises(NotADirectoryError):
        await cell.list_dir("/tmp/errors/file")
    with pytest.raises(IsADirectoryError):
        await cell.remove("/tmp/errors/closed")
    with pytest.raises(PermissionError):
        await cell.list_dir("/tmp/errors/closed", user="nobody")
    with pytest.raises(PermissionError):
        await cell.remove("/tmp/errors/closed", recursive=True, user="nobody")
    with pytest.raises(PermissionError):
        await cell.upload(project(tmp_path), "/tmp/errors", user="nobody")
    with pytest.raises(ValueError, match="removed"):
        await cell.remove("/")
    await cell.remove("/tmp/errors", recursive=True)


@pytest.mark.promise("4.3")
async def test_removing_follows_no_link(cell: Cell) -> None:
    """A tree is removed with its links, not with what they lead to."""
    await cell.write_file("/tmp/kept/file", b"x")
    make = "mkdir -p /tmp/gone/a/b && ln -s /tmp/kept /tmp/gone/a/b/link && chmod 0 /tmp/gone/a"
    await cell.exec(["sh", "-c", make])
    await cell.remove("/tmp/gone", recursive=True)
    assert await cell.read_file("/tmp/kept/file", max_bytes=10) == b"x"
    with pytest.raises(FileNotFoundError):
        await cell.stat("/tmp/gone")
    await cell.remove("/tmp/kept", recursive=True)


@pytest.mark.promise("4.3")
async def test_an_interrupted_upload_leaves_nothing(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload that is cancelled half-way leaves no entry behind, and the cell usable."""
    tree = project(tmp_path)
    await cell.write_file("/tmp/interrupted/own", b"")
    with anyio.CancelScope() as scope:

        def cut(source: Tree, name: str, manifest: TreeManifest) -> Iterator[bytes]:
            sent = 0
            for part in records_of(source, name, manifest):
                sent += len(part)
                if sent > MIB + 3 * (MIB // 4):  # more than pipe and window hold: the guest writes
                    anyio.from_thread.run_sync(scope.cancel)
                yield part

        monkeypatch.setattr("belljar.cell.local_tree.records_of", cut)
        await cell.upload(tree, "/tmp/interrupted")
    assert scope.cancelled_caught
    assert [info.name for info in await cell.list_dir("/tmp/interrupted")] == ["own"]
    await cell.remove("/tmp/interrupted", recursive=True)
