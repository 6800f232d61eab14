"""Which files a compose file may name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.document import (
    MAX_TEXT_BYTES,
    TaskFiles,
    files_of,
    read_document,
)
from belljar.errors import PolicyError


@pytest.mark.promise("1.7")
def test_the_root_is_the_package(tmp_path: Path) -> None:
    """The nearest package above a compose file, else its own directory."""
    inner = tmp_path / "package" / "tasks" / "one"
    inner.mkdir(parents=True)
    assert files_of(inner) == TaskFiles(inner)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "package" / "__init__.py").touch()
    assert files_of(inner) == TaskFiles(tmp_path / "package", "tasks/one")
    assert files_of(inner).path("../../common/x") == "common/x"
    (inner / "__init__.py").touch()
    assert files_of(inner) == TaskFiles(inner)


@pytest.mark.promise("1.7")
def test_a_home_directory_is_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in it, for a task below it and for one that lies there itself."""
    (tmp_path / "__init__.py").touch()
    (tmp_path / "task").mkdir()
    (tmp_path / "compose.yaml").write_text("services: {default: {image: i, env_file: .netrc}}")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files_of(tmp_path / "task") == TaskFiles(tmp_path / "task")
    with pytest.raises(PolicyError, match="open to the task"):
        read_document(tmp_path / "compose.yaml")


@pytest.mark.promise("1.7")
@given(
    st.lists(st.sampled_from(["..", ".", "a", "b", ""]), max_size=8),
    st.sampled_from([".", "t", "t/u"]),
)
def test_a_path_stays_below_the_root(parts: list[str], directory: str) -> None:
    """Or is refused."""
    try:
        found = TaskFiles(Path("/r"), directory).path("/".join(parts) or ".")
    except ValueError:
        return
    assert not found.startswith(("/", "../"))
    assert found != ".."


def test_a_text_is_bounded(tmp_path: Path) -> None:
    """And is UTF-8."""
    (tmp_path / "a").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    (tmp_path / "b").write_bytes(b"\xff")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=r"larger|UTF-8"):
            TaskFiles(tmp_path).read_text(name)
