"""Secrets and configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.document import TaskFiles
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.policy.task_data import TaskFile

TOP = {
    "secrets": {
        "key": {"file": "./key.txt"},
        "env": {"environment": "KEY"},
        "far": {"external": True},
    },
    "configs": {
        "conf": {"content": "a: 1"},
        "file": {"file": "key.txt"},
        "both": {"file": "key.txt", "content": ""},
    },
}


def composed(root: Path | None, **fields: Any) -> Composed:  # noqa: ANN401 - YAML
    """A file with one service."""
    files = TaskFiles(root) if root else None
    return read_compose({"services": {"s": {"image": "i", **fields}}, **TOP}, files)


def test_they_are_files_of_the_cell(tmp_path: Path) -> None:
    """In their usual places or elsewhere, with owner and mode."""
    (tmp_path / "key.txt").write_text("k")
    long = {"source": "key", "target": "other", "uid": "10", "gid": 11, "mode": 440}
    found = composed(
        tmp_path, secrets=["key", long], configs=["conf", {"source": "file", "target": "/etc/f"}]
    )
    assert found.data is not None
    key = TaskFile(
        key="secrets", target="/run/secrets/key", source="key.txt", mode=0o444, is_secret=True
    )
    assert set(found.data.own.files) == {
        key,
        key.model_copy(update={"target": "/run/secrets/other", "mode": 0o440, "owner": "10:11"}),
        TaskFile(key="configs", target="/conf", content="a: 1", mode=0o444),
        TaskFile(key="configs", target="/etc/f", source="key.txt", mode=0o444),
    }
    assert found.differences == ()


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("secrets", "env"),
        ("secrets", "far"),
        ("secrets", "nobody"),
        ("secrets", {"source": "key", "mode": 999}),
        ("secrets", {"source": "key", "mode": "1777"}),
        ("secrets", {"source": "key", "uid": -1}),
        ("secrets", {"source": "key", "made_up": 1}),
        ("secrets", {"source": "key", "target": "/"}),
        ("configs", "both"),
        ("configs", "file"),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, item: Any) -> None:  # noqa: ANN401 - YAML
    """This host's environment and stores, what there is not, and what can't be meant."""
    if item != "file":
        (tmp_path / "key.txt").write_text("k")
    with pytest.raises(CannotKeepError, match=f"service s: `{key}` is refused"):
        composed(tmp_path, **{key: [item]})


def test_without_a_directory_only_what_is_written_out() -> None:
    """A configuration in code has no files."""
    assert composed(None, configs=["conf"]).data is not None
    with pytest.raises(CannotKeepError, match="directory is not known"):
        composed(None, secrets=["key"])
