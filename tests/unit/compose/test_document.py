"""Which files are compose files, and reading them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.util._sandbox.compose import is_compose_yaml, is_dockerfile

from belljar.compose.document import (
    COMPOSE_NAMES,
    MAX_BYTES,
    MAX_TEXT_BYTES,
    TaskFiles,
    beside,
    files_of,
    is_compose_name,
    is_dockerfile_name,
    read_document,
)
from belljar.errors import PolicyError
from belljar.harness.config import as_config, settled


def test_names_are_inspects() -> None:
    """So that what Inspect forwards is understood as it was meant."""
    others = ("web-compose.yaml", ".compose.yaml", "a/b/compose.yaml", "belljar.yaml", "high")
    for name in (*COMPOSE_NAMES, *others, "policy.yaml", "Dockerfile"):
        assert is_compose_name(name) is is_compose_yaml(name)
        assert is_dockerfile_name(name) is is_dockerfile(name)


def test_the_first_of_a_directory(tmp_path: Path) -> None:
    """In Inspect's order."""
    assert beside(tmp_path) is None
    for name in reversed(COMPOSE_NAMES):
        (tmp_path / name).touch()
        assert beside(tmp_path) == tmp_path / name


def test_what_is_none(tmp_path: Path) -> None:
    """Is refused with its path, and the line where it is of one; one that is too long is not read
    in part."""
    path = tmp_path / "compose.yaml"
    for content, said, line in (
        (b"[1]", "is not a compose file", ""),
        (b"", "is not a compose file", ""),
        (b"a: [", "can't be read: it is no YAML", ":1"),
        (b"services: 1\nb: !reset x", "b: tags are not allowed: remove `!reset`", ":2"),
        (b"a: \xff", "can't be read: it is not UTF-8", ""),
        (b"a: 1\n#" + b"#" * MAX_BYTES, "is larger than 128 KiB", ""),
    ):
        path.write_bytes(content)
        with pytest.raises(PolicyError, match=said) as caught:
            read_document(path)
        assert caught.value.where == f"{path}{line}"


def test_no_pipe_and_no_device_is_waited_for(tmp_path: Path) -> None:
    """Nobody ever writes into this pipe, and the device never ends."""
    os.mkfifo(tmp_path / "compose.yaml")
    for path in (tmp_path / "compose.yaml", Path("/dev/zero"), tmp_path):
        with pytest.raises(PolicyError, match="not a regular file"):
            read_document(path)
    with pytest.raises(PolicyError, match="no such file"):
        read_document(tmp_path / "none.yaml")


def test_what_a_file_builds_has_compose_s_own_name(tmp_path: Path) -> None:
    """The one under which it is found where it was built: by the file's name or its directory's.
    What has a name, and what is not built, stays."""
    path = tmp_path / "_My.Task 2" / "compose.yaml"
    path.parent.mkdir()
    services = (
        "services: {default: {build: .}, web: {build: {context: w}, image: mine}, db: {image:"
        " postgres}}\n"
    )
    for name, project in (("", "mytask2"), ("name: Other\n", "other")):
        path.write_text(name + services)
        found = read_document(path)["services"]
        assert [found[each].get("image") for each in ("default", "web", "db")] == [
            f"{project}-default",
            "mine",
            "postgres",
        ]
        assert found["default"]["build"] == "."


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


def test_a_text_is_bounded(tmp_path: Path) -> None:
    """And is UTF-8."""
    (tmp_path / "a").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    (tmp_path / "b").write_bytes(b"\xff")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=r"larger|UTF-8"):
            TaskFiles(tmp_path).read_text(name)
