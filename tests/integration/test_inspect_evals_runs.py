"""Tasks of inspect_evals, as they are installed, by `belljar run` to a scripted agent's steps.

The tasks' own code, Dockerfiles, compose files, tools and scorers are used. What this machine can't
have (registries, hubs, GitHub) is replaced as `tests/integration/real_tasks.py` says, and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.real_tasks import CASES, Case, Workshop

from belljar.ledger import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.thorough, pytest.mark.root]


@pytest.fixture(scope="module")
def workshop(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Where bases and tasks' images are built, each once."""
    with Workshop(vm_home, tmp_path_factory.mktemp("workshop")) as made:
        yield made


def belljar_run(directory: Path, home: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """`belljar run --json …` in `directory`: exit code, what it printed, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "belljar", "run", "--json", *arguments],
        cwd=directory,
        env={
            **os.environ,
            "BELLJAR_HOME": str(home),
            "BELLJAR_POLICY": str(directory / "policy.yaml"),
            "XDG_CACHE_HOME": str(directory / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def check_run(case: Case, workshop: Workshop, directory: Path, tier: str, *, steps: str, solved: bool) -> None:
    """Run the case's samples with the scripted steps: contained, and scored as `solved` says."""
    workshop.prepare(case, directory, steps=steps)
    code, found, errors = belljar_run(
        directory, workshop.home, f"tasks.py@{case.name}", "--tier", tier, *case.options
    )
    assert code == 0, errors
    verdicts = {sample["id"]: sample["verdict"] for sample in found["samples"]}
    assert verdicts == dict.fromkeys(case.samples, "contained"), errors
    scores = {sample["id"]: case.passed(sample["scores"]) for sample in found["samples"]}
    assert scores == dict.fromkeys(case.samples, solved), json.dumps(found["samples"], indent=1)
    assert verify(Path(found["run_dir"])).ok(strict=True)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_scripted_agent_solves_it(case: Case, workshop: Workshop, tmp_path: Path) -> None:
    """Each sample of the real task is contained, and solved by what its author meant to solve it."""
    check_run(case, workshop, tmp_path, case.tier, steps="solve", solved=True)
