"""What each sample would run in, before anything is started, and the images that are built."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from tests.fakes.hosts import capable_host
from tests.fakes.images import put_image

from belljar.compose.document import ServiceBuild
from belljar.differences import DifferenceKind
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness.config import Preview, adapt_task
from belljar.harness.operator import Operator
from belljar.harness.preview import (
    Outlook,
    as_json,
    check_compose,
    check_policy,
    grouped,
    outlooks,
    preview,
)
from belljar.harness.source import RealCells
from belljar.host.settings import Settings
from belljar.image.buildah import BuildRequest, read_recipe
from belljar.image.config import HealthCheck, ImageConfig
from belljar.image.missing import build_missing
from belljar.image.store import SetuidPrograms, Store
from belljar.policy.load import load_policy

pytestmark = pytest.mark.usefixtures("start")
OPERATOR = Operator(settings=Settings(), run_policy="low")


def previews(directory: Path, *samples: Sample, sandbox: str = "docker") -> list[Preview]:
    task = Task(dataset=list(samples), sandbox=sandbox, name="t")
    return list(preview(adapt_task(task, directory=directory), OPERATOR))


@pytest.mark.promise("1.5")
def test_the_error_of_one_sample_hides_no_other(tmp_path: Path) -> None:
    """Each has its own outcome; a refusal has each key for itself."""
    (tmp_path / "compose.yaml").write_text(
        "services: {default: {image: 'i-${SAMPLE_METADATA_KIND}', tty: true}}"
    )
    (tmp_path / "bad-compose.yaml").write_text(
        "services: {default: {image: i, gpus: all, pid: host}}"
    )
    found = previews(
        tmp_path,
        Sample(id=1, input="x", metadata={"kind": "a"}),
        Sample(id=2, input="x"),
        Sample(id=3, input="x", sandbox=("docker", "bad-compose.yaml")),
        Sample(id=4, input="x", metadata={"kind": "b"}),
    )
    assert [each.error is not None for each in found] == [False, True, True, False]
    assert found[1].error is not None
    assert "SAMPLE_METADATA_KIND" in found[1].error.what
    assert "sample 2" in found[1].error.where
    assert {fact.key for fact in found[2].differences} == {"gpus", "pid"}
    assert {fact.kind for fact in found[2].differences} == {DifferenceKind.REFUSED}
    images = [each.policy.policy.image for each in found if each.policy is not None]
    assert images == ["i-a", "i-b"]
    assert [fact.key for fact in found[3].differences] == ["tty"]
    assert [len(same) for same in grouped(found)] == [1, 1, 1, 1]


@pytest.mark.promise("1.6", "2.4")
@pytest.mark.parametrize(
    ("tier", "asks", "programs", "kinds"),
    [
        ("microvm", "auto", "kept", [DifferenceKind.GRANTED]),
        ("container", "auto", "kept", [DifferenceKind.DROPPED]),
        ("microvm", "auto", "removed", [DifferenceKind.DROPPED]),
        ("container", "off", "kept", []),
    ],
)
def test_what_a_cell_does_not_keep_of_an_image_is_reported(
    tier: str, asks: str, programs: SetuidPrograms, kinds: list[DifferenceKind], tmp_path: Path
) -> None:
    """Of set-user-ID programs where the task asks for their rights; the rest is kept."""
    check = HealthCheck(test=("CMD", "up"))
    config = ImageConfig(user="app", volumes=("/data",), healthcheck=check, stop_signal="SIGINT")
    put_image(tmp_path, "i:1", config=config, setuid_programs=programs)
    rights = f"rights: {{setuid_programs: '{asks}'}}\n"
    text = f"belljar: 1\nrisk: low\ntier: {tier}\nimage: i:1\n{rights}"
    (tmp_path / "policy.yaml").write_text(text)
    found = RealCells(tmp_path).image_differences(load_policy(str(tmp_path / "policy.yaml")))
    always = [("HEALTHCHECK", DifferenceKind.CHANGED), ("STOPSIGNAL", DifferenceKind.DROPPED)]
    expected = [*always, *(("set-user-ID", kind) for kind in kinds)]
    assert [(fact.key, fact.kind) for fact in found] == expected
    assert {fact.where for fact in found} == {"image i:1"}


def outlooks_of(previews: list[Preview], home: Path) -> list[Outlook]:
    """On a host that can run cells, with the images of `home`."""
    return outlooks(previews, home, facts=capable_host, image_of=lambda _name: None)


def check(directory: Path, text: str, *, home: Path) -> Outlook:
    (directory / "compose.yaml").write_text(text)
    (found,) = outlooks_of(check_compose(str(directory / "compose.yaml"), Operator()), home)
    return found


@pytest.mark.promise("1.5")
def test_each_outcome_has_its_exit_code(tmp_path: Path) -> None:
    """0 as written or with differences, 3 what this host lacks, 4 refused; the author's first."""
    put_image(home := tmp_path / "home", "here")
    runs = check(tmp_path, "services: {a: {image: here}}", home=home)
    differs = check(tmp_path, "services: {a: {image: here, tty: true}}", home=home)
    missing = check(tmp_path, "services: {a: {image: gone}}", home=home)
    refused = check(tmp_path, "services: {a: {image: gone, gpus: all}}", home=home)
    found = (runs, differs, missing, refused)
    assert [each.outcome for each in found] == ["runs", "differs", "missing", "refused"]
    assert [each.exit_code for each in found] == [0, 0, 3, 4]
    assert [fact.kind for fact in refused.first.differences] == [DifferenceKind.REFUSED]
    assert as_json("all", "compose", found)["exit_code"] == 4
    assert as_json("all", "compose", [])["exit_code"] == 0


