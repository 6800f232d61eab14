"""`env_file` of a service, and how its files are read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.document import TaskFiles
from belljar.compose.interpolate import MAX_VARIABLES, read_dotenv
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError


def composed(root: Path | None, **fields: Any) -> Composed:  # noqa: ANN401 - YAML
    """A file with one service."""
    files = TaskFiles(root) if root else None
    return read_compose({"services": {"s": {"image": "i", **fields}}}, files)


@pytest.mark.promise("1.5")
def test_what_is_written_out_wins(tmp_path: Path) -> None:
    """Later files win over earlier ones; `environment` wins over all."""
    (tmp_path / "a").write_text("A=1\nB=1\nC=1\n")
    (tmp_path / "b").write_text("B=12\nC=2\n")
    found = composed(tmp_path, env_file=["a", {"path": "./b"}], environment=["C=3"])
    assert dict(found.changes["env"]) == {"A": "1", "B": "12", "C": "3"}
    assert dict(composed(tmp_path, env_file="a").changes["env"])["A"] == "1"
    assert composed(tmp_path, env_file="").changes == composed(tmp_path, env_file=[]).changes


@pytest.mark.promise("1.5")
def test_what_is_not_there(tmp_path: Path) -> None:
    """It is refused, unless it need not be there, which is reported; so is a name without a
    value."""
    with pytest.raises(CannotKeepError, match=r"\.env: it does not exist"):
        composed(tmp_path, env_file=".env")
    found = composed(tmp_path, env_file=[{"path": ".env", "required": False}])
    assert [fact.key for fact in found.differences] == ["env_file"]
    (tmp_path / "names").write_text("HOME\nA=1\n")
    found = composed(tmp_path, env_file="names")
    assert dict(found.changes["env"]) == {"A": "1"}
    assert [fact.key for fact in found.differences] == ["env_file"]


def test_many_blanks_are_not_read() -> None:
    """Their number would count twice: a file of nothing else would take minutes."""
    with pytest.raises(ValueError, match="blanks"):
        read_dotenv("A=x" + " " * 200_000 + "y\n")
    assert read_dotenv("A=x" + " " * 100 + "# y\n") == {"A": "x"}


@pytest.mark.promise("1.7")
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


VALUES: list[tuple[str, str | None]] = [
    *(("A=b", "b"), ("export A = b ", "b"), ("A=", ""), ("A=b # said", "b"), ("A=b#c", "b#c")),
    *(("A=# said", ""), ("A", None), ("# x\r\n\r\nA=b\r\n", "b"), ("A=1\nA=2", "2")),
    ("A='b # $C ${D} \\n'", "b # $C ${D} \\n"),
    ("A='it\\'s'", "it's"),
    ('A="b\\n\\t\\"c\\" \\\\" # said', 'b\n\t"c" \\'),
    *(("A='two\nlines'", "two\nlines"), ('A="two\nlines"', "two\nlines")),
]


@pytest.mark.promise("1.5")
def test_values() -> None:
    """Quotes, comments, escapes, and names alone."""
    assert [(text, read_dotenv(text)["A"]) for text, _ in VALUES] == VALUES


@pytest.mark.promise("1.5")
def test_what_is_no_assignment_is_refused() -> None:
    """With its line; so is a reference, as a value that Docker would put in is not left out."""
    for text in ("A=$HOME", "A=${SAMPLE_METADATA_X}", 'A="${PATH?}"', "A=$$B"):
        with pytest.raises(ValueError, match="line 1 has a `\\$`"):
            read_dotenv(text)
    for text in ("=b", "A b", "A='b", 'A="b', "A='b' c", "1=b", "A: b"):
        with pytest.raises(ValueError, match=r"line [12]"):
            read_dotenv(text)


@pytest.mark.promise("1.5")
def test_how_much_is_read(tmp_path: Path) -> None:
    """So many variables of a service."""
    (tmp_path / "a").write_text("".join(f"A{n}=1\n" for n in range(MAX_VARIABLES + 1)))
    with pytest.raises(CannotKeepError, match="more than"):
        composed(tmp_path, env_file="a")


@pytest.mark.promise("1.5")
@given(st.text(alphabet="AB=:#'\"\\${}-\n \tx", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a `ValueError`; what is found is bounded."""
    with suppress(ValueError):
        found = read_dotenv(text)
        assert sum(len(value or "") for value in found.values()) <= len(text)
