"""Documents are read with the place of every value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.documents import (
    Document,
    Fault,
    read_document,
    read_file,
)


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


def test_sizes(tmp_path: Path) -> None:
    """Too large, too deep: each is reported."""
    (tmp_path / "a").write_bytes(b"x" * 101)
    assert "larger than" in str(read_file(tmp_path, "a", 100))
    (tmp_path / "a").write_text("[" * 70 + "]" * 70)
    assert read_document(tmp_path, "a", what="it").problems


def test_yaml_of_other_documents_may_say_more_than_a_policys(tmp_path: Path) -> None:
    """Plain numbers as names and empty values are read; what makes a document ambiguous is not."""
    (tmp_path / "a.yaml").write_text("200: {x: }\nno: 0o17")
    assert read_document(tmp_path, "a.yaml", what="it").value == {"200": {"x": None}, "no": 15}
    (tmp_path / "a.yaml").write_text("a: 1\na: 2")
    assert [str(fault) for fault in read_document(tmp_path, "a.yaml", what="it").problems] == [
        "a.yaml:2:1: a: written twice; the first is on line 1"
    ]


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_reported(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    """No content makes reading fail."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "a").write_bytes(data)
    document = read_document(folder, "a", what="it")
    assert document.problems or isinstance(document, Document)
