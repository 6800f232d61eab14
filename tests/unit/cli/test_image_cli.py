"""`belljar image`: listing, inspecting, and what an import asks for before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.image import wanted_by_files
from belljar.cli.main import run
from belljar.image.config import ImageConfig
from belljar.image.store import Store


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


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one image, as `BELLJAR_HOME`."""
    home = tmp_path / "store"
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    home.mkdir()
    (home / "new").write_bytes(b"hsqs" + bytes(4092))
    config = ImageConfig(user="u\x1b[31m", env={"A": "b"})
    Store(home).add(
        home / "new", config, name="small", source="made\nhere", created="2024-01-01T00:00:00Z"
    )
    return Store(home)


def test_a_name_moves_and_nothing_acts_on_the_terminal(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other image loses it; what a maker of images wrote is escaped."""
    assert run(["image", "tag", "small", "default"]) == 0
    (store.home / "new").write_bytes(b"hsqs" + bytes(8188))
    store.add(store.home / "new", ImageConfig(), name="big", source="", created="")
    assert run(["image", "tag", "big", "default"]) == 0
    assert store.find("default").digest == store.find("big").digest
    for words in (["ls"], ["inspect", "small"]):
        assert run(["image", *words]) == 0
    assert all(each.isprintable() for each in capsys.readouterr().out.splitlines())
