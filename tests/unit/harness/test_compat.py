"""Which sandboxes a cell can stand in for, and which a sample gets under `inspect eval`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.util import SandboxEnvironmentSpec as Spec

from belljar.errors import PolicyError
from belljar.harness.config import BelljarConfig, adapt_task, of_active_sample, of_compose
from belljar.policy.network import Network
from belljar.policy.sections import Rights
from belljar.policy.stand_ins import ServiceProgram

AS_IN_DOCKER = Rights(setuid_programs="auto")
NOTHING = BelljarConfig()


def adapted(tmp_path: Path, sandbox: Any) -> Task:  # noqa: ANN401 - Inspect's union
    """A task as `belljar run` changes it. Raises what refuses its sample."""
    task = Task(dataset=[Sample(input="x", id=1)], sandbox=sandbox)
    (sample,) = adapt_task(task, directory=tmp_path)
    if sample.error is not None:
        raise sample.error
    return task


def test_the_tasks_own_policy_is_found_beside_it(tmp_path: Path) -> None:
    """By name, or implicitly; as an absolute path, for Inspect changes directory."""

    def policy_of(sandbox: Any) -> str:  # noqa: ANN401 - Inspect's union
        found = adapted(tmp_path, sandbox).sandbox
        assert found is not None
        assert found == Spec("belljar", BelljarConfig(policy=found.config.policy))
        return str(found.config.policy)

    assert policy_of(None) == ""
    for name in ("strict.yaml", "belljar.yaml"):
        (tmp_path / name).write_text("belljar: 1\nrisk: high\n")
    assert policy_of(("belljar", "strict.yaml")) == str(tmp_path / "strict.yaml")
    assert policy_of(("belljar", "critical")) == "critical"
    assert policy_of("belljar") == str(tmp_path / "belljar.yaml")


COMPOSE = "services:\n  default:\n    image: ctf:2\n"


@pytest.mark.parametrize(
    "sandbox", ["belljar", ("belljar", "compose.yaml"), "docker", ("docker", "compose.yaml")]
)
def test_a_compose_file_means_the_same_for_either_name(sandbox: Any, tmp_path: Path) -> None:  # noqa: ANN401 - Inspect's union
    """Found beside the task, or named; a policy beside it is what it is put on."""
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    expected = BelljarConfig(image="ctf:2", program=ServiceProgram(), rights=AS_IN_DOCKER)
    assert adapted(tmp_path, sandbox).sandbox == Spec("belljar", expected)
    (tmp_path / "belljar.yaml").write_text("belljar: 1\nrisk: high\n")
    beside = BelljarConfig(policy=str(tmp_path / "belljar.yaml"))
    if sandbox == "belljar":  # Inspect finds the policy first
        assert adapted(tmp_path, sandbox).sandbox == Spec("belljar", beside)
    else:
        together = expected.model_copy(update={"policy": beside.policy})
        assert adapted(tmp_path, sandbox).sandbox == Spec("belljar", together)


@pytest.mark.promise("2.4")
def test_set_user_id_programs_are_as_in_docker() -> None:
    """Every service's work where the tier lets them, unless the service refuses new privileges."""
    two = {"services": {"default": {"image": "x"}, "web": {"image": "y"}}}
    plain = of_compose(two, NOTHING, where="")
    assert plain.rights == AS_IN_DOCKER
    assert isinstance(plain.network, Network)
    assert getattr(plain.network.stand_ins["web"], "rights", None) == AS_IN_DOCKER
    refusing = {"services": {"x": {"image": "x", "security_opt": ["no-new-privileges:true"]}}}
    assert of_compose(refusing, NOTHING, where="").rights == Rights(setuid_programs="off")


def made(tmp_path: Path, written: Spec, config: str | None = None) -> object:
    """What a sample's own sandbox comes to, when Inspect hands over `config`."""
    active = SimpleNamespace(sample=SimpleNamespace(id="s", sandbox=written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inspect_ai.log._samples.sample_active", lambda: active)
        return of_active_sample(config, [tmp_path, tmp_path])


@pytest.mark.promise("1.6")
def test_what_inspect_drops_of_a_sample_is_used(tmp_path: Path) -> None:
    """A compose file by a name that Inspect does not know, as agent_bench_os has them."""
    (tmp_path / "compose_7.yaml").write_text(COMPOSE)
    found = made(tmp_path, Spec("docker", "compose_7.yaml"))
    assert found == BelljarConfig(image="ctf:2", program=ServiceProgram(), rights=AS_IN_DOCKER)
    assert made(tmp_path, Spec("docker", "compose_7.yaml"), "belljar.yaml") == found


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
