"""A stand-in's files: what is listed is what may be served."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, context_for

from belljar.network.stand_ins import files
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.registry import Registry
from belljar.network.stand_ins.web import Answer


def test_only_regular_files_are_listed(tmp_path: Path) -> None:
    """Links, pipes and hidden files are not listed, whatever they are called."""
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/a.deb").write_bytes(b"a")
    (tmp_path / "link.deb").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / ".hidden").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.deb")
    assert [file.name for file in files.list_files(tmp_path)] == ["pool/a.deb"]


def test_a_file_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    """Between listing and serving nothing may be put in a file's place that leads elsewhere."""
    path = tmp_path / "a.whl"
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match=r"a\.whl"):
        files.open_file(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        files.open_file(tmp_path / "pipe")


def test_bounds(tmp_path: Path) -> None:
    """Too many files and too deep a tree are refused, not cut."""
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(files.FilesError, match="more than 2 files"):
        files.list_files(tmp_path, max_files=2)
    deep = tmp_path / "/".join(["d"] * 20)
    deep.mkdir(parents=True)
    with pytest.raises(files.FilesError, match="deep"):
        files.list_files(tmp_path / "d")


def test_digests_are_those_of_the_file(tmp_path: Path) -> None:
    """Every algorithm that was asked for, over several pieces, and a second question reads nothing
    again."""
    content = os.urandom(2 * files.CHUNK_BYTES + 17)
    (tmp_path / "a").write_bytes(content)
    (file,) = files.list_files(tmp_path)
    registry = _Registry(context_for(tmp_path, Ledger()))
    found = asyncio.run(_digests(registry, file))
    assert found == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "sha1": hashlib.sha1(content).hexdigest(),  # noqa: S324
    }
    file.path.unlink()
    assert asyncio.run(_digests(registry, file)) == found


class _Registry(Registry):
    algorithms = ("sha256", "sha1")


async def _digests(registry: Registry, file: StoredFile) -> dict[str, str]:
    return dict(await registry.digests(file))


def test_a_file_comes_whole(tmp_path: Path) -> None:
    """With its type and length, in pieces."""
    content = os.urandom(files.CHUNK_BYTES + 1)
    (tmp_path / "a.css").write_bytes(content)
    answer = file_answer(files.list_files(tmp_path)[0])
    assert (answer.status, answer.length) == (200, len(content))
    assert answer.headers == (("content-type", "text/css; charset=utf-8"),)
    assert asyncio.run(_body(answer)) == content


async def _body(answer: Answer) -> bytes:
    return b"".join([part async for part in answer.stream()]) if answer.stream else b""


def test_hidden_files_are_listed_if_asked_for(tmp_path: Path) -> None:
    """As a site's `.well-known` is."""
    (tmp_path / ".well-known").mkdir()
    (tmp_path / ".well-known/x").touch()
    assert files.list_files(tmp_path) == ()
    assert [file.name for file in files.list_files(tmp_path, hidden=True)] == [".well-known/x"]
