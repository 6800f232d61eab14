"""What is decided before buildah is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.images import put_image

from belljar.errors import HostError, PolicyError
from belljar.image.build import build_packages
from belljar.image.buildah import BuildRequest, base_config, build_dockerfile, read_recipe
from belljar.image.config import HealthCheck, ImageConfig
from belljar.image.store import Image, Store

CHECK = HealthCheck(test=("CMD", "true"), retries=3)


def add(home: Path, name: str, content: bytes = b"x", *, on_build: tuple[str, ...] = ()) -> Image:
    config = ImageConfig(env={"A": "1"}, user="user", workdir="/w", cmd=("sh",), healthcheck=CHECK)
    config = replace(config, on_build=on_build, volumes=("/v",))
    return put_image(home, name, content, config)


def request_for(tmp_path: Path, text: str, name: str = "made:1") -> BuildRequest:
    context = tmp_path / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(text)
    return BuildRequest(context=context, name=name)


@pytest.mark.promise("1.8")
def test_what_is_missing_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base, with its command; buildah; a broken Dockerfile. Nothing is left in the store."""
    home = tmp_path / "home"
    with pytest.raises(HostError) as caught:
        build_dockerfile(home, request_for(tmp_path, "FROM python:3.99"))
    assert "belljar image import docker://python:3.99" in caught.value.hint
    for text in ("RUN true", "FROM", "\xff\xfe"):
        with pytest.raises(PolicyError) as broken:
            build_dockerfile(home, request_for(tmp_path, text))
        assert broken.value.where.endswith("Dockerfile")
    assert not home.exists()
    add(home, "base")
    monkeypatch.setattr("shutil.which", lambda *_args, **_more: None)
    with pytest.raises(HostError) as caught:
        build_dockerfile(home, request_for(tmp_path, "FROM base"))
    assert "belljar setup" in caught.value.hint


@pytest.mark.promise("1.8")
def test_the_same_recipe_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets one more name; another content, argument or base is another recipe."""
    home = tmp_path / "home"
    add(home, "base")

    def stop(*_args: object) -> None:
        raise HostError("would build")

    monkeypatch.setattr("belljar.image.buildah.tool", stop)
    request = request_for(tmp_path, "FROM base\nCOPY . /\n")

    def recipe() -> str:
        return str(read_recipe(Store(home), request).built["recipe"])

    recipes = [recipe()]
    made = put_image(home, "old", b"made", built=read_recipe(Store(home), request).built)
    found, is_new = build_dockerfile(home, request)
    assert (found.digest, is_new, found.names) == (made.digest, False, ("made:1", "old"))
    (request.context / "file").write_text("1")
    recipes.append(recipe())
    add(home, "base", b"other")
    recipes.append(recipe())
    assert len(set(recipes)) == 3
    with pytest.raises(HostError, match="would build"):
        build_dockerfile(home, request)


@pytest.mark.promise("1.8")
def test_a_step_that_wants_no_network_is_never_given_one(tmp_path: Path) -> None:
    """A build with a network refuses it by its line, before a base is loaded."""
    home = tmp_path / "home"
    add(home, "base")
    request = request_for(tmp_path, "FROM base\nRUN --network=none true\n")
    assert read_recipe(Store(home), request).built["network"] is False
    with pytest.raises(PolicyError, match="line 2: RUN --network=none"):
        read_recipe(Store(home), replace(request, has_network=True))


@pytest.mark.promise("1.8")
def test_a_base_starts_as_the_store_says(tmp_path: Path) -> None:
    """But for its volumes: buildah would discard what steps write there."""
    config = base_config(add(tmp_path / "home", "base"), "0" * 64)["config"]
    check = {"Healthcheck": {"Test": ["CMD", "true"], "Retries": 3}}
    assert config == {"Env": ["A=1"], "User": "user", "WorkingDir": "/w", "Cmd": ["sh"], **check}


def test_a_base_with_triggers_is_refused(tmp_path: Path) -> None:
    """Its ONBUILD would run in Docker; a copy from it is none of them."""
    home = tmp_path / "home"
    add(home, "base")
    add(home, "eager", b"eager", on_build=("RUN make",))
    with pytest.raises(PolicyError, match="eager has instructions of ONBUILD"):
        read_recipe(Store(home), request_for(tmp_path, "FROM eager"))
    read_recipe(Store(home), request_for(tmp_path, "FROM base\nCOPY --from=eager /x /y"))


def test_no_option_is_taken_for_a_package(tmp_path: Path) -> None:
    """A word that begins with a dash is refused before anything is built."""
    for word in ("-o=x", "--pre"):
        for apt, pip in (([word], []), ([], [word])):
            with pytest.raises(PolicyError):
                build_packages(tmp_path, "x", base="default", apt=apt, pip=pip)
    assert not list(tmp_path.iterdir())


def test_no_word_of_a_package_reaches_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is a list in JSON, whatever its words hold."""
    home, steps = tmp_path / "home", list[list[str]]()

    def build(_home: Path, request: BuildRequest, **_: object) -> tuple[None, bool]:
        lines = (request.context / "Dockerfile").read_text().splitlines()
        steps.extend(json.loads(line.split(" ", 2)[2]) for line in lines if line[:3] == "RUN")
        return None, True

    add(home, "base")
    for name in ("host_sources", "debian_sources", "host_acquire_options"):
        monkeypatch.setattr(f"belljar.image.build.{name}", lambda *_: {})
    monkeypatch.setattr("belljar.image.build.build_dockerfile", build)
    build_packages(home, "x", base="base", apt=["jq; id"], pip=["$(id)\n"])
    assert ("jq; id" in steps[1], steps[-1][-1]) == (True, "$(id)\n")
