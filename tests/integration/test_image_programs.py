"""Images with programs of their own under Inspect: what they set up is there before a sample
starts, or the sample does not start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from inspect_ai.log import read_eval_log
from tests.fakes.images import add_small_image
from tests.integration.processes import quick_command

from belljar.image.config import HealthCheck, ImageConfig

pytestmark = [pytest.mark.vm, pytest.mark.slow]
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox

SANDBOXES = {"checked": "checked.yaml", "settled": "compose.yaml", "broken": "broken.yaml"}

@solver
def look():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        said = await sandbox().exec(["sh", "-c", "cat /tmp/state; id -un; pwd; echo $SEEN"])
        state.output.completion = "|".join(said.stdout.split())
        return state
    return solve

@task
def programs():
    target = "ready|user|/var/tmp|yes"
    samples = [
        Sample(id=name, input="x", target=target, sandbox=("belljar", config))
        for name, config in SANDBOXES.items()
    ]
    return Task(dataset=samples, solver=look(), scorer=includes(), fail_on_error=False)
"""
POLICY = (
    "belljar: 1\nrisk: low\nimage: {image}\nresources: {{cpus: 1, memory: 256MiB, disk: 64MiB,"
    " processes: 64, lifetime: 10m}}\n"
)
COMPOSE = """\
services:
  default: {image: settled, network_mode: none, command: tail -f /dev/null}
"""
SET_UP = 'echo starting > /tmp/state; sleep {wait}; echo ready > /tmp/state; exec "$@"'


def derived(
    home: Path, name: str, script: str, *cmd: str, check: HealthCheck | None = None
) -> None:
    """A small image's files with another configuration."""
    config = ImageConfig(
        env={"SEEN": "yes", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        user="user",
        workdir="/var/tmp",
        entrypoint=("/bin/sh", "-c", script, "entry"),
        cmd=cmd,
        healthcheck=check,
    )
    add_small_image(home, name, config)


@pytest.mark.promise("1.6")
def test_the_programs_of_images(home: Path, tmp_path: Path) -> None:
    """What the entrypoint sets up late is there, as the image's user, in its directory, with its
    variables, where the image's own check is waited for; so it is where a compose file's command
    stands behind the entrypoint, and only waits. One that fails is an error of its sample, with
    its status and its last words; the sample itself does not begin."""
    check = HealthCheck(test=("CMD-SHELL", "grep -q ready /tmp/state"), interval_ns=10**9)
    derived(home, "checked", SET_UP.format(wait=1), "sleep", "infinity", check=check)
    derived(home, "settled", SET_UP.format(wait=0), "no-such-program")
    derived(home, "broken", "echo no such licence >&2; exit 7")
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    for image in ("checked", "broken"):
        (tmp_path / f"{image}.yaml").write_text(POLICY.format(image=image))
    (tmp_path / "task.py").write_text(TASK)
    command = quick_command("run", "--json", "--model", "mockllm/model", "task.py")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (log,) = (Path(json.loads(done.stdout)["run_dir"]) / "inspect").glob("*.eval")
    samples = {sample.id: sample for sample in read_eval_log(str(log)).samples or []}
    for name in ("checked", "settled"):
        assert samples[name].output.completion == samples[name].target, samples[name].error
    assert samples["broken"].error is not None
    assert "ended with status 7" in samples["broken"].error.message
    assert "no such licence" in samples["broken"].error.message
