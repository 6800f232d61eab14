"""The images that a task brings as Dockerfiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.document import ServiceBuild
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness.source import build_missing
from belljar.image.buildah import BuildRequest, read_recipe
from belljar.image.config import ImageConfig
from belljar.image.store import Store


def spec(tmp_path: Path, *, image: str = "made", context: str = ".", arg: str = "") -> ServiceBuild:
    """A task's directory with a Dockerfile, as a configuration names it."""
    root = tmp_path / "task"
    root.mkdir(exist_ok=True)
    (root / "Dockerfile").write_text("FROM base\n")
    return ServiceBuild(
        image=image,
        root=str(root),
        context=context,
        dockerfile="Dockerfile",
        args={"A": arg} if arg else {},
    )


def add(home: Path, name: str, built: dict[str, str] | None = None) -> None:
    """An image of a few bytes."""
    home.mkdir(exist_ok=True)
    (home / "rootfs").write_bytes(name.encode())
    Store(home).add(
        home / "rootfs", ImageConfig(), name=name, source="test", created="", built=built
    )


@pytest.mark.promise("1.8")
def test_an_image_that_was_imported_is_used_as_it_is(tmp_path: Path) -> None:
    """Nor is one built that no cell runs."""
    add(tmp_path / "home", "made")
    build_missing([spec(tmp_path)], {"made"}, tmp_path / "home")
    build_missing([spec(tmp_path, image="other")], {"made"}, tmp_path / "home")


@pytest.mark.promise("1.8")
def test_an_image_of_the_same_files_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built of these files, with network or not, is used without buildah."""
    home, text = tmp_path / "home", spec(tmp_path)
    add(home, "base")
    root = tmp_path / "task"
    about: dict[str, Any] = {"context": root, "dockerfile": root / "Dockerfile"}
    recipe = read_recipe(Store(home), BuildRequest(name="made", has_network=True, **about))
    add(home, "made", recipe.provenance(has_network=True, keep_setuid=False))
    build_missing([text], {"made"}, home)
    (root / "more").touch()
    monkeypatch.setattr("shutil.which", lambda *_args, **_more: None)
    with pytest.raises(HostError) as caught:
        build_missing([text], {"made"}, home)
    assert "belljar setup" in caught.value.hint


@pytest.mark.promise("1.8")
def test_what_is_never_built(tmp_path: Path) -> None:
    """No sample runs in the image of another."""
    home = tmp_path / "home"
    add(home, "made")
    texts = [spec(tmp_path), spec(tmp_path, arg="1")]
    with pytest.raises(PolicyError):
        build_missing(texts, {"made"}, home)
    build_missing([texts[0], texts[0]], {"made"}, home)
    add(home, "base")
    (tmp_path / "task" / "out").symlink_to("/etc")
    with pytest.raises(BelljarError, match="leads out"):
        build_missing([spec(tmp_path, image="other", context="out")], {"other"}, home)
    for name in ("default", "inspect"):
        with pytest.raises(PolicyError, match="Belljar's own"):
            build_missing([spec(tmp_path, image=name)], {name}, home)
