"""The `$` in compose files and files of variables: Compose's rules, and nothing of this host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.document import TaskFiles
from belljar.compose.interpolate import (
    MAX_VARIABLES,
    expand_metadata,
    interpolate,
    literal,
    read_dotenv,
)
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.differences import DifferenceKind

GIVEN = {"SAMPLE_METADATA_A": "one", "SAMPLE_METADATA_E": ""}


def put(text: str) -> str:
    return str(interpolate({"a": text}, GIVEN)[0]["a"])


def in_policy(text: str) -> str:
    return expand_metadata({"A": literal(text)}, {}, where="x")["A"]


FORMS = {
    "$SAMPLE_METADATA_A": "one",
    "x${SAMPLE_METADATA_A}y": "xoney",
    "${SAMPLE_METADATA_A:-no}": "one",
    "${SAMPLE_METADATA_E:-yes}": "yes",
    "${SAMPLE_METADATA_E-no}": "",
    "${SAMPLE_METADATA_N-yes}": "yes",
    "${PORT:-8000}": "8000",
    "$$HOME $${HOME} $$$$": "$HOME ${HOME} $$",
    "a$ $1 $- end$": "a$ $1 $- end$",
}


def test_composes_forms() -> None:
    """Values, defaults, and the dollar itself."""
    assert {written: put(written) for written in FORMS} == FORMS


def test_what_is_refused_by_name() -> None:
    """An empty flag would be a silent change; an environment of this host's would be a leak."""
    for written, named in {
        "${SAMPLE_METADATA_N}": "SAMPLE_METADATA_N, and it is not in this sample's metadata",
        "${HOME}": "HOME, and this host's environment is never read",
        **dict.fromkeys(
            ("${HOME/a/b}", "${A?}", "${A:?set it}", "${1}", "${HOME", "${}"), "not read here"
        ),
        **dict.fromkeys(("${A:+yes}", "${A:-${B}}", "${A:-$B}"), "not read here"),
    }.items():
        with pytest.raises(CannotKeepError, match=named) as caught:
            put(written)
        assert "not read here" in named or caught.value.hint


@pytest.mark.promise("1.5")
def test_this_hosts_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for metadata, and not for a default; that a default was taken is said."""
    for name in ("PORT", "SAMPLE_METADATA_N"):
        monkeypatch.setenv(name, "secret")
    document, (fact,) = interpolate({"x": "${PORT:-8000} ${SAMPLE_METADATA_N:-none}"}, {})
    assert document == {"x": "8000 none"}
    assert (fact.kind, fact.key) == (DifferenceKind.CHANGED, "$PORT")
    kept: dict[str, Any] = {"x-a": "$HOME", "services": {"x": {"x-b": "$$"}}}  # for anchors
    assert interpolate(kept, {})[0] == {"services": {"x": {"x-b": "$"}}}


def test_texts_that_grow_are_refused() -> None:
    """Metadata that is put in often is counted before it is there."""
    file = {"x": "$SAMPLE_METADATA_A" * 1000}
    with pytest.raises(CannotKeepError, match="stand for more than 1,048,576 characters"):
        interpolate(file, {"SAMPLE_METADATA_A": "x" * 2000})
    assert len(interpolate(file, {"SAMPLE_METADATA_A": "x" * 1000})[0]["x"]) == 1_000_000


@given(st.text(), st.text())
def test_metadata_is_data(before: str, value: str) -> None:
    """A reference inside of it stays, here and where a policy's `env` is expanded later."""
    variables = {"SAMPLE_METADATA_A": f"${{SAMPLE_METADATA_B}}{value}"}
    made = interpolate({"x": before.replace("$", "$$") + "$SAMPLE_METADATA_A"}, variables)[0]["x"]
    assert made == before + variables["SAMPLE_METADATA_A"]
    assert in_policy(made) == made


def composed(root: Path | None, **fields: Any) -> Composed:  # noqa: ANN401 - YAML
    files = TaskFiles(root) if root else None
    return read_compose({"services": {"s": {"image": "i", **fields}}}, files)


@pytest.mark.promise("1.5")
def test_what_is_written_out_wins(tmp_path: Path) -> None:
    """Later files win over earlier ones; `environment` wins over all."""
    (tmp_path / "a").write_text("A=1\nB=1\nC=1\n")
    (tmp_path / "b").write_text("B=12\nC=2\n")
    found = composed(tmp_path, env_file=["a", "./b"], environment=["C=3"])
    assert dict(found.changes["env"]) == {"A": "1", "B": "12", "C": "3"}
    assert dict(composed(tmp_path, env_file="a").changes["env"])["A"] == "1"
    assert composed(tmp_path, env_file="").changes == composed(tmp_path, env_file=[]).changes


@pytest.mark.promise("1.5")
def test_what_is_not_there(tmp_path: Path) -> None:
    """It is refused; a name without a value is reported."""
    with pytest.raises(CannotKeepError, match=r"\.env: no such file"):
        composed(tmp_path, env_file=".env")
    (tmp_path / "names").write_text("HOME\nA=1\n")
    found = composed(tmp_path, env_file="names")
    assert dict(found.changes["env"]) == {"A": "1"}
    assert [fact.key for fact in found.differences] == ["env_file"]


@pytest.mark.promise("1.7")
@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "link", 7])
def test_nothing_outside_is_read(tmp_path: Path, path: Any) -> None:  # noqa: ANN401 - YAML
    """Neither by a path nor by a link; and what is no file of variables is not shown."""
    (tmp_path / "up").write_text("A=1")
    task = tmp_path / "task"
    task.mkdir()
    (task / "link").symlink_to("/etc/passwd")
    with pytest.raises(CannotKeepError, match="directory is not known"):
        composed(None, env_file="a")  # a configuration in code has none
    with pytest.raises(CannotKeepError, match="env_file") as refused:
        composed(task, env_file=[path])
    assert "root:" not in str(refused.value)


VALUES: list[tuple[str, str | None]] = [
    *(("A=b", "b"), ("export A = b ", "b"), ("A=", ""), ("A=b # said", "b"), ("A=b#c", "b#c")),
    *(("A=# said", ""), ("A", None), ("# x\r\n\r\nA=b\r\n", "b"), ("A=1\nA=2", "2")),
    *(("A='b # $C ${D} \\n'", "b # $C ${D} \\n"), ('A="b # c"', "b # c"), ('A=""', "")),
]


@pytest.mark.promise("1.5")
def test_values() -> None:
    """Quotes, comments, and names alone."""
    assert [(text, read_dotenv(text)["A"]) for text, _ in VALUES] == VALUES


@pytest.mark.promise("1.5")
def test_what_is_no_assignment_is_refused() -> None:
    """With its line; so is a reference, as a value that Docker would put in is not left out."""
    for text in ("A=${SAMPLE_METADATA_X}", 'A="${PATH?}"', "A=$$B"):
        with pytest.raises(ValueError, match=r"line 1 is .* a `\$`"):
            read_dotenv(text)
    for text in ("=b", "A b", "A='b", "A='b' c", "1=b", "A='two\nlines'", 'A="\\n"', "A='it\\'s'"):
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
