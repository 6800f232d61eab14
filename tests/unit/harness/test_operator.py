"""What a task's own files may ask for, against the operator's word: real Inspect, fake cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.cell import RecordedCells
from tests.unit.harness.runs import MODEL, ONE, evaluated

from belljar.differences import DifferenceKind
from belljar.errors import PolicyError
from belljar.harness.config import BelljarConfig
from belljar.harness.operator import Operator, sample_policy
from belljar.policy.loaded import LoadedPolicy

TASK = (
    ONE
    + """
def of(sandbox, of_sample=None):
    return Task(dataset=[Sample(id="s", input="x", sandbox=of_sample)], solver=work(), sandbox=sandbox)

@task
def beside() -> Task:
    return of("belljar")

@task
def bare() -> Task:
    return of("docker")

@task
def coded() -> Task:
    return of(("belljar", "belljar.yaml"))

@task
def of_a_sample() -> Task:
    return of(("belljar", "high"), ("belljar", "belljar.yaml"))

@task
def of_compose() -> Task:
    return of(("docker", "one-compose.yaml"))
"""
)
UPSTREAM = "{host: a.example, ports: [443], methods: [GET], budget: 1MiB, reason: because it is so}"
REAL = f"belljar: 1\nrisk: low\nresources: {{memory: 1GiB}}\nnetwork: {{upstreams: [{UPSTREAM}]}}\n"


@pytest.fixture
def task_file(tmp_path: Path, start: dict[str, str]) -> Path:
    """A task with a policy beside it that reaches something real."""
    (directory := tmp_path / "task").mkdir()
    (directory / "belljar.yaml").write_text(REAL)
    (directory / "one-compose.yaml").write_text(
        "services: {default: {image: other, mem_limit: 256m}}"
    )
    (directory / "task.py").write_text(TASK)
    return directory / "task.py"


def opened_policy(
    task_file: Path, name: str, *, allow: bool = False, policy: str = ""
) -> LoadedPolicy:
    """Run a task; the policy that its sample's cell had."""
    cells = RecordedCells()
    words = (f"{task_file}@{name}", *MODEL)
    try:
        evaluated(task_file.parent, *words, cells=cells, policy=policy, allow_upstreams=allow)
    except PolicyError:
        assert not cells.opened
        assert not cells.prepared
        raise
    (cell,) = cells.opened
    found = cell.policy
    assert isinstance(found, LoadedPolicy)
    return found


def real_hosts(loaded: LoadedPolicy) -> list[str]:
    network = loaded.policy.network
    return [] if network is None else [item.host for item in network.upstreams]


@pytest.mark.promise("2.7")
@pytest.mark.parametrize("name", ["beside", "of_a_sample"])
def test_what_came_with_a_task_reaches_nothing_real_by_itself(task_file: Path, name: str) -> None:
    """Wherever the task names its policy."""
    with pytest.raises(
        PolicyError, match=r"a\.example on 443.*1 MiB for each sample.*100 MiB for all"
    ) as refused:
        opened_policy(task_file, name)
    assert "--allow-upstreams" in refused.value.hint


