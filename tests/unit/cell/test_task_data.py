"""Putting a task's files and names into a cell, as the cell is asked to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from belljar.cell.cell import Cell
from belljar.cell.local_tree import Transfer, TreeManifest
from belljar.cell.task_data import put_in
from belljar.errors import PolicyError
from belljar.policy.task_data import CellData, TaskData, TaskFile

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


class Asked:
    """A cell that takes trees, and no file."""

    id = "c"

    async def remove(self, path: str, *, recursive: bool, user: str) -> None:
        """As if nothing were there."""
        raise FileNotFoundError(2, "No such file or directory", path)

    async def _put_records(
        self, directory: str, records: Iterator[bytes], manifest: TreeManifest, **_: object
    ) -> Transfer:
        """Read to the end."""
        deque(records, maxlen=0)
        return manifest.transfer()

    async def write_file(self, path: str, contents: bytes, **_: object) -> None:
        """Refused."""
        raise IsADirectoryError(21, "Is a directory", path)


async def put(root: Path, source: str) -> None:
    """A file or directory of a task's, as into a cell that runs."""
    files = (TaskFile(target="/a", source=source),)
    data = TaskData(root=str(root), cells={"default": CellData(files=files)})
    await put_in(cast("Cell", Asked()), data)


async def test_what_fails_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone, or changes, is the task's; what an image can't take is the cell's."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    with pytest.raises(PolicyError, match="no such file"):
        await put(tmp_path, "none")
    (tmp_path / "d" / "f").write_text("x")
    with monkeypatch.context() as patched:
        patched.setattr("belljar.cell.local_tree.os.read", lambda _fd, _count: b"")
        with pytest.raises(PolicyError, match="changed its size"):
            await put(tmp_path, "d")
    with pytest.raises(IsADirectoryError):
        await put(tmp_path, "f")
