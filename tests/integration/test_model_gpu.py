"""A GPU's device files in a model's cell. There is no GPU here: nodes of other devices stand in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inspect_ai.log import read_eval_log
from tests.integration.conftest import Belljar
from tests.machine import PATIENCE_S
from tests.real_packages import JSON_SERVER

pytestmark = [pytest.mark.vm, pytest.mark.root]
IN_OWN_DEV = """\
set -e
mount -t tmpfs -o mode=755 none "$1"
for name in null zero full random urandom tty ptmx fd stdin stdout stderr; do
    cp -a "/dev/$name" "$1"
done
mkdir "$1/shm" "$1/pts"
mount --rbind /dev/shm "$1/shm"
mount --rbind /dev/pts "$1/pts"
mknod -m 666 "$1/nvidia0" c 1 3
mknod -m 666 "$1/nvidia-uvm" c 1 5
mknod -m 666 "$1/nvidiactl" c 195 255
mount --move "$1" /dev
shift
exec "$@"
"""
"""Of these three the last is a number of the real driver, which this kernel lacks."""
SERVER = (
    JSON_SERVER
    + """\
    def do_POST(self):
        import glob, os
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = {}
        for path in glob.glob("/dev/nvidia*"):
            number = os.stat(path).st_rdev
            seen[path] = [os.major(number), os.minor(number), "opens"]
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError as error:
                seen[path][2] = error.strerror
        message = {"role": "assistant", "content": json.dumps(seen)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.send({"id": "x", "object": "chat.completion", "created": 1, "model": asked["model"],
                   "choices": [choice], "usage": usage})
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
)
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate, solver
from inspect_ai.util import sandbox

@solver
def look():
    async def solve(state, generate):
        listed = (await sandbox().exec(["ls", "/dev"])).stdout
        state.metadata["seen"] = [name for name in listed.split() if "nvidia" in name]
        return state
    return solve

@task
def devices():
    return Task(dataset=[Sample(input="?")], solver=[generate(), look()], sandbox=("belljar", "c.yaml"))
"""
PROBED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import anyio
from belljar.cell.parts import start_run
from belljar.model.serve import load_model, open_model
from belljar.probe.run import probe_cell

async def main():
    nowhere = SimpleNamespace(record=lambda _event: None)
    with start_run("test", None, []) as run:
        async with open_model(load_model(Path("model.yaml")), run=run) as served:
            plan = served.cell.plan
            oci = replace(plan.oci, devices=plan.oci.devices[:-1])
            served.cell.plan = replace(plan, oci=oci)
            report = await probe_cell(served.cell, which="devices.unusual", recorder=nowhere)
            served.cell.plan = plan
            print(json.dumps([report.verdict.value, report.findings[0].detail]))

anyio.run(main)
"""


@pytest.fixture
def in_folder(
    belljar: Belljar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., bytes]:
    """Runs Python's arguments in a directory with a task and a model's policy, with such a /dev."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "c.yaml").write_text("belljar: 1\nrisk: low\n")
    (tmp_path / "weights").write_text("none")
    added = json.loads(belljar("model", "add", "weights", "--json").stdout)
    model = {"weights": {"sha256": added["digest"]}, "server": ["python3", "-c", SERVER, "{port}"]}

    def run(*words: str, **fields: object) -> bytes:
        policy = {"belljar": 1, "risk": "low", "model": {**model, **fields}}
        (tmp_path / "model.yaml").write_text(json.dumps(policy))
        own_dev = ["unshare", "--mount", "sh", "-c", IN_OWN_DEV, "sh", str(tmp_path / "dev")]
        ran = subprocess.run(
            [*own_dev, sys.executable, *words],
            env=belljar.environment(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, (ran.stderr + ran.stdout).decode()
        return ran.stdout

    return run


GPU = {"devices": ["/dev/nvidia0"]}
SEEN = {
    "/dev/nvidia0": [1, 3, "opens"],
    "/dev/nvidia-uvm": [1, 5, "opens"],
    "/dev/nvidiactl": [195, 255, "No such device or address"],
}


@pytest.mark.promise("2.8")
def test_a_models_cell_gets_the_gpus_of_its_policy_and_no_other_cell_does(
    in_folder: Callable[..., bytes], clean_after: Callable[[], Path]
) -> None:
    """The server opens the nodes, by the numbers of this host's; the sample's cell has none. The
    probes at start and end agree with the plan."""
    words = ["-m", "belljar", "run", "task.py", "--model", "belljar/model.yaml", "--json"]
    found = json.loads(in_folder(*words, gpu=GPU))
    (model,) = found["model_cells"]
    assert (model["tier"], found["verdict"]) == ("container", "contained")
    assert [each["verdict"] for each in model["probes"]] == ["contained", "contained"]
    assert sorted(model["devices"]) == sorted(SEEN)
    (log,) = (clean_after() / "inspect").glob("*.eval")
    (sample,) = read_eval_log(str(log)).samples or []
    assert json.loads(sample.output.completion) == SEEN
    assert sample.metadata["seen"] == []


@pytest.mark.promise("4.6")
def test_a_device_that_the_plan_lacks_is_a_breach(
    in_folder: Callable[..., bytes], clean_after: Callable[[], Path]
) -> None:
    """One device fewer in the plan: the probe finds the one that is there."""
    assert json.loads(in_folder("-c", PROBED, gpu=GPU)) == ["breached", "/dev/nvidia0"]
    clean_after()
