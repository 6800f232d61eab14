"""`belljar image import --from-compose` and `--from-task`: what is asked for, before anything is
fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.image import wanted_by_files
from belljar.cli.main import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and a working directory with nothing in it."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.promise("1.8")
def test_different_builds_of_one_name_are_refused_before_anything_is_got(tmp_path: Path) -> None:
    """Of two compose files: neither image is the other's."""
    for task in ("one", "two"):
        (tmp_path / task).mkdir()
        (tmp_path / task / "Dockerfile").write_text(f"FROM {task}\n")
        (tmp_path / task / "compose.yaml").write_text("services: {a: {build: ., image: same}}")
    files = ["one/compose.yaml", "two/compose.yaml"]
    assert run(["image", "import", "--from-compose", *files]) == 4


def test_what_a_dockerfile_starts_from_is_needed_for_it(tmp_path: Path) -> None:
    """Stages of its own are not; a Dockerfile above the compose file is not read."""
    (tmp_path / "web").mkdir()
    dockerfile = (
        "ARG V=1\nFROM docker.io/library/python:$V AS a\nFROM a\nCOPY --from=team/tool /x /x\n"
    )
    (tmp_path / "web/Dockerfile").write_text(dockerfile)
    (tmp_path / "Dockerfile").write_text("FROM secret")
    (tmp_path / "web/compose.yaml").write_text(
        "services: {a: {build: {context: ., args: {V: 3}}}, b: {build: {context: ..}}, c: {build:"
        " none}}"
    )
    found = wanted_by_files([str(tmp_path / "web/compose.yaml")])
    assert [each.bases for each in found] == [("python:3", "team/tool"), (), ()]
