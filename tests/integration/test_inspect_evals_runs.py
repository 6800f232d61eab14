"""Tasks of inspect_evals, as they are installed, by `belljar run` to a scripted agent's steps."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspect_ai.log import read_eval_log
from tests.conftest import copy_store
from tests.integration.processes import ended, quick_command
from tests.integration.real_images import Workshop
from tests.integration.real_tasks import CASES, Case, write_task

from belljar.ledger.verification import verify
from belljar.store.home import belljar_home

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.thorough, pytest.mark.root]


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    """Where bases and tasks' images are built, each once."""
    prepared = belljar_home()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o711)
        yield Workshop(copy_store(prepared, Path(scratch, "store")), Path(scratch))


def check_run(case: Case, home: Path, directory: Path, tier: str) -> None:
    """Each sample is contained, and solved by its steps."""
    write_task(case, directory)
    words = ("--tier", tier, "--sample-id", ",".join(case.samples))
    done = ended(
        quick_command("run", "--json", f"tasks.py@{case.name}", *words),
        cwd=directory,
        env={
            **os.environ,
            "BELLJAR_HOME": str(home),
            "BELLJAR_POLICY": str(directory / "policy.yaml"),
            "XDG_CACHE_HOME": str(directory / "cache"),
        },
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {sample["verdict"] for sample in found["samples"]} == {"contained"}, done.stderr
    run_dir = Path(found["run_dir"])
    (log,) = (run_dir / "inspect").glob("*.eval")
    samples = read_eval_log(str(log)).samples or []
    solved = {
        str(sample.id): bool(sample.scores and case.solved(sample.scores)) for sample in samples
    }
    assert solved == dict.fromkeys(case.samples, True), done.stderr
    assert verify(run_dir).ok(strict=True)


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    ("case", "tier"),
    [pytest.param(case, tier, id=f"{case.name}-{tier}") for case in CASES for tier in case.tiers],
)
def test_a_scripted_agent_solves_a_real_task(
    case: Case, tier: str, workshop: Workshop, tmp_path: Path
) -> None:
    """Each sample of the real task is contained, and solved by its author's intended steps."""
    workshop.images(case.builds)
    check_run(case, workshop.home, tmp_path, tier)
