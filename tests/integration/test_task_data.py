"""What a compose file gives its cells besides their images, in real cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.processes import ended, quick_command

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.events import Kind
from belljar.harness.config import as_config
from belljar.harness.operator import Operator, sample_policy
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]

POLICY = """\
belljar: 1
risk: low
tier: container
resources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64, lifetime: 10m}
"""
COMPOSE = """
include: [../shared/web.yaml]
services:
  default:
    image: default
    user: root
    working_dir: /not/there
    volumes: ["../app:/etc/profile.d:ro", "./one.txt:/one.txt"]
    env_file: vars.env
    environment: {B: explicit}
    extra_hosts: ["shop.example:10.9.8.7", "host.docker.internal:host-gateway"]
"""
WEB = """
services:
  web:
    image: default
    user: root
    working_dir: /nor/here
    volumes: ["./html:/srv/html:ro"]
    command: [sh, -c, "cd /srv/html && exec python3 -m http.server 8000"]
    healthcheck: {test: "curl -fs http://127.0.0.1:8000/page", interval: 200ms, retries: 100}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A package with a task's directory, an app, and what tasks share."""
    files = {
        "__init__.py": "",
        "app/sub/f": "of the app",
        "shared/web.yaml": WEB,
        "shared/html/page": "a page",
        "task/compose.yaml": COMPOSE,
        "task/one.txt": "one",
        "task/vars.env": "A=1\nB=under\nC=12\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "app" / "sub" / "f").chmod(0o750)
    (tmp_path / "app" / "link").symlink_to("sub/f")
    return tmp_path / "task"


async def said(cell: Cell, command: str) -> str:
    output = await cell.exec(["sh", "-c", command])
    return output.stdout.decode().strip()


@pytest.mark.promise("1.5", "1.7")
@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
async def test_a_tasks_files_and_names_are_in_its_cells(
    home: Path, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they would be in containers; nothing that a cell writes comes back."""
    (task / "low.yaml").write_text(POLICY)
    monkeypatch.setenv("BELLJAR_POLICY", str(task / "low.yaml"))
    config = as_config(str(task / "compose.yaml"))
    loaded = sample_policy(config, {}, Operator()).policy
    with start_run("test", "data", [], home=home) as run:
        async with open_cell(loaded, run=run, home=home) as cell:
            assert (
                await said(cell, "cat /etc/profile.d/link; ls -A /etc/profile.d")
                == "of the applink\nsub"
            )
            assert await said(cell, "stat -c '%a %u:%g' /etc/profile.d/sub/f") == "750 0:0"
            assert await said(cell, "pwd") == "/not/there"
            assert await said(cell, "cat /one.txt; echo two > /one.txt; cat /one.txt") == "onetwo"
            assert await said(cell, "echo $A $B $C") == "1 explicit 12"
            assert await said(cell, "getent hosts shop.example") == "10.9.8.7        shop.example"
            assert await said(cell, "getent hosts host.docker.internal; echo $?") == "2"
            assert await said(cell, "curl -s http://web:8000/page") == "a page"
            # an entry of the hosts file leads nowhere
            assert await said(cell, "curl -s -m 5 http://shop.example/; echo $?") in ("7", "28")
    assert (task / "one.txt").read_text() == "one"
    copied = [line.data for line in read_events(run.path) if line.kind is Kind.TASK_FILES_COPIED]
    assert {(data["key"], data["target"]) for data in copied} == {
        ("volumes", "/etc/profile.d"),
        ("volumes", "/one.txt"),
        ("volumes", "/srv/html"),
    }
    assert verify(run.path).ok(strict=True)


OF_SAMPLE = """
services:
  default:
    image: default
    volumes: ["./challenges/${SAMPLE_METADATA_NAME}:/challenge:ro"]
    working_dir: /not/there
    command: sh -c 'X=hello; echo $$X > /tmp/x; sleep 1d'
"""
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

@solver
def look() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        shown = await sandbox().exec(["sh", "-c", "cat /challenge/flag /tmp/x; stat -c %a:%u:%n $PWD"])
        state.output.completion = shown.stdout
        return state
    return solve

@task
def challenges() -> Task:
    names = ["first", "second"]
    samples = [Sample(id=name, input="x", target=f"flag of {name}hello\\n755:0:/not/there", metadata={"name": name}) for name in names]
    return Task(dataset=samples, solver=look(), scorer=includes(), sandbox="docker")
"""


@pytest.mark.promise("1.7")
def test_a_path_of_each_samples_metadata(home: Path, tmp_path: Path) -> None:
    """Under `belljar run` each sample has its own directory; a name that leads out is refused
    before any begins. The work directory is made, and a command in words is split."""
    (tmp_path / "compose.yaml").write_text(OF_SAMPLE)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "low.yaml").write_text(POLICY)
    for name in ("first", "second"):
        (tmp_path / "challenges" / name).mkdir(parents=True)
        (tmp_path / "challenges" / name / "flag").write_text(f"flag of {name}")
    argv = quick_command("run", "--json", "--policy", "low.yaml", "--model", "mockllm/model")
    done = ended([*argv, "task.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert [sample["verdict"] for sample in said["samples"]] == ["contained", "contained"]
    assert [sample["scores"]["includes"] for sample in said["samples"]] == ["C", "C"]
    (tmp_path / "task.py").write_text(TASK.replace('["first", "second"]', '["first", "../../.."]'))
    done = ended([*argv, "task.py"], cwd=tmp_path)
    assert done.returncode != 0
    assert "volumes" in json.loads(done.stdout)["error"]["message"]
