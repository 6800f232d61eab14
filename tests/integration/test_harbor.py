"""`harbor run --env belljar.harbor:BelljarEnvironment`: with Harbor itself where a Python 3.12 has it
(this one, or that of BELLJAR_HARBOR_PYTHON), and with a base of its signatures everywhere."""

# ruff: noqa: ANN401 - Harbor's interface
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.harbor_base import harbor_modules

import belljar
from belljar.errors import PolicyError
from belljar.harness.evidence import stored_evidence
from belljar.ledger import local_fingerprint, read_events, verify
from belljar.report.verdict import judge

PYTHON = os.environ.get("BELLJAR_HARBOR_PYTHON", "")
pytestmark = [pytest.mark.slow, pytest.mark.root]
REAL = pytest.mark.skipif(
    not PYTHON and find_spec("harbor") is None,
    reason="Harbor is not installed, which needs Python 3.12: set BELLJAR_HARBOR_PYTHON",
)

SOLUTION = """#!/bin/bash
set -e
test "$(cat /etc/built)" = built
test ! -e /sys/class/net/eth0
mkdir -p /app/work/deep
echo "$WORD" > /app/work/answer.txt
ln -s /etc/passwd /app/work/deep/out
"""
TESTS = """#!/bin/bash
if [ "$(cat /app/work/answer.txt)" = sealed ] && [ "$(id -un)" = root ]; then echo 1; else echo 0; fi \
    > /logs/verifier/reward.txt
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task with a Dockerfile, a reference solution and tests."""
    files = {
        "task.toml": '[environment]\nmemory_mb = 256\ncpus = 1\nenv = {WORD = "sealed"}\n',
        "instruction.md": "Write the word into /app/work/answer.txt.\n",
        "environment/Dockerfile": "FROM default\nUSER root\nRUN echo built > /etc/built\n",
        "solution/solve.sh": SOLUTION,
        "tests/test.sh": TESTS,
    }
    for name, text in files.items():
        path = tmp_path / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "task"


