"""`env_file` of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.read import CannotKeepError, Composed, read_compose
from belljar.compose.task_files import TaskFiles


def composed(root: Path | None, **fields: Any) -> Composed:  # noqa: ANN401 - YAML
    """A file with one service."""
    files = TaskFiles(root) if root else None
    return read_compose({"services": {"s": {"image": "i", **fields}}}, files)


def test_what_is_written_out_wins(tmp_path: Path) -> None:
    """Later files win over earlier ones, and refer to them; `environment` wins over all."""
    (tmp_path / "a").write_text("A=1\nB=1\nC=1\n")
    (tmp_path / "b").write_text("B=${A}2\nC=2\n")
    found = composed(tmp_path, env_file=["a", {"path": "./b"}], environment=["C=3"])
    assert dict(found.changes["env"]) == {"A": "1", "B": "12", "C": "3"}
    assert dict(composed(tmp_path, env_file="a").changes["env"])["A"] == "1"
    (tmp_path / "raw").write_text("A='$X'\n")
    raw = composed(tmp_path, env_file={"path": "raw", "format": "raw"})
    assert dict(raw.changes["env"]) == {"A": "'$X'"}


def test_what_is_not_there(tmp_path: Path) -> None:
    """It is refused, unless it need not be there, which is reported; so is a name without a value."""
    with pytest.raises(CannotKeepError, match=r"\.env: it does not exist"):
        composed(tmp_path, env_file=".env")
    found = composed(tmp_path, env_file=[{"path": ".env", "required": False}])
    assert [fact.key for fact in found.differences] == ["env_file"]
    (tmp_path / "names").write_text("HOME\nA=1\n")
    found = composed(tmp_path, env_file="names")
    assert dict(found.changes["env"]) == {"A": "1"}
    assert [fact.key for fact in found.differences] == ["env_file"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "~/x", "link", "", 7])
def test_nothing_outside_is_read(tmp_path: Path, path: Any) -> None:  # noqa: ANN401 - YAML
    """Neither by a path nor by a link; and what is no file of variables is not shown."""
    (tmp_path / "up").write_text("A=1")
    task = tmp_path / "task"
    task.mkdir()
    (task / "link").symlink_to("/etc/passwd")
    with pytest.raises(CannotKeepError, match="env_file") as refused:
        composed(task, env_file=[path])
    assert "root:" not in str(refused.value)


def test_without_a_directory_there_are_no_files() -> None:
    """A configuration in code has none."""
    with pytest.raises(CannotKeepError, match="directory is not known"):
        composed(None, env_file="a")
    assert composed(None, env_file=[]).changes == {"image": "i"}