@pytest.mark.promise("2.7")
def test_what_the_operator_allows_is_announced_first(
    task_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host, port and budgets stand on standard error."""
    for name, allow, policy in (
        ("of_a_sample", True, ""),
        ("bare", False, str(task_file.parent / "belljar.yaml")),
    ):
        assert real_hosts(opened_policy(task_file, name, allow=allow, policy=policy)) == [
            "a.example"
        ]
        said = capsys.readouterr().err
        assert "REAL network: a.example on 443" in said
        assert "1 MiB for each sample" in said


@pytest.mark.promise("2.7")
def test_leave_is_given_by_the_settings(
    task_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As plain `inspect eval` has it; no policy in the environment of later is the operator's."""
    config = BelljarConfig(policy=str(task_file.parent / "belljar.yaml"))
    with pytest.raises(PolicyError, match="allow-upstreams"):
        sample_policy(config, {}, Operator())
    monkeypatch.setenv("BELLJAR_POLICY", config.policy)
    with pytest.raises(PolicyError, match="allow-upstreams"):
        sample_policy(None, {}, Operator())
    (tmp_path / "settings.yaml").write_text("upstreams: allow\n")
    assert real_hosts(sample_policy(config, {}, Operator()).policy) == ["a.example"]


@pytest.mark.promise("2.7")
def test_what_the_host_forbids_nobody_allows(
    task_file: Path, tmp_path: Path, start: dict[str, str]
) -> None:
    """Neither the flag nor the operator's own policy."""
    (tmp_path / "settings.yaml").write_text("upstreams: forbid\n")
    for allow, policy in ((True, ""), (False, str(task_file.parent / "belljar.yaml"))):
        with pytest.raises(PolicyError, match="forbids"):
            opened_policy(task_file, "beside", allow=allow, policy=policy)


@pytest.mark.promise("1.4")
@pytest.mark.parametrize("name", ["bare", "of_a_sample", "of_compose"])
def test_the_operators_variable_is_a_floor(
    task_file: Path, start: dict[str, str], name: str
) -> None:
    """A policy beside a task, in its code, of a sample or under a compose file."""
    start["BELLJAR_POLICY"] = "medium"
    made = opened_policy(task_file, name, allow=True)
    assert str(made.policy.risk) == "medium"
    assert made.policy.network is None
    assert made.policy.resources.memory_bytes <= 512 << 20
    assert made.policy.image == {"of_compose": "other", "bare": "inspect"}.get(name, "default")
    for word in ("belljar.yaml", "lwo"):
        start["BELLJAR_POLICY"] = word
        with pytest.raises(PolicyError, match="absolute path"):
            opened_policy(task_file, name, allow=True)


@pytest.mark.promise("1.7")
def test_a_policy_beside_a_task_that_is_a_link_out_is_refused(task_file: Path) -> None:
    """A link to a secret, a loop: refused with the path, and nothing that it leads to is shown."""
    policy = task_file.parent / "belljar.yaml"
    (task_file.parent.parent / "secret").write_text("hunter2: hunter2\n")
    for target in ("../secret", "belljar.yaml"):
        policy.unlink()
        policy.symlink_to(target)
        for name in ("beside", "coded"):
            with pytest.raises(PolicyError) as refused:
                opened_policy(task_file, name)
            assert refused.value.where == str(policy)
            assert "hunter2" not in str(refused.value)


def test_a_policy_behind_a_directory_that_is_a_link_out_is_refused(
    task_file: Path, tmp_path: Path
) -> None:
    """Named by a task's code below its own directory, it is there; likewise a compose file."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/belljar.yaml").write_text("belljar: 1\nrisk: low\n")
    (tmp_path / "elsewhere/one-compose.yaml").write_text("services: {default: {image: hunter2}}")
    (task_file.parent / "way").symlink_to("../elsewhere")
    code = TASK.replace('"belljar.yaml"', '"way/belljar.yaml"').replace(
        '"one-compose.yaml"', '"way/one-compose.yaml"'
    )
    task_file.write_text(code)
    for name in ("coded", "of_compose"):
        with pytest.raises(PolicyError, match="link on the way"):
            opened_policy(task_file, name)
    task_file.write_text(code.replace("way/", f"{tmp_path}/elsewhere/"))
    assert opened_policy(task_file, "of_compose", allow=True).policy.image == "hunter2"


def test_the_least_risk_of_the_host_holds_for_a_task(task_file: Path, tmp_path: Path) -> None:
    """It is raised; what can't be at that risk is refused, also of `--policy`."""
    (tmp_path / "settings.yaml").write_text("least_risk: high\n")
    for allow, policy in ((True, ""), (False, str(task_file.parent / "belljar.yaml"))):
        with pytest.raises(PolicyError, match="reaches nothing real"):
            opened_policy(task_file, "beside", allow=allow, policy=policy)
    assert str(opened_policy(task_file, "bare", policy="low").policy.risk) == "high"
    (raised,) = sample_policy(None, {}, Operator(run_policy="low")).differences
    assert (raised.kind, raised.key) == (DifferenceKind.CHANGED, "risk")
    assert str(tmp_path / "settings.yaml") in raised.detail
    assert sample_policy(None, {}, Operator(run_policy="critical")).differences == ()
