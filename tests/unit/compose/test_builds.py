"""The images that a compose file runs, and what its `build` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.compose.data import ServiceBuild, builds_of, service_images
from belljar.compose.document import DIRECTORY_KEY, dockerfile_document, read_document
from belljar.compose.values import CannotKeepError

DIGEST = "sha256:" + "1" * 64


def builds(tmp_path: Path, build: str) -> tuple[ServiceBuild, ...]:
    """The builds of a file with one service, in a directory of a package."""
    directory = tmp_path / "pack" / "task"
    directory.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (directory / "compose.yaml").write_text(f"services:\n  web:\n    build: {build}\n")
    return builds_of(read_document(directory / "compose.yaml"))


@pytest.mark.promise("1.8")
def test_paths_are_below_the_tasks_package(tmp_path: Path) -> None:
    """Context and Dockerfile are paths below the package that the file is in; the image has
    Compose's name, with a tag of its own where another Dockerfile is named. A name without a value
    takes nothing from this host's environment."""
    rows = (
        (".", "task", "task/Dockerfile"),
        ("../shared", "shared", "shared/Dockerfile"),
        ("{context: ., dockerfile: sub/My.Dockerfile}", "task", "task/sub/My.Dockerfile"),
        ("{context: .., dockerfile: task/Dockerfile, no_cache: true}", ".", "task/Dockerfile"),
        ("{context: ., args: [A=1, PATH], target: final}", "task", "task/Dockerfile"),
    )
    for number, (written, context, dockerfile) in enumerate(rows):
        (build,) = builds(tmp_path / str(number), written)
        root = str(tmp_path / str(number) / "pack")
        assert (build.root, build.context, build.dockerfile) == (root, context, dockerfile)
        assert build.image.partition(":")[0] == "task-web"
        assert (":" in build.image) == ("dockerfile" in written or "args" in written)
    assert (dict(build.args), build.target) == ({"A": "1"}, "final")


@pytest.mark.promise("1.8")
def test_files_of_one_directory_build_images_of_their_own(tmp_path: Path) -> None:
    """Compose files beside each other whose services have one name and different Dockerfiles,
    arguments or targets name different images; the same build has the same name."""
    kinds = (
        "{context: ., dockerfile: 1.Dockerfile}",
        "{context: ., args: {A: 1}}",
        "{context: ., target: a}",
        ".",
    )
    names = set()
    for number, build in enumerate((*kinds, *kinds)):
        path = tmp_path / f"compose_{number}.yaml"
        path.write_text(f"services:\n  default:\n    build: {build}\n")
        (found,) = builds_of(read_document(path))
        names.add(found.image)
    assert len(names) == len(kinds)


@pytest.mark.promise("1.8")
@pytest.mark.parametrize(
    "written",
    [
        *("../..", "/etc", "https://example.org/repo.git", "[a]"),
        "{context: ., dockerfile: ../../Dockerfile}",
        "{context: ., dockerfile: D, dockerfile_inline: FROM x}",
        *("{context: ., secrets: [a]}", "{context: ., network: host}"),
        "{context: ., additional_contexts: {a: /}}",
    ],
)
def test_what_leads_out_or_is_not_known_is_refused(tmp_path: Path, written: str) -> None:
    """A path out of the task's files, an address, and a key that would decide the image are refused
    before anything is read."""
    with pytest.raises((CannotKeepError, ValueError)):
        builds(tmp_path, written)


@pytest.mark.promise("1.8")
def test_a_dockerfile_alone_is_what_inspect_makes_of_it(tmp_path: Path) -> None:
    """Its service idles, has no network, and is built in the Dockerfile's directory."""
    (tmp_path / "X.Dockerfile").touch()
    document: dict[str, Any] = dockerfile_document(tmp_path / "X.Dockerfile")
    (build,) = builds_of(document)
    assert (build.dockerfile, build.context, build.root) == ("X.Dockerfile", ".", str(tmp_path))
    assert document["services"]["default"]["network_mode"] == "none"


def test_the_images_of_a_file() -> None:
    """In their normal form; what is built, what only means some Linux, and what is not known before
    there is a sample."""
    images = {
        "docker.io/library/python:3.12": "python:3.12",
        f"x:1@{DIGEST}": f"x:1@{DIGEST}",
        "${IMAGE:-debian}": "debian",
        "python:3.12": "python:3.12",
        "aisiuk/inspect-tool-support": "inspect",
    }
    services: dict[str, Any] = {str(n): {"image": image} for n, image in enumerate(images)}
    services["0"] |= {"privileged": True, "devices": ["/dev/kvm"]}
    services["e"] = {"build": ".", "image": "p-e"}
    unknown = {"g": {"image": "ghcr.io/a:${SAMPLE_METADATA_TAG}"}, "h": {"image": "Not An Image"}}
    found = service_images({"services": services | unknown | {"j": {"build": "."}}, "whatever": 1})
    assert [each.image for each in found if not each.why] == [*images.values(), "p-e"]
    assert [each.service for each in found if each.why] == ["g", "h", "j"]
    assert "SAMPLE_METADATA_TAG" in found[6].why


def test_what_is_built_says_how(tmp_path: Path) -> None:
    """Below the task's files; a context that leads out of them is a reason, and not read."""
    args = {"A": 1, "HOST": None}
    build = {"context": "./web", "dockerfile": "../D", "target": "run", "args": args}
    out = {"image": "x", "build": "../../../../.."}
    services = {"a": {"image": "web", "build": build}, "b": out}
    found, outside = service_images({"services": services, DIRECTORY_KEY: str(tmp_path)})
    assert found.build is not None
    assert (found.build.image, found.build.context, found.build.dockerfile) == ("web", "web", "D")
    assert (found.build.target, found.build.args) == ("run", {"A": "1"})
    assert outside.why
