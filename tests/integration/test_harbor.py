"""`harbor run --env belljar.harbor:BelljarEnvironment`, with Harbor itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.fakes.images import add_small_image
from tests.integration import harbor_calls
from tests.integration.processes import wait_for
from tests.real_packages import ROOT, harbor_python

from belljar.cli.report import report_of_run
from belljar.harness.evidence import stored_evidence
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.report.verdict import judge

PYTHON = harbor_python()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="no environment with Harbor, which needs Python 3.12: python -m tests.real_packages",
    ),
]
BELLJAR = ["--env", "belljar.harbor:BelljarEnvironment", "--ek", "policy=low"]
BASE = "ubuntu:24.04"  # of Harbor's template; a registry is not asked
SOLUTION = """#!/bin/bash
set -e
test ! -e /sys/class/net/eth0
mkdir -p /tmp/work/deep
echo "$WORD" > /tmp/work/answer.txt
ln -s /etc/passwd /tmp/work/deep/out
"""
REWARD = "if {}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def written(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def own_task(directory: Path, solution: str = SOLUTION, more: str = "") -> Path:
    """A task with an image, a reference solution and tests."""
    limits = '[environment]\ndocker_image = "default"\nmemory_mb = 256\ncpus = 0.5\nenv = {WORD = "sealed"}\n'
    is_right = '[ "$(cat /tmp/work/answer.txt)" = sealed ]'
    files = {
        "task.toml": limits + more,
        "instruction.md": "Write the word into /tmp/work/answer.txt.\n",
        "environment/none": "",
        "solution/solve.sh": solution,
        "tests/test.sh": "#!/bin/bash\n" + REWARD.format(is_right),
    }
    return written(directory, files)


def harbor(home: Path, *words: object) -> list[str]:
    """A command of Harbor's, to be run with its environment variables."""
    variables = {
        "BELLJAR_HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        str(PYTHON),
        *map(str, words),
    ]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_tasks_run_with_their_reference_solutions(tmp_path: Path, home: Path) -> None:
    """Harbor's own template and ours, a verifier of its own; a refused task ends no other."""
    add_small_image(home, BASE, more=[f"usr/bin/{name}" for name in ("chmod", "rm", "tee", "test")])
    tasks = tmp_path / "tasks"
    init = ("init", "--task", "--org", "x", "-o", tasks, "--no-pytest", "apart")
    run(harbor(home, "-m", "harbor.cli.main", *init))
    check = "#!/bin/bash\n" + REWARD.format("grep -q done /logs/artifacts/made")
    solve = "#!/bin/bash\ncat /etc/built >> /logs/artifacts/made\n"
    template = written(tasks / "apart", {"solution/solve.sh": solve, "tests/test.sh": check})
    with (template / "environment/Dockerfile").open("a") as file:
        file.write("\nUSER root\nRUN echo done > /etc/built\n")
    settings = template / "task.toml"
    settings.write_text(settings.read_text().replace('"public"', '"no-network"'))
    own_task(tasks / "own", more='[agent]\nnetwork_mode = "no-network"\n')
    own_task(tasks / "public", more='network_mode = "public"\n')
    before = set((home / "runs").glob("*"))
    jobs = tmp_path / "jobs"
    words = ["-p", tasks, "-a", "oracle", "-o", jobs, "-n", "3", "-y", *BELLJAR]
    printed = run(harbor(home, "-m", "harbor.cli.main", "run", *words))
    results = {}
    for path in jobs.glob("*/*/result.json"):
        result = json.loads(path.read_text())
        rewards = (result["verifier_result"] or {}).get("rewards")
        results[path.parent.name.split("__")[0]] = rewards or result["exception_info"]
    refused = results.pop("public")
    assert refused["exception_type"] == "PolicyError"
    assert refused["exception_message"].splitlines()[0].endswith("which a cell never reaches")
    assert results == {name: {"reward": 1.0} for name in ("apart", "own")}, printed
    made = sorted(set((home / "runs").glob("*")) - before)
    assert len(made) == len(results) + 1, "one run for each cell, and one more for the verifier's"
    for each in made:
        evidence = stored_evidence(each, expected_key=local_fingerprint(home))
        assert judge(evidence).exit_code == 0, each
        assert verify(each).ok()
    page = report_of_run(made[0])
    assert page is not None
    assert page.exists()


def test_an_interrupt_destroys_the_cell(tmp_path: Path, home: Path) -> None:
    """Ctrl-C while a solution runs: the cell is destroyed with proof, and its record is complete."""
    task = own_task(tmp_path / "task", "#!/bin/bash\nsleep 600\n")
    before = set((home / "runs").glob("*"))
    words = ["-p", task, "-a", "oracle", "-o", tmp_path / "jobs", "-y", *BELLJAR]
    command = harbor(home, "-m", "harbor.cli.main", "run", *words)

    def has_begun() -> bool:
        made = set((home / "runs").glob("*")) - before
        return any(
            b"solve.sh" in path.read_bytes() for each in made for path in each.glob("*.jsonl")
        )

    with (tmp_path / "printed").open("wb") as printed:
        running = subprocess.Popen(command, stdout=printed, stderr=printed, start_new_session=True)
        try:
            wait_for(has_begun, "the solution", within_s=300)
            os.kill(running.pid, signal.SIGINT)
            assert running.wait(120) != 0
        finally:
            running.kill()
    (made,) = set((home / "runs").glob("*")) - before
    assert verify(made).ok()
    kinds = [line.kind.value for line in read_events(made)]
    assert {"cell.destroyed", "run.finished"} <= set(kinds), (tmp_path / "printed").read_text()


def test_each_call_of_harbors_reaches_the_cell(tmp_path: Path, home: Path) -> None:
    """By an environment object of Harbor's: see `harbor_calls`."""
    for name in harbor_calls.ALL:
        written(tmp_path / name / "task", {"task.toml": "", "environment/none": ""})
    before = set((home / "runs").glob("*"))
    run(harbor(home, "-m", "tests.integration.harbor_calls", tmp_path))
    for made in set((home / "runs").glob("*")) - before:
        evidence = stored_evidence(made, expected_key=local_fingerprint(home))
        assert [row.verdict for row in judge(evidence).rows] == ["contained"]
        assert evidence.run.sealed_verdict == "contained"
