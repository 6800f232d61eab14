"""Images with programs of their own under Inspect: what they set up is there before a sample
starts, or the sample does not start."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from inspect_ai.log import EvalSample, read_eval_log
from tests.integration.processes import quick_command

from belljar.image.config import HealthCheck, ImageConfig
from belljar.image.store import Store

pytestmark = [pytest.mark.vm, pytest.mark.slow]
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox

@solver
def look():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        said = await sandbox().exec(["sh", "-c", "cat /tmp/state; id -un; pwd; echo $SEEN"])
        state.output.completion = "|".join(said.stdout.split())
        return state
    return solve

@task
def programs(config: str):
    return Task(dataset=[Sample(id="one", input="x", target="ready|user|/var/tmp|yes")], solver=look(), scorer=includes(), sandbox=("belljar", config))
"""
READS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox

@solver
def look():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        own = await sandbox().exec(["sh", "-c", "cat /tmp/made; echo $M $N $T; pidof no-such-program"])
        web = await sandbox("web").exec(["cat", "/tmp/state"])
        state.output.completion = "|".join((own.stdout + web.stdout).split())
        return state
    return solve

@task
def programs(config: str):
    return Task(dataset=[Sample(id="one", input="x", target="inline|493|1000|0755|ready")], solver=look(), scorer=includes(), sandbox=("belljar", config))
"""
AS_DOCKER_READS = """
services:
  default:
    build: {context: ., dockerfile_inline: "FROM default\\nRUN echo inline > /tmp/made\\nENTRYPOINT [no-such-program]"}
    entrypoint: ""
    init: yes
    environment: {M: 0755, N: 1_000, T: '0755'}
    depends_on: {web: {condition: service_healthy}}
    mem_limit: 0
  web:
    image: slow
    healthcheck: {interval: 200ms, retries: 100}
"""
POLICY = (
    "belljar: 1\nrisk: low\nimage: {image}\nresources: {{cpus: 1, memory: 256MiB, disk: 64MiB,"
    " processes: 64, lifetime: 10m}}\n"
)
COMPOSE = (
    "services:\n  default:\n    image: settled\n    network_mode: none\n    command: tail -f"
    " /dev/null\n"
)
SET_UP = 'echo starting > /tmp/state; sleep {wait}; echo ready > /tmp/state; exec "$@"'


def derived(
    home: Path, name: str, script: str, *, cmd: tuple[str, ...], check: HealthCheck | None = None
) -> None:
    """The default image's files with another configuration."""
    store = Store(home)
    (home / "tmp").mkdir(exist_ok=True)
    copy = home / "tmp" / f"{name}.sqfs"
    shutil.copyfile(store.find("default").rootfs, copy)
    config = ImageConfig(
        env={"SEEN": "yes", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        user="user",
        workdir="/var/tmp",
        entrypoint=("/bin/sh", "-c", script, "entry"),
        cmd=cmd,
        healthcheck=check,
    )
    store.add(copy, config, name=name, source="a test", created="")


def ran(folder: Path, config: str, task: str = TASK) -> EvalSample:
    """The one sample of `belljar run` with this configuration."""
    (folder / "task.py").write_text(task)
    ours = quick_command("run", "--json", "--model", "mockllm/model")
    done = subprocess.run(
        [*ours, "task.py", "-T", f"config={config}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (log,) = (Path(json.loads(done.stdout)["run_dir"]) / "inspect").glob("*.eval")
    (sample,) = read_eval_log(str(log)).samples or []
    return sample


@pytest.mark.promise("1.6")
def test_the_images_own_check_is_waited_for(home: Path, tmp_path: Path) -> None:
    """What the entrypoint sets up late is there, as the image's user, in its directory, with its
    variables."""
    check = HealthCheck(test=("CMD-SHELL", "grep -q ready /tmp/state"), interval_ns=10**9)
    derived(home, "checked", SET_UP.format(wait=2), cmd=("sleep", "infinity"), check=check)
    (tmp_path / "policy.yaml").write_text(POLICY.format(image="checked"))
    sample = ran(tmp_path, "policy.yaml")
    assert sample.output.completion == sample.target, sample.error


@pytest.mark.promise("1.6")
def test_a_compose_files_command_stands_behind_the_entrypoint(home: Path, tmp_path: Path) -> None:
    """Also where the command only waits: the entrypoint sets up before."""
    derived(home, "settled", SET_UP.format(wait=0), cmd=("no-such-program",))
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    sample = ran(tmp_path, "compose.yaml")
    assert sample.output.completion == sample.target, sample.error


@pytest.mark.thorough  # by unit tests of `compose`, part by part
def test_a_file_means_what_docker_reads(home: Path, tmp_path: Path) -> None:
    """An inline Dockerfile, whose entrypoint an empty one clears; numbers and switches of YAML 1.1;
    the image's health check with the file's times, which alone would come too late."""
    test = ("CMD-SHELL", "grep -q ready /tmp/state")
    check = HealthCheck(test=test, interval_ns=10**9, retries=1)
    derived(home, "slow", SET_UP.format(wait=4), cmd=("sleep", "infinity"), check=check)
    (tmp_path / "compose.yaml").write_text(AS_DOCKER_READS)
    sample = ran(tmp_path, "compose.yaml", READS)
    assert sample.output.completion == sample.target, sample.error


@pytest.mark.promise("1.6")
def test_a_program_that_fails_is_an_error_of_the_sample(home: Path, tmp_path: Path) -> None:
    """With its status and its last words; the sample itself does not begin."""
    derived(home, "broken", "echo no such licence >&2; exit 7", cmd=())
    (tmp_path / "policy.yaml").write_text(POLICY.format(image="broken"))
    sample = ran(tmp_path, "policy.yaml")
    assert sample.error is not None
    assert "ended with status 7" in sample.error.message
    assert "no such licence" in sample.error.message
