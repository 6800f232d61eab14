"""A stand-in's files: what is listed is what may be served, and conditions as RFC 9110 has them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import anyio
import pytest
from tests.fakes.registries import Ledger, context_for

from belljar.network.stand_ins import files
from belljar.network.stand_ins.files import StoredFile, file_answer, find
from belljar.network.stand_ins.registry import Registry
from belljar.network.stand_ins.web import Answer, Request


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


MODIFIED = 1_700_000_000
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> StoredFile:
    """A file of ten bytes."""
    path = tmp_path_factory.mktemp("files") / "a.txt"
    path.write_bytes(b"0123456789")
    os.utime(path, (MODIFIED, MODIFIED))
    return files.list_files(path.parent)[0]


def ask(entry: StoredFile, method: str = "GET", **fields: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and fields."""
    headers = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    answer = file_answer(entry, Request(method=method, path="/", raw_path="/", headers=headers))
    return answer.status, anyio.run(body, answer), dict(answer.headers)


async def body(answer: Answer) -> bytes:
    """All of a body."""
    return (
        answer.body if answer.stream is None else b"".join([part async for part in answer.stream()])
    )


ETAG = f'"{MODIFIED:x}-a"'


@pytest.mark.parametrize(
    ("fields", "status", "content"),
    [
        ({}, 200, b"0123456789"),
        ({"range": "bytes=2-4"}, 200, b"0123456789"),
        ({"if_none_match": ETAG}, 304, b""),
        ({"if_none_match": f'"x", W/{ETAG}'}, 304, b""),
        ({"if_none_match": "*"}, 304, b""),
        ({"if_none_match": '"x"', "if_modified_since": DATE}, 200, b"0123456789"),
        ({"if_modified_since": DATE}, 304, b""),
        ({"if_modified_since": "Tue, 14 Nov 2023 22:13:19 GMT"}, 200, b"0123456789"),
        ({"if_modified_since": "yesterday"}, 200, b"0123456789"),
        ({"if_match": ETAG, "if_none_match": ETAG}, 304, b""),
    ],
)
def test_conditions(entry: StoredFile, fields: dict[str, str], status: int, content: bytes) -> None:
    """Each gives what the standard says, a range the whole; validators are on every answer."""
    found, sent, headers = ask(entry, **fields)
    assert (found, sent, headers["etag"], headers["last-modified"]) == (status, content, ETAG, DATE)


def test_a_directory_is_its_index(tmp_path: Path) -> None:
    """A directory's page is `index.html`; its name without `/` leads there. Hidden files only if
    asked for."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/index.html").touch()
    (tmp_path / ".well-known").mkdir()
    (tmp_path / ".well-known/x").touch()
    listed = {file.name: file for file in files.list_files(tmp_path, hidden=True)}
    assert set(listed) == {"d/index.html", ".well-known/x"}
    assert (find(listed, "d"), find(listed, "d/"), find(listed, "")) == (
        "d/",
        listed["d/index.html"],
        None,
    )
