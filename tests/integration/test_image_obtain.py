"""`belljar image import --from-compose` and `--from-task`, with real skopeo, a registry and a
daemon on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.images import docker_archive, entry, layer
from tests.fakes.registry import Registry, docker, registry

from belljar.cli.main import run
from belljar.image.store import Store

LAYER = layer(entry("bin/sh", b"#!"))
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def several():
    return Task(
        dataset=[
            Sample(input="a", id=1, metadata={"tag": "1"}),
            Sample(input="b", id=2, metadata={"tag": "2"}),
            Sample(input="c", id=3, sandbox=("docker", "own-compose.yaml")),
        ],
        sandbox=("docker", "compose.yaml"),
    )
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, as `BELLJAR_HOME`, and a working directory."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.fixture
def served() -> Iterator[Registry]:
    """A registry on loopback."""
    with registry() as made:
        yield made


def test_all_images_of_a_compose_file_are_got(
    home: Path,
    served: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the daemon what it has, from the registry the rest, pinned ones by their digest; a
    second time nothing is fetched."""
    pinned, _, _ = served.put("team/pinned", "1", [LAYER])
    served.put("team/other", "2", [layer(entry("x"))])
    (tmp_path / "compose.yaml").write_text(f"""
services:
  default: {{image: "{served.address}/team/pinned:1@{pinned}", privileged: true}}
  other: {{image: "{served.address}/team/other:2"}}
  built: {{build: ., image: built-here}}
""")
    there = docker(tmp_path / "bin", monkeypatch)
    there.put("built-here", docker_archive(tmp_path / "a.tar", [layer(entry("y"))]))
    assert run(["image", "import", "--from-compose", "compose.yaml"]) == 0
    team = f"{served.address}/team"
    for name in (f"{team}/pinned@{pinned}", f"{team}/other:2", "built-here"):
        Store(home).find(name)
    fetched = len(served.asked)
    capsys.readouterr()
    assert run(["image", "import", "--from-compose", "compose.yaml", "--json"]) == 0
    assert [each["was_there"] for each in json.loads(capsys.readouterr().out)] == [True] * 3
    assert len(served.asked) == fetched


@pytest.mark.root
@pytest.mark.slow
def test_what_is_built_is_built_when_its_bases_are_there(
    home: Path, served: Registry, tmp_path: Path
) -> None:
    """The images that a service's Dockerfile starts from are got, then it is built; the second time
    it is in the store."""
    served.put("base", "1", [LAYER])
    (tmp_path / "web").mkdir()
    (tmp_path / "web/Dockerfile").write_text(f"FROM {served.address}/base:1\nCOPY page /page\n")
    (tmp_path / "web/page").write_text("hello")
    (tmp_path / "compose.yaml").write_text("services: {default: {build: ./web, image: team/web}}")
    assert run(["image", "import", "--from-compose", "compose.yaml"]) == 0
    image = Store(home).find("team/web")
    assert image.built
    Store(home).find(f"{served.address}/base:1")
    assert run(["image", "import", "--from-compose", "compose.yaml"]) == 0
    assert Store(home).find("team/web") == image


def test_what_can_not_be_got_is_named_with_its_reason(
    home: Path,
    served: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The others are there all the same, and the exit code is the host's fault; no daemon that
    hangs holds it up."""
    served.put("good", "1", [LAYER])
    (tmp_path / "compose.yaml").write_text(f"""
services:
  default: {{image: "{served.address}/good:1"}}
  gone: {{image: "{served.address}/gone:1"}}
  nobody: {{image: "127.0.0.1:1/x"}}
  built: {{build: ./web}}
  sample: {{image: "${{SAMPLE_METADATA_IMAGE}}"}}
""")
    monkeypatch.setattr("belljar.image.fetch._PING_S", 0.5)
    docker(tmp_path / "bin", monkeypatch).hang("version")
    assert run(["image", "import", "--from-compose", "compose.yaml"]) == 3
    said = capsys.readouterr().err
    assert "4 of 5" in said
    for words in ("manifest unknown", "refused", "the Dockerfile can't be built", "_IMAGE"):
        assert words in said
    Store(home).find(f"{served.address}/good:1")


def test_all_images_of_a_tasks_samples_are_got(
    home: Path, served: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample's own, by its metadata and by its own sandbox; a `.env` file beside the task that
    would change where they come from is refused."""
    for name in ("by-tag:1", "by-tag:2", "own:1", "web:1"):
        image, _, tag = name.partition(":")
        served.put(image, tag, [layer(entry(f"{image}-{tag}"))])
    (tmp_path / "several.py").write_text(TASK)
    (tmp_path / ".env").write_text("DOCKER_HOST=unix:///x\nHTTPS_PROXY=http://127.0.0.1:1\n")
    of_tag = f"{{image: '{served.address}/by-tag:${{SAMPLE_METADATA_TAG}}'}}"
    (tmp_path / "compose.yaml").write_text(f"services: {{default: {of_tag}}}")
    own, web = (f"{{image: '{served.address}/{name}:1'}}" for name in ("own", "web"))
    (tmp_path / "own-compose.yaml").write_text(f"services: {{default: {own}, web: {web}}}")
    before = dict(os.environ)
    assert run(["image", "import", "--from-task", "several.py"]) == 4
    (tmp_path / ".env").unlink()
    assert run(["image", "import", "--from-task", "several.py"]) == 0
    assert dict(os.environ) == before
    for name in ("by-tag:1", "by-tag:2", "own:1", "web:1"):
        Store(home).find(f"{served.address}/{name}")
