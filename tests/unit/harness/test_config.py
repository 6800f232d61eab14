"""Which policy a cell gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.util import ComposeConfig, SandboxEnvironmentSpec

from belljar.compose.interpolate import expand_metadata
from belljar.differences import DifferenceKind
from belljar.errors import PolicyError
from belljar.harness.config import BelljarConfig, as_config, of_log
from belljar.harness.operator import Operator, sample_policy, within
from belljar.policy.guarding import OWN_CELL
from belljar.policy.loaded import PresetPolicy
from belljar.policy.model import Policy
from belljar.policy.network import Network
from belljar.policy.stand_ins import ServiceProgram

POLICY = 'belljar: 1\nrisk: high\nenv:\n  FLAG: "${SAMPLE_METADATA_FLAG}"\n  PLAIN: "$HOME"\n'


def test_what_inspect_hands_over(tmp_path: Path) -> None:
    """`--sandbox belljar:high` arrives as a path that does not exist."""
    assert as_config(str(tmp_path / "high")) == BelljarConfig(policy="high")
    (tmp_path / "high").write_text(POLICY)
    assert as_config(str(tmp_path / "high")) == BelljarConfig(policy=str(tmp_path / "high"))
    service = {"services": {"default": {"image": "ctf"}}}
    assert as_config(ComposeConfig.model_validate(service)).image == "ctf"
    with pytest.raises(PolicyError, match="not Belljar's"):
        as_config(SandboxEnvironmentSpec("docker", None))


def web(**words: Any) -> Network:  # noqa: ANN401 - a policy's words
    cell = {"kind": "cell", "names": ["web"], "ports": ["all"], **words}
    return Network.model_validate({"stand_ins": {"web": cell}}, strict=False)


NETWORK = (
    "network:\n  record: {packets: 2MiB}\n  stand_ins: {page: {kind: http, names: [page.example],"
    " routes: [{path: /, body: x}]}}\n"
)
SERVICES = (
    "services:\n  agent: {image: default, x-default: true, command: serve, environment: {FLAG:"
    " '${SAMPLE_METADATA_FLAG:-none}'}}\n  web: {image: 'default', environment: {FLAG:"
    " '$SAMPLE_METADATA_FLAG'}}\n"
)


@pytest.fixture
def compose_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks" / "compose.yaml"
    path.parent.mkdir()
    path.write_text(SERVICES)
    return path


def test_a_compose_file_for_a_sample(compose_file: Path) -> None:
    """Its metadata reaches both cells; what runs and what it is called are known."""
    flag = {"FLAG": "f$SAMPLE_METADATA_X"}
    sample = sample_policy(str(compose_file), {"flag": flag["FLAG"]}, Operator())
    policy = sample.policy.policy
    assert policy.network is not None
    assert (policy.env, getattr(policy.network.stand_ins["web"], "env", {})) == (flag, flag)
    assert (sample.asked.service, sample.asked.program) == (
        "agent",
        ServiceProgram(arguments=("serve",)),
    )
    with pytest.raises(PolicyError, match="SAMPLE_METADATA_FLAG"):
        sample_policy(str(compose_file), {}, Operator())


def made(config: BelljarConfig, run_policy: str = "") -> Policy | PresetPolicy:
    return sample_policy(config, {}, Operator(run_policy=run_policy)).policy.policy


def differing(config: BelljarConfig, run_policy: str = "") -> list[tuple[DifferenceKind, str]]:
    """Kind and key of each difference of a sample of this configuration."""
    found = sample_policy(config, {}, Operator(run_policy=run_policy)).differences
    return [(item.kind, item.key) for item in found]


@pytest.mark.promise("1.7")
@pytest.mark.parametrize("run_policy", ["", "low"])
def test_files_of_a_task_stay_under_any_walls(tmp_path: Path, run_policy: str) -> None:
    """They are content, of each service that is there; also after the floor and for a sample."""
    (tmp_path / "page").write_text("p")
    mount = "image: i, volumes: ['./page:/${SAMPLE_METADATA_AT}:ro']"
    (tmp_path / "compose.yaml").write_text(f"services: {{default: {{{mount}}}, web: {{{mount}}}}}")
    config = as_config(str(tmp_path / "compose.yaml"))
    data = sample_policy(config, {"at": "there"}, Operator(run_policy=run_policy)).policy.data
    assert data is not None
    for cell in ("default", "web"):
        assert [(file.source, file.target) for file in data.of(cell).own.files] == [
            ("page", "/there")
        ]


@pytest.mark.promise("1.5")
def test_what_takes_the_place_of_a_network_is_reported(tmp_path: Path) -> None:
    """Of whatever policy has one, the operator's too."""
    (tmp_path / "net.yaml").write_text("belljar: 1\nrisk: low\n" + NETWORK)
    policy, gone = str(tmp_path / "net.yaml"), [(DifferenceKind.DROPPED, "network")]
    network = made(BelljarConfig(policy=policy, network=web())).network
    assert network is not None
    assert (list(network.stand_ins), network.record.packets) == (["web"], 2 << 20)
    assert made(BelljarConfig(policy=policy, network="none")).network is None
    assert made(BelljarConfig(network="none"), policy).network is None
    for asked in (web(), "none"):
        own = BelljarConfig.model_validate({"network": asked})
        assert differing(own.model_copy(update={"policy": policy})) == gone
        assert differing(own, policy) == gone
        assert differing(own.model_copy(update={"policy": "high"})) == []
    assert differing(BelljarConfig(policy=policy)) == []


