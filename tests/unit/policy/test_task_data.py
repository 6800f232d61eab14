"""What the cells of a task hold besides their images."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.policy import sections
from belljar.policy.sections import CellData, TaskFile, trees_of


@pytest.mark.promise("1.7")
def test_all_of_a_cell_together_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again when it is made: files may have grown since they were looked at."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("four")
    files = tuple(TaskFile(target=f"/{name}", source=name) for name in ("a", "b"))
    data = CellData(files=files)
    assert set(trees_of(tmp_path, data)) == {"/a", "/b"}
    monkeypatch.setattr(sections, "MAX_BYTES", 7)
    with pytest.raises(ValueError, match="at most"):
        trees_of(tmp_path, data)
    monkeypatch.setattr(sections, "MAX_ENTRIES", 1)
    with pytest.raises(ValueError, match="more than"):
        trees_of(tmp_path, data)