def harbor(task: Path, home: Path) -> tuple[int, list[Path], str]:
    """Run the reference solution: the exit code, the trial's results, and what was printed."""
    words = ["run", "-p", str(task), "-a", "oracle", "-o", str(task.parent / "jobs"), "-y"]
    words += ["--env", "belljar.harbor:BelljarEnvironment", "--ek", "policy=low"]
    done = subprocess.run(
        [PYTHON or sys.executable, "-m", "harbor.cli.main", *words],
        env={
            **os.environ,
            "BELLJAR_HOME": str(home),
            "PYTHONPATH": str(Path(belljar.__file__).parents[1]),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    results = [*(task.parent / "jobs").glob("*/*/result.json")]
    return done.returncode, results, done.stdout + done.stderr


@REAL
def test_a_task_runs_with_its_reference_solution(task: Path, home: Path) -> None:
    """Its image is built, its limits and variables hold, files go in and out, it has no network,
    and the cell's record verifies: probed, and destroyed with proof."""
    _, results, printed = harbor(task, home)
    assert results, printed
    result = json.loads(results[0].read_text())
    assert result["verifier_result"] == {"rewards": {"reward": 1.0}}, result
    run = max((home / "runs").iterdir())
    assert verify(run).ok()
    kinds = [line.kind.value for line in read_events(run)]
    assert {"probe.completed", "cell.destroyed"} <= set(kinds)


@REAL
def test_a_task_that_asks_for_the_internet_is_refused(task: Path, home: Path) -> None:
    """Before a cell exists."""
    before = set((home / "runs").glob("*"))
    task.joinpath("task.toml").write_text('[environment]\nnetwork_mode = "public"\n')
    code, results, printed = harbor(task, home)
    assert (code, results) == (1, []), printed
    assert "ValueError" in printed
    assert set((home / "runs").glob("*")) == before


@pytest.fixture
def made(task: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An environment of the class with a base of Harbor's signatures, for any Python."""
    for name, module in harbor_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "belljar.harbor", raising=False)
    environment = importlib.import_module("belljar.harbor").BelljarEnvironment

    def make(policy: str = "low", network: Any = None, **more: Any) -> Any:
        usual = {"docker_image": "default", "workdir": None, "storage_mb": None, "cpus": 1}
        config = SimpleNamespace(**{**usual, "memory_mb": 256, **more})
        return environment(
            *(task / "environment", "t", "t__env"),
            *(SimpleNamespace(trial_dir=task.parent / "trial"), config),
            policy=policy,
            network_policy=network,
        )

    yield make
    sys.modules.pop("belljar.harbor", None)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_each_call_of_harbors_reaches_the_cell(made: Any, home: Path, tmp_path: Path) -> None:
    """Commands with their user, directory and variables; files and directories in both directions,
    without links that lead out; and an end that can be repeated."""
    environment = made()
    await environment.start(force_build=False)
    said = await environment.exec("id -un; pwd; echo $A", cwd="/tmp", env={"A": "b"}, user="root")
    assert (said.stdout, said.return_code) == ("root\n/tmp\nb\n", 0)
    assert (await environment.exec("id -u", user=65534)).stdout == "65534\n"
    assert (await environment.exec("echo no >&2; exit 3")).return_code == 3
    with pytest.raises(RuntimeError):
        await environment.exec("sleep 60", timeout_sec=1)
    sent = tmp_path / "task" / "sent"
    (sent / "in").mkdir(parents=True)
    (tmp_path / "task" / "out").symlink_to("/etc")
    for name in ("out", "out/passwd"):
        with pytest.raises(PolicyError):
            await environment.upload_file(tmp_path / "task" / name, "/data/leak")
    with pytest.raises(PolicyError):
        await environment.upload_dir("/etc", "/data/leak")
    (sent / "in" / "a").write_text("1")
    await environment.upload_dir(sent, "/data")
    await environment.upload_file(sent / "in" / "a", "/data/b")
    await environment.exec("ln -s /etc/passwd /data/out", user="root")
    await environment.download_dir("/data", tmp_path / "back")
    await environment.download_file("/data/b", tmp_path / "one")
    back = [str(each.relative_to(tmp_path / "back")) for each in (tmp_path / "back").rglob("*")]
    assert sorted(back) == ["b", "in", "in/a"]
    assert (tmp_path / "one").read_text() == "1"
    await environment.stop(delete=False)
    await environment.stop(delete=True)
    run = max((home / "runs").iterdir())
    assert verify(run).ok()
    evidence = stored_evidence(run, expected_key=local_fingerprint(home))
    assert evidence.run.sealed_verdict == "contained"
    findings = judge(evidence)
    assert [row.verdict for row in findings.rows] == ["contained"]
    assert findings.exit_code == 0


def test_a_task_takes_no_more_than_the_policy_gives(made: Any, tmp_path: Path) -> None:
    """The smaller of both limits, and of the network only what is on the task's list: of a public
    one nothing."""
    text = """belljar: 1
risk: medium
resources: {memory: 512MiB, disk: 64MiB}
network:
  default: simulate
  stand_ins:
    one: {kind: http, names: [one.example, other.example], routes: [{path: /, body: hi}]}
    two: {kind: http, names: [two.example], routes: [{path: /, body: hi}]}
  upstreams: [{host: real.example, ports: [443], methods: [GET], budget: 1MiB, reason: this test looks at it}]
"""
    (tmp_path / "policy.yaml").write_text(text)
    policy = str(tmp_path / "policy.yaml")
    network = sys.modules["harbor.models.task.config"].NetworkPolicy
    environment = made(policy, memory_mb=4096, storage_mb=32, cpus=64)
    held = environment._policy("default").policy
    assert (held.resources.cpus, held.resources.memory_bytes >> 20) == (1, 512)
    assert held.resources.disk_bytes >> 20 == 32
    assert held.network is None
    environment = made(policy, network("allowlist", ["one.example"]))
    kept = environment._policy("default").policy.network
    assert {name: item.names for name, item in kept.stand_ins.items()} == {"one": ("one.example",)}
    assert (kept.upstreams, kept.sink, kept.default.value) == ((), False, "deny")


def test_only_simulated_names_are_reachable(made: Any, task: Path) -> None:
    """Names without a stand-in, and the Internet when the task itself asks for it, are refused."""
    environment = made()
    policy = sys.modules["harbor.models.task.config"].NetworkPolicy
    environment.validate_network_policy_support(policy("no-network", []))
    environment.validate_network_policy_support(policy("public", []))  # Harbor's default
    with pytest.raises(ValueError, match="example"):
        environment.validate_network_policy_support(policy("allowlist", ["api.example"]))
    task.joinpath("task.toml").write_text('[agent]\nnetwork_mode = "public"\n')
    with pytest.raises(ValueError, match="Internet"):
        made().validate_network_policy_support(policy("public", []))