@pytest.mark.promise("1.5")
def test_a_host_that_cannot_is_told_with_the_images(tmp_path: Path) -> None:
    """Both at once: each is fixed apart."""
    (tmp_path / "critical.yaml").write_text(
        "belljar: 1\nrisk: low\nimage: gone\nresources: {memory: 256GiB}\n"
    )
    previews = check_policy(str(tmp_path / "critical.yaml"), Operator())
    (found,) = outlooks_of(previews, tmp_path / "home")
    assert isinstance(found.first.error, HostError)
    assert [each.image for each in found.missing] == ["gone"]
    assert found.exit_code == 3


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


@pytest.mark.promise("1.8")
def test_an_image_of_the_same_files_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built of these files, with network or not, is used without buildah."""
    home, text = tmp_path / "home", spec(tmp_path)
    put_image(home, "base", b"base")
    root = tmp_path / "task"
    about: dict[str, Any] = {"context": root, "dockerfile": root / "Dockerfile"}
    recipe = read_recipe(Store(home), BuildRequest(name="made", has_network=True, **about))
    put_image(home, "made", b"made", built=recipe.built)
    build_missing([text], {"made"}, home, report=print)
    (root / "more").touch()
    monkeypatch.setattr("shutil.which", lambda *_args, **_more: None)
    with pytest.raises(HostError) as caught:
        build_missing([text], {"made"}, home, report=print)
    assert "belljar setup" in caught.value.hint


def test_samples_that_begin_together_share_one_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `inspect eval` each sample asks for its image, at once."""
    home, text, built = tmp_path / "home", spec(tmp_path), list[str]()
    put_image(home, "base", b"base")

    def build(home: Path, request: BuildRequest, **_more: object) -> None:
        recipe = read_recipe(Store(home), request)
        time.sleep(0.2)
        put_image(home, request.name, b"made", built=recipe.built)
        built.append(request.name)

    monkeypatch.setattr("belljar.image.missing.build_dockerfile", build)
    with ThreadPoolExecutor() as pool:
        ask = partial(build_missing, [text], {"made"}, home, report=print)
        for asked in [pool.submit(ask) for _ in range(4)]:
            asked.result()
    assert built == ["made"]


@pytest.mark.promise("1.8")
def test_what_is_never_built(tmp_path: Path) -> None:
    """No image that was imported, that no cell runs or that another sample needs."""
    home = tmp_path / "home"
    put_image(home, "made", b"made")
    build_missing([spec(tmp_path, image="other")], {"made"}, home, report=print)
    texts = [spec(tmp_path), spec(tmp_path, arg="1")]
    with pytest.raises(PolicyError):
        build_missing(texts, {"made"}, home, report=print)
    build_missing([texts[0], texts[0]], {"made"}, home, report=print)
    put_image(home, "base", b"base")
    (tmp_path / "task" / "out").symlink_to("/etc")
    with pytest.raises(BelljarError, match="leads out"):
        build_missing([spec(tmp_path, image="other", context="out")], {"other"}, home, report=print)
    for name in ("default", "inspect"):
        with pytest.raises(PolicyError, match="Belljar's own"):
            build_missing([spec(tmp_path, image=name)], {name}, home, report=print)