_WORDS = st.sampled_from(
    [
        *("services:\n", "  a: ", "  b: ", "{", "}", "[", "]", ", ", "image: i", "command: ", "'x y'", "$SAMPLE_METADATA_A", "${B:-c}"),
        *("depends_on: ", "healthcheck: ", "volumes: ", "networks: ", "environment: ", "deploy: ", "x-a: &a ", "*a", "<<: *a", "\n", "1", '"'),
    ]
)  # fmt: skip


@given(st.lists(_WORDS, max_size=30).map("".join) | st.binary(max_size=40))
def test_any_compose_file_is_a_configuration_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    """With a `PolicyError` that names it, never with an error of another kind."""
    path = tmp_path_factory.getbasetemp() / "any-compose.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        assert isinstance(as_config(str(path)), BelljarConfig)
    except PolicyError as error:
        assert error.where.startswith(str(path))  # noqa: PT017 - either is right


def test_metadata_does_not_grow_beyond_a_bound() -> None:
    """A value that is asked for often, or by many, is refused before it is put together."""
    often = dict.fromkeys("ab", "${SAMPLE_METADATA_A}" * 20)
    expand_metadata(often, {"SAMPLE_METADATA_A": "x" * 26_000}, where="env")
    with pytest.raises(PolicyError, match="more than 1,048,576 characters"):
        expand_metadata(often, {"SAMPLE_METADATA_A": "x" * 27_000}, where="env")


def test_a_log_of_an_earlier_version_is_read() -> None:
    """It is kept as it is, and no cell is made of it."""
    for name in ("network", "program", "data", "builds", "rights", "compose"):
        old = {"policy": "low", name: "{}"}
        spec = SandboxEnvironmentSpec.model_validate({"type": "belljar", "config": dict(old)})
        assert spec.config.model_dump() == old
        with pytest.raises(PolicyError, match="another version") as caught:
            as_config(spec.config)
        assert "belljar run TASK" in caught.value.hint


def forged(tmp_path: Path) -> dict[str, BelljarConfig]:
    """Configurations, as a log may hold them, that name a directory of this host."""
    (tmp_path / "secret").write_text("KEY=s3cret\n")
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "site").mkdir()
    root = str(tmp_path.resolve())
    cells = {OWN_CELL: {"files": [{"target": "/f", "source": "secret"}]}}
    build = {"image": "x", "root": root, "context": ".", "dockerfile": "Dockerfile", "args": {}}
    services = {"default": {"image": "a-${SAMPLE_METADATA_A-}", "env_file": "secret"}}
    git = {"kind": "git", "names": ["web"], "repositories": "site"}
    cell = {"kind": "cell", "names": ["web"], "ports": ["all"]}
    copied = {**cell, "files": [{"source": "secret", "target": "/f"}]}
    logged: dict[str, dict[str, Any]] = {
        "data": {"data": {"root": root, "cells": cells}},
        "data without a root": {"data": {"cells": cells}},
        "builds": {"builds": [build]},
        "compose": {"compose": {"services": services, "x-belljar-directory": root}},
        "stand-in": {"network": {"stand_ins": {"web": git}}},
        "files": {"network": {"stand_ins": {"web": copied}}},
        "another's cell": {"data": {"cells": {"web": {"hosts": [["x", "10.0.0.1"]]}}}},
    }
    made = {name: of_log(config) for name, config in logged.items()}
    return {name: each for name, each in made.items() if isinstance(each, BelljarConfig)}


@pytest.mark.promise("1.7")
def test_a_configuration_from_a_log_takes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a directory only if this process read a task's file from it; no error shows any."""
    monkeypatch.chdir(tmp_path)
    lab = "network: {stand_ins: {web: {kind: cell, names: [web], ports: [all], command: [x]}}}"
    (tmp_path / "run.yaml").write_text(f"belljar: 1\nrisk: low\n{lab}\n")
    configs = forged(tmp_path)
    assert len(configs) == 7
    for name, config in configs.items():
        for run_policy in ("", "run.yaml"):
            with pytest.raises(PolicyError) as caught:
                sample_policy(config, {"a": "1"}, Operator(run_policy=run_policy))
            assert "the task's sandbox" in caught.value.where, name
            assert "s3cret" not in str(caught.value)
    (tmp_path / "compose.yaml").write_text("services: {default: {image: x}}\n")
    as_config(str(tmp_path / "compose.yaml"))
    for name in ("data", "builds", "compose"):
        again = of_log(json.loads(configs[name].model_dump_json()))
        assert again == configs[name]
        assert sample_policy(again, {"a": "1"}, Operator()).policy is not None


def test_a_task_for_plain_docker_gets_inspects_image(tmp_path: Path) -> None:
    """Unless the operator's policy names another than `default`; each is a difference."""
    for policy, image in (
        ("risk: low\nimage: default", "inspect"),
        ("risk: low\nimage: lab:2", "lab:2"),
    ):
        (tmp_path / "p.yaml").write_text(f"belljar: 1\n{policy}\n")
        operator = Operator(run_policy=str(tmp_path / "p.yaml"))
        found = within(BelljarConfig(is_generic=True), operator)
        made, (fact,) = found.policy, found.differences
        assert made.policy.image == image
        assert (fact.kind, fact.key) == (DifferenceKind.CHANGED, "image")


def test_a_task_whose_sandbox_was_replaced_gets_inspects_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under `inspect eval --sandbox belljar` nobody says what the task itself asked for."""
    monkeypatch.delenv("INSPECT_EVAL_SANDBOX", raising=False)
    monkeypatch.setattr("sys.argv", ["inspect", "eval", "task.py"])
    assert as_config(None) == BelljarConfig()
    for words in (["--sandbox", "belljar"], ["--sandbox=belljar"]):
        monkeypatch.setattr("sys.argv", ["inspect", "eval", "task.py", *words])
        assert as_config(None) == BelljarConfig(is_generic=True)
