"""Putting a task's files and names into a cell, as the cell is asked to."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belljar.cell.local_tree import Transfer, TreeManifest
from belljar.cell.task_data import put_in
from belljar.errors import PolicyError
from belljar.events import Kind
from belljar.ledger.schema import check_data
from belljar.policy.task_data import CellData, TaskData, TaskFile

pytestmark = pytest.mark.anyio


class Asked:
    """A cell into which everything goes but one file."""

    id = "c"

    def __init__(self, *, refuses: str = "") -> None:
        self.refuses = refuses

    async def remove(self, path: str, **_: object) -> None:
        """As if nothing were there."""
        raise FileNotFoundError(2, "No such file or directory", path)

    async def _put_records(
        self, _: str, records: Iterator[bytes], manifest: TreeManifest, **__: object
    ) -> Transfer:
        """Read to the end."""
        deque(records, maxlen=0)
        return manifest.transfer()

    async def write_file(self, path: str, _: bytes, **__: object) -> None:
        """Nothing, unless it is refused."""
        if path == self.refuses:
            raise IsADirectoryError(21, "Is a directory", path)

    def note(self, kind: Kind, data: dict[str, Any]) -> None:
        """In a form that the ledger takes."""
        check_data(kind, data)


def data_of(root: Path, *files: TaskFile) -> TaskData:
    """Of the sample's own cell."""
    return TaskData(root=str(root), cells={"default": CellData(files=files)})


async def put(cell: Asked, data: TaskData) -> None:
    """As into a cell that runs."""
    await put_in(cell, data)  # type: ignore[arg-type] # it has what is used of one


async def test_what_fails_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone, or changes, is the task's; what an image can't take is the cell's."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    with pytest.raises(PolicyError, match="no such file"):
        await put(Asked(), data_of(tmp_path, TaskFile(target="/a", source="none")))
    (tmp_path / "d" / "f").write_text("x")
    data = data_of(tmp_path, TaskFile(target="/srv", source="d"))
    with monkeypatch.context() as patched:
        patched.setattr("belljar.cell.local_tree.os.read", lambda _fd, _count: b"")
        with pytest.raises(PolicyError, match="changed its size"):
            await put(Asked(), data)
    with pytest.raises(IsADirectoryError):
        await put(Asked(refuses="/a"), data_of(tmp_path, TaskFile(target="/a", source="f")))


@pytest.mark.promise("1.7")
async def test_files_keep_mode_and_digest(tmp_path: Path) -> None:
    """They are root's, with their modes; each source is on record with its digest."""
    (tmp_path / "a").write_text("contents")
    (tmp_path / "a").chmod(0o640)
    cell = Asked()
    await put(cell, data_of(tmp_path, TaskFile(target="/a", source="a")))
    assert cell.files == {"/a": (b"contents", 0o640, "0:0")}
    assert [note["sha256"] for note in cell.notes] == [hashlib.sha256(b"contents").hexdigest()]
    assert "contents" not in str(cell.notes)
