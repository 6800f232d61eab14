"""Which sandboxes a cell can stand in for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec

from belljar.errors import PolicyError
from belljar.harness.adapt import adapt_task
from belljar.harness.compat import Honoured, Refused, judge, judge_compose
from belljar.harness.config import BelljarConfig


def service(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML values
    """A compose file with one service."""
    return {"services": {"default": fields}}


def test_a_plain_compose_file_is_honoured() -> None:
    """Image, directory, user and environment are taken over; what a cell fulfils anyway is accepted."""
    compose = service(
        image="ctf:1",
        working_dir="/srv",
        user="agent",
        environment=["A=1", "B"],
        network_mode="none",
        init=True,
        command="tail -f /dev/null",
    )
    judgement = judge_compose(compose)
    assert judgement == Honoured(
        changes={"image": "ctf:1", "workdir": "/srv", "user": "agent", "env": (("A", "1"), ("B", ""))}
    )
    assert judge_compose(service(image="aisiuk/inspect-tool-support", command=["sleep", "infinity"])) == Honoured()


@pytest.mark.parametrize(
    "fields",
    [
        {"build": "."},
        {"volumes": ["/:/host"]},
        {"privileged": True},
        {"network_mode": "host"},
        {"command": "python server.py"},
        {"devices": ["/dev/kvm"]},
        {"environment": {"A": "${HOME}"}},
        {"gpus": "all"},
    ],
)
def test_what_a_cell_does_not_keep_is_refused_by_name(fields: dict[str, Any]) -> None:
    """An evaluation never runs in less, more or other than its author wrote."""
    judgement = judge_compose(service(image="x", **fields))
    assert isinstance(judgement, Refused)
    assert next(iter(fields)) in judgement.reason


def test_several_services_are_a_range() -> None:
    """As a policy's network, in a configuration that Inspect can keep in its log; shared volumes are refused."""
    judgement = judge_compose({"services": {"default": {}, "shop": {"image": "shop", "mem_limit": "1g"}}})
    assert isinstance(judgement, Honoured)
    config = BelljarConfig().model_copy(update=dict(judgement.changes))
    assert BelljarConfig.model_validate(config.model_dump()) == config
    assert list(json.loads(config.network)["stand_ins"]) == ["shop"]
    assert hash(config)
    assert isinstance(judge_compose({"services": {"a": {}}, "volumes": {"v": {}}}), Refused)


@given(
    st.dictionaries(
        st.text(max_size=12),
        st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.lists(st.text(max_size=5)),
        max_size=6,
    )
)
def test_any_service_is_judged(fields: dict[str, Any]) -> None:
    """No compose file makes the judge fail."""
    assert isinstance(
        judge_compose(service(**fields)),
        Honoured | Refused,
    )


def test_other_sandboxes() -> None:
    """Docker or another without a configuration can be replaced, with one it can't; the host itself gladly."""
    assert isinstance(judge("docker", has_config=False, compose=None, dockerfile=False), Honoured)
    assert isinstance(judge("local", has_config=False, compose=None, dockerfile=False), Honoured)
    assert isinstance(judge("k8s", has_config=True, compose=None, dockerfile=False), Refused)
    assert isinstance(judge("docker", has_config=True, compose=None, dockerfile=True), Refused)


def adapted(tmp_path: Path, sandbox: Any, sample_sandbox: Any = None, *, forced: bool = False) -> Task:  # noqa: ANN401 - Inspect's union
    """A task as `belljar run` changes it."""
    task = Task(dataset=[Sample(input="x", id=1, sandbox=sample_sandbox)], sandbox=sandbox)
    adapt_task(task, directory=tmp_path, forced=forced)
    return task


def test_a_task_without_a_sandbox_gets_a_cell(tmp_path: Path) -> None:
    """Every sample of a run has one, so that every sample has evidence."""
    assert adapted(tmp_path, None).sandbox == SandboxEnvironmentSpec("belljar", BelljarConfig())


def test_the_tasks_own_policy_is_found_beside_it(tmp_path: Path) -> None:
    """By name, or implicitly; as an absolute path, for Inspect changes directory."""
    (tmp_path / "strict.yaml").write_text("belljar: 1\nrisk: high\n")
    assert adapted(tmp_path, ("belljar", "strict.yaml")).sandbox == SandboxEnvironmentSpec(
        "belljar", BelljarConfig(policy=str(tmp_path / "strict.yaml"))
    )
    assert adapted(tmp_path, ("belljar", "critical")).sandbox == SandboxEnvironmentSpec(
        "belljar", BelljarConfig(policy="critical")
    )
    (tmp_path / "belljar.yaml").write_text("belljar: 1\nrisk: high\n")
    assert adapted(tmp_path, "belljar").sandbox == SandboxEnvironmentSpec(
        "belljar", BelljarConfig(policy=str(tmp_path / "belljar.yaml"))
    )


def test_compose_and_dockerfiles_beside_a_docker_task_count(tmp_path: Path) -> None:
    """Inspect would find them, so they are what the author meant."""
    (tmp_path / "compose.yaml").write_text("services:\n  default:\n    image: ctf:2\n    init: true\n")
    task = adapted(tmp_path, "docker")
    assert task.sandbox == SandboxEnvironmentSpec("belljar", BelljarConfig(image="ctf:2"))
    (tmp_path / "compose.yaml").unlink()
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(PolicyError, match="Dockerfile"):
        adapted(tmp_path, "docker")


def test_the_operators_policy_settles_everything(tmp_path: Path) -> None:
    """`--policy` is the operator's word on what the cell is."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    task = adapted(tmp_path, "docker", ("belljar", "sample.yaml"), forced=True)
    assert task.sandbox == SandboxEnvironmentSpec("belljar", BelljarConfig())
    assert task.dataset[0].sandbox == SandboxEnvironmentSpec("belljar", BelljarConfig())


def test_samples_are_judged_too(tmp_path: Path) -> None:
    """A sample's own sandbox is no way around."""
    config = ComposeConfig.model_validate(service(image="x", volumes=["/:/host"]))
    with pytest.raises(PolicyError, match="volumes") as caught:
        adapted(tmp_path, None, SandboxEnvironmentSpec("docker", config))
    assert "sample 1" in caught.value.where
