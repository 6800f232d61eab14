"""Compose files that take from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.data import builds_of
from belljar.compose.document import MAX_INCLUDES, files_named_by, read_document
from belljar.compose.translate import read_compose
from belljar.errors import PolicyError

DATABASE = """
version: "3"
name: other
services:
  db:
    image: db
    env_file: db.env
    build: {context: ./image}
    volumes: ["./data:/data:ro", "rows:/rows", {type: bind, source: ./one, target: /one}]
volumes: {rows: }
networks: {lab: {internal: true}}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A package with a task's directory, and one that tasks share."""
    for directory in ("task", "shared/data"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "shared" / "compose.yaml").write_text(DATABASE)
    (tmp_path / "shared" / "db.env").write_text("A=1")
    for name in ("one", "data/rows"):
        (tmp_path / "shared" / name).write_text(name)
    return tmp_path / "task"


def read(task: Path, text: str) -> dict[str, Any]:
    """The compose file of the task with this text."""
    (task / "compose.yaml").write_text(text)
    return read_document(task / "compose.yaml")


@pytest.mark.promise("1.5")
@pytest.mark.parametrize("written", ["{}", "[{}]", "[{{path: {}}}]", "[{{path: [{}]}}]"])
def test_what_is_included_keeps_its_own_directory(task: Path, written: str) -> None:
    """Its services, volumes and networks stand beside the file's own."""
    path = written.format("../shared/compose.yaml")
    own = "services: {default: {image: i, networks: [lab]}}"
    document = read(task, f"include: {path}\n{own}")
    found = read_compose(document, files_named_by(document))
    assert found.data is not None
    copied = {file.target: file.source for file in found.data.of("db").own.files}
    assert copied == {"/data": "shared/data", "/one": "shared/one"}
    assert found.network is not None
    assert found.network["stand_ins"]["db"]["env"] == {"A": "1"}
    assert found.network["stand_ins"]["db"]["directories"] == ["/rows"]
    (build,) = builds_of(document)
    assert (build.context, build.dockerfile) == ("shared/image", "shared/image/Dockerfile")


def test_a_file_does_not_say_where_it_is(task: Path) -> None:
    """What an author writes in place of Belljar's own mark leads nowhere."""
    home = f"x-belljar-home: {task.parent.parent}"
    (task.parent.parent / "one").write_text("outside")
    text = f"services: {{db: {{image: db, {home}, volumes: ['./one:/one:ro']}}}}"
    document = read(task, text)
    with pytest.raises(ValueError, match="no such file"):
        read_compose(document, files_named_by(document))


@pytest.mark.promise("1.5")
def test_a_name_that_both_have_is_an_error(task: Path) -> None:
    """Unless both say the same of it."""
    text = (
        "include: ../shared/compose.yaml\nservices: {default: {image: i}%s}\nnetworks: {lab:"
        " {internal: true}}"
    )
    assert set(read(task, text % "")["services"]) == {"default", "db"}
    with pytest.raises(PolicyError, match="there twice"):
        read(task, text % ", db: {image: i}")


@pytest.mark.promise("1.7")
@pytest.mark.parametrize(
    "written",
    [
        *("compose.yaml", "../../out.yaml", "/etc/passwd", "none.yaml", "link.yaml", "7"),
        *("https://example.com/compose.yaml", "${SAMPLE_METADATA_X}/compose.yaml"),
        "{path: ../shared/compose.yaml, env_file: .env}",
        "{path: ../shared/compose.yaml, project_directory: .}",
        "{path: [../shared/compose.yaml, ../shared/compose.yaml]}",
        *("{path: [[../shared/compose.yaml]]}", "{path: 7.0.0}", "{path: ../shared/db.env}"),
        "{path: ../shared/compose.yaml, made_up: 1}",
    ],
)
def test_what_is_not_included(task: Path, written: str) -> None:
    """Itself, what is outside of the task, what there is not, what has variables of its own; the
    error names the key."""
    (task.parent.parent / "out.yaml").write_text("services: {x: {image: i}}")
    (task / "link.yaml").symlink_to("/etc/passwd")
    with pytest.raises(PolicyError, match="include") as refused:
        read(task, f"include: {written}\nservices: {{default: {{image: i}}}}")
    assert "root:" not in str(refused.value)


@pytest.mark.promise("1.5")
def test_how_many_files_are_read(task: Path) -> None:
    """None in a chain, and so many for one file."""
    (task / "next.yaml").write_text("include: ../shared/compose.yaml\nservices: {s: {image: i}}")
    many = str(["../shared/compose.yaml"] * (MAX_INCLUDES + 1))
    for written, said in (("next.yaml", "it includes others"), (many, "at most")):
        with pytest.raises(PolicyError, match=said):
            read(task, f"include: {written}\nservices: {{default: {{image: i}}}}")


def test_an_included_part_that_no_cell_keeps_is_refused(task: Path) -> None:
    """As if it stood in the file itself."""
    (task / "more.yaml").write_text("models: {m: {model: x}}\nservices: {m: {image: i}}")
    document = read(task, "include: more.yaml\nservices: {default: {image: i}}")
    with pytest.raises(ValueError, match="models"):
        read_compose(document)
