"""Documents are read with the place of every value."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.documents import (
    Document,
    Fault,
    locate_json,
    read_document,
    read_file,
)

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
)


def places(
    value: object, path: tuple[str | int, ...] = ()
) -> list[tuple[tuple[str | int, ...], object]]:
    """Every value and its path."""
    below = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        (path, value),
        *(place for name, item in below for place in places(item, (*path, name))),
    ]


@given(JSON, st.sampled_from([None, 1, "\t"]))
def test_every_value_of_json_is_found(value: object, indent: int | str | None) -> None:
    """Exactly that value begins at the reported place."""
    text = json.dumps(value, indent=indent)
    for path, item in places(value):
        mark = locate_json(text, path)
        rest = "\n".join(text.split("\n")[mark.line - 1 :])[mark.column - 1 :]
        assert json.JSONDecoder().raw_decode(rest)[0] == item


@pytest.mark.parametrize(
    "name", ["", "../a", "/etc/passwd", "none", "dir", "out", "pipe", "a\0b", 3, None]
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: object) -> None:
    """A file outside, absent, or none is a sentence, not an exception."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/dir").mkdir()
    os.mkfifo(tmp_path / "in/pipe")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in/out").symlink_to("../secret")
    assert isinstance(read_file(tmp_path / "in", name, 100), Fault)


def test_sizes_and_encodings(tmp_path: Path) -> None:
    """Too large, not UTF-8, too deep: each is reported."""
    (tmp_path / "a").write_bytes(b"x" * 101)
    assert "larger than" in str(read_file(tmp_path, "a", 100))
    (tmp_path / "a.json").write_bytes(b'{"a":\n"\xff"}')
    assert [str(fault) for fault in read_document(tmp_path, "a.json", what="it").problems] == [
        "a.json:2:1: not UTF-8"
    ]
    (tmp_path / "a.json").write_text("[" * 70 + "]" * 70)
    assert "nested deeper" in str(read_document(tmp_path, "a.json", what="it").problems[0])
    (tmp_path / "a.json").write_text("[NaN]")
    assert "not JSON" in str(read_document(tmp_path, "a.json", what="it").problems[0])


def test_yaml_of_other_documents_may_say_more_than_a_policys(tmp_path: Path) -> None:
    """Plain numbers as names and empty values are read; what makes a document ambiguous is not."""
    (tmp_path / "a.yaml").write_text("200: {x: }\nno: 0o17")
    assert read_document(tmp_path, "a.yaml", what="it").value == {"200": {"x": None}, "no": 15}
    (tmp_path / "a.yaml").write_text("a: 1\na: 2")
    assert [str(fault) for fault in read_document(tmp_path, "a.yaml", what="it").problems] == [
        "a.yaml:2:1: a: written twice; the first is on line 1"
    ]


@given(st.binary(max_size=80), st.sampled_from(["a.yaml", "a.json"]))
def test_any_bytes_are_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    """No content makes reading fail."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / name).write_bytes(data)
    document = read_document(folder, name, what="it")
    assert document.problems or isinstance(document, Document)
