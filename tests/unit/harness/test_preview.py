"""What each sample would run in, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample

from belljar.differences import Difference, DifferenceKind
from belljar.harness import config as configs
from belljar.harness.adapt import adapt_task
from belljar.harness.operator import Operator
from belljar.harness.preview import (
    Preview,
    grouped,
    preview,
    with_images,
)
from belljar.harness.source import differences_of_images
from belljar.host.settings import Settings
from belljar.image.config import ImageConfig
from belljar.image.store import SetuidPrograms, Store
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy

OPERATOR = Operator(settings=Settings(), run_policy="low")


def previews(directory: Path, *samples: Sample, sandbox: str = "docker") -> list[Preview]:
    """What `preview` says of a task of these samples."""
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
    assert "SAMPLE_METADATA_KIND" in str(found[1].error)
    assert {fact.key for fact in found[2].differences} == {"gpus", "pid"}
    assert {fact.kind for fact in found[2].differences} == {DifferenceKind.REFUSED}
    images = [each.policy.policy.image for each in found if each.policy is not None]
    assert images == ["i-a", "i-b"]
    assert [fact.key for fact in found[3].differences] == ["tty"]
    assert [group.samples for group in grouped(found)] == [("1",), ("2",), ("3",), ("4",)]


@pytest.mark.promise("1.5")
def test_a_reading_serves_every_sample_that_means_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read once, and judged once for the metadata that it asks for."""
    (tmp_path / "compose.yaml").write_text(
        "services: {default: {image: 'i-${SAMPLE_METADATA_KIND}'}}"
    )
    made: list[configs.BelljarConfig] = []
    within = configs.within

    def counted(ours: configs.BelljarConfig, operator: Operator) -> object:
        made.append(ours)
        return within(ours, operator)

    monkeypatch.setattr(configs, "within", counted)
    samples = [
        Sample(id=n, input="x", metadata={"kind": "ab"[n % 2], "n": n}) for n in range(1, 501)
    ]
    found = previews(tmp_path, *samples)
    assert len(found) == 500
    assert len(made) == 2
    assert [len(group.samples) for group in grouped(found)] == [250, 250]


def test_what_becomes_of_an_images_configuration_is_among_it(tmp_path: Path) -> None:
    """Of the images that are there, by their names."""
    (home := tmp_path / "home").mkdir()
    (home / "file").write_bytes(b"x")
    config = ImageConfig(user="7", stop_signal="SIGINT")
    Store(home).add(home / "file", config, name="here", source="test", created="now")
    (tmp_path / "compose.yaml").write_text("services: {default: {image: here}, web: {image: gone}}")
    found = previews(tmp_path, Sample(id=1, input="x"), Sample(id=2, input="x"))
    looked: list[object] = []

    def look(policy: LoadedPolicy) -> tuple[Difference, ...]:
        looked.append(policy)
        return differences_of_images(policy, home)

    one, other = with_images(found, look)
    assert len(looked) == 1
    assert one.differences == other.differences
    assert [(fact.where, fact.key) for fact in one.differences] == [("image here", "STOPSIGNAL")]


@pytest.mark.promise("2.4")
@pytest.mark.parametrize(
    ("tier", "asks", "programs", "kinds"),
    [
        ("microvm", "auto", "kept", [DifferenceKind.GRANTED]),
        ("container", "auto", "kept", [DifferenceKind.DROPPED]),
        ("gvisor", "auto", "kept", [DifferenceKind.DROPPED]),
        ("microvm", "auto", "removed", [DifferenceKind.DROPPED]),
        ("microvm", "auto", "", []),
        ("container", "off", "kept", []),
    ],
)
def test_what_becomes_of_set_user_id_programs(
    tier: str, asks: str, programs: SetuidPrograms, kinds: list[DifferenceKind], tmp_path: Path
) -> None:
    """Of each image that has some, where the task asks for their rights."""
    (tmp_path / "made").write_bytes(b"hsqs")
    about = {"name": "i:1", "source": "", "created": ""}
    Store(tmp_path).add(tmp_path / "made", ImageConfig(), setuid_programs=programs, **about)
    rights = f"rights: {{setuid_programs: '{asks}'}}\n"
    text = f"belljar: 1\nrisk: low\ntier: {tier}\nimage: i:1\n{rights}"
    (tmp_path / "policy.yaml").write_text(text)
    found = differences_of_images(load_policy(str(tmp_path / "policy.yaml")), tmp_path)
    assert [fact.kind for fact in found if fact.key == "set-user-ID"] == kinds
