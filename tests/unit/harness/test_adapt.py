"""Which sandbox a sample gets under plain `inspect eval --sandbox belljar`, where Inspect has
merged task, sample and command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai.util import SandboxEnvironmentSpec as Spec

from belljar.errors import PolicyError
from belljar.harness.adapt import brought
from belljar.harness.config import BelljarConfig
from belljar.policy.sections import Rights
from belljar.policy.stand_ins import ServiceProgram

COMPOSE = "services:\n  default:\n    image: ctf:2\n"


def made(tmp_path: Path, written: Spec, config: str | None = None) -> object:
    """What a sample's own sandbox comes to, when Inspect hands over `config`."""
    return brought(written, config, directories=[tmp_path, tmp_path], where="sample s")


@pytest.mark.promise("1.6")
def test_what_inspect_drops_of_a_sample_is_used(tmp_path: Path) -> None:
    """A compose file by a name that Inspect does not know, as agent_bench_os has them."""
    (tmp_path / "compose_7.yaml").write_text(COMPOSE)
    found = made(tmp_path, Spec("docker", "compose_7.yaml"))
    assert found == BelljarConfig(
        image="ctf:2", program=ServiceProgram(), rights=Rights(setuid_programs="auto")
    )
    assert made(tmp_path, Spec("docker", "compose_7.yaml"), "belljar.yaml") == found


@pytest.mark.promise("1.6")
def test_a_sample_that_names_only_another_provider_gets_its_image(tmp_path: Path) -> None:
    """Nothing is beside its task, or Inspect would have handed that over."""
    assert made(tmp_path, Spec("docker")) == BelljarConfig(is_generic=True)


def test_a_relative_name_means_one_file(tmp_path: Path) -> None:
    """In the directories of two tasks it is refused: nobody says which."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "compose_7.yaml").write_text(COMPOSE)
    with pytest.raises(PolicyError, match="several tasks"):
        brought(
            Spec("docker", "compose_7.yaml"), None, directories=tmp_path.iterdir(), where="sample s"
        )


@pytest.mark.promise("1.6")
def test_what_inspect_hands_over_is_left_alone(tmp_path: Path) -> None:
    """The sample's own, ours, or the task's for a sample that names only a type."""
    assert made(tmp_path, Spec("docker", "compose.yaml"), "compose.yaml") == "compose.yaml"
    assert made(tmp_path, Spec("belljar", "policy.yaml"), "policy.yaml") == "policy.yaml"
    assert made(tmp_path, Spec("belljar")) is None
    assert made(tmp_path, Spec("docker"), "compose.yaml") == "compose.yaml"


@pytest.mark.promise("1.6")
def test_what_no_cell_can_stand_in_for_is_refused(tmp_path: Path) -> None:
    """Never the default image instead."""
    (tmp_path / "values.yaml").write_text("replicas: 2\n")
    for written in (Spec("k8s", "values.yaml"), Spec("docker", "not-there.yaml")):
        with pytest.raises(PolicyError):
            made(tmp_path, written)
