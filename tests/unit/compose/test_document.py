"""Which files are compose files, reading them, and what they may name and include."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.util._sandbox.compose import is_compose_yaml, is_dockerfile

from belljar.compose.document import (
    COMPOSE_NAMES,
    MAX_INCLUDES,
    TaskFiles,
    beside,
    builds_of,
    files_named_by,
    files_of,
    is_compose_name,
    is_dockerfile_name,
    read_document,
)
from belljar.compose.translate import read_compose
from belljar.errors import PolicyError
from belljar.harness.config import as_config, settled


def test_names_are_inspects() -> None:
    """So that what Inspect forwards is understood as it was meant."""
    others = ("web-compose.yaml", ".compose.yaml", "a/b/compose.yaml", "belljar.yaml", "high")
    for name in (*COMPOSE_NAMES, *others, "policy.yaml", "Dockerfile"):
        assert is_compose_name(name) is is_compose_yaml(name)
        assert is_dockerfile_name(name) is is_dockerfile(name)


@pytest.mark.promise("1.7")
def test_nothing_of_another_file_is_shown(tmp_path: Path) -> None:
    """A secret that is called like a compose file, whatever is wrong with it as one."""
    for number, content in enumerate(
        ("hunter2: !hunter2 x", "hunter2: 1\nhunter2: 2", "a: *hunter2", "hunter2: 1")
    ):
        path = tmp_path / f"{number}-compose.yaml"
        path.write_text(content)
        with pytest.raises(PolicyError) as caught:
            settled(as_config(str(path)), {})
        assert "hunter2" not in str(caught.value)


@pytest.mark.promise("1.7")
def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    """Nothing of what it leads to is read; a loop and a link to nothing are told with the path."""
    (tmp_path / "secret").write_text("services: {hunter2: {image: a}}")
    (task := tmp_path / "task").mkdir()
    for name, target in (("out", "../secret"), ("loop", "loop-compose.yaml"), ("gone", "nothing")):
        (task / f"{name}-compose.yaml").symlink_to(target)
        with pytest.raises(PolicyError) as caught:
            read_document(task / f"{name}-compose.yaml")
        assert str(task / f"{name}-compose.yaml") in caught.value.where
        assert "hunter2" not in str(caught.value)
    (task / "compose.yaml").symlink_to("nothing")
    assert beside(task) == task / "compose.yaml"


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


DATABASE = """
version: "3"
name: other
services:
  db:
    image: db
    env_file: db.env
    build: {context: ./image}
    volumes: ["./data:/data:ro", "rows:/rows", "./one:/one"]
volumes: {rows: }
networks: {lab: {internal: true}}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    for directory in ("task", "shared/data"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "shared" / "compose.yaml").write_text(DATABASE)
    (tmp_path / "shared" / "db.env").write_text("A=1")
    for name in ("one", "data/rows"):
        (tmp_path / "shared" / name).write_text(name)
    return tmp_path / "task"


def read(task: Path, text: str) -> dict[str, Any]:
    (task / "compose.yaml").write_text(text)
    return read_document(task / "compose.yaml")


@pytest.mark.promise("1.5")
@pytest.mark.parametrize("written", ["{}", "[{{path: [{}]}}]"])
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
        *("compose.yaml", "../../out.yaml", "none.yaml", "link.yaml", "7"),
        *("https://example.com/compose.yaml", "${SAMPLE_METADATA_X}/compose.yaml"),
        "{path: ../shared/compose.yaml, env_file: .env}",
        "{path: [../shared/compose.yaml, ../shared/compose.yaml]}",
        "{path: ../shared/db.env}",
    ],
)
def test_what_is_not_included(task: Path, written: str) -> None:
    """Itself, what is outside of the task, what there is not, what has variables of its own."""
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
    for written, said in (("next.yaml", "without `include`"), (many, "at most")):
        with pytest.raises(PolicyError, match=said):
            read(task, f"include: {written}\nservices: {{default: {{image: i}}}}")
