"""`belljar bundle create --task`: the images of a task's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.images import put_image
from tests.unit.bundle.test_bundle import FILES, install, kernel_in, written

from belljar.bundle import Contents, store_files
from belljar.cli.main import run
from belljar.cli.setup import images_of_task
from belljar.errors import HostError
from belljar.harness.source import build_missing
from belljar.image.buildah import BuildRequest, read_recipe
from belljar.image.store import Store
from belljar.image.tools import Report
from belljar.ledger.keys import load_or_make_key

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def two():
    samples = [
        Sample(input="x", sandbox=("docker", "one/compose.yaml")),
        Sample(input="x", sandbox=("docker", "two/Dockerfile")),
    ]
    return Task(dataset=samples)
"""
COMPOSE = "services: {default: {image: own}, db: {image: 'db:1'}}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with what the task of the working directory runs in, and more than that."""
    for name, text in (("one/compose.yaml", COMPOSE), ("two/Dockerfile", "FROM base\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "task.py").write_text(TASK)
    store, folder = tmp_path / "store", tmp_path / "two"
    for name in ("default", "own", "db:1", "base", "other"):
        put_image(store, name, name.encode())
    request = BuildRequest(context=folder, name="x", dockerfile=folder / "Dockerfile")
    recipe = read_recipe(Store(store), request)
    put_image(store, "two-default", b"two", built=recipe.built)
    monkeypatch.setenv("BELLJAR_HOME", str(store))
    monkeypatch.setattr("shutil.which", lambda *_args, **_more: None)  # nothing is built
    monkeypatch.chdir(tmp_path)
    return store


CREATE = ["bundle", "create", "out", "--task", "task.py"]


def test_the_images_of_a_task_are_in_the_bundle(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each service and Dockerfile, with its base: there a run has nothing to build. No more."""
    kernel = kernel_in(tmp_path / "boot")
    monkeypatch.setattr("belljar.bundle.current_kernel", lambda _home: kernel)
    monkeypatch.setattr("belljar.bundle.tool", lambda name: f"/usr/bin/{name}")
    found = list[dict[str, Any]]()

    def gather(home: Path, out: Path, wanted: Contents, *, report: Report) -> None:
        del out, report
        paths, about = store_files(home, wanted)
        files = {name: path.read_bytes() for name, path in paths.items() if "images/" in name}
        found.append(about)
        bundle = written(tmp_path / "bundle", key, {**FILES, **files}, **about)
        install(bundle, tmp_path / "other", key)
        raise HostError("this is enough")

    key = load_or_make_key(tmp_path / "signer")
    monkeypatch.setattr("belljar.bundle.check_host", lambda _about: None)
    monkeypatch.setattr("belljar.bundle.adopt_kernel", lambda *_: None)
    monkeypatch.setattr("belljar.bundle.create_bundle", gather)
    assert run(CREATE) == 3
    names = {name for image in found[0]["images"] for name in image["names"]}
    assert names == {"default", "own", "db:1", "two-default", "base"}
    there = Store(tmp_path / "other")
    assert {name for image in there.list() for name in image.names} == names
    _, builds = images_of_task(["task.py"])
    assert builds
    build_missing(builds, {"two-default"}, there.home)
