"""Ranges under `belljar run`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import EvalSample, read_eval_log
from tests.integration.processes import quick_command

from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify

pytestmark = [pytest.mark.vm, pytest.mark.slow]

POLICY = (
    "belljar: 1\nrisk: low\nresources: {cpus: 1, memory: 256MiB, disk: 64MiB, processes: 64,"
    " lifetime: 10m}\n"
)
COMPOSE = """
services:
  default:
    image: default
    command: tail -f /dev/null
    init: true
    x-default: true
    environment: {WHO: agent}
    depends_on:
      web: {condition: service_healthy}
  web:
    image: default
    hostname: front
    user: root
    working_dir: /srv
    environment: {DATABASE: "http://db01.corp.local:5432/"}
    depends_on: [DB01]
    expose: [8000]
    command:
      - python3
      - -c
      - |
        import http.server, os, urllib.request
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = b"web says " + urllib.request.urlopen(os.environ["DATABASE"] + "table").read()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)
        http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
    healthcheck: {test: curl -fs http://localhost:8000/, interval: 500ms, retries: 60}
  DB01:
    image: default
    hostname: DB01.corp.local
    user: root
    command: [sh, -c, 'mkdir /data && cd /data && echo rows > table && exec python3 -m http.server 5432']
    healthcheck: {test: [CMD, curl, -fs, "http://127.0.0.1:5432/table"], interval: 200ms, retries: 100}
    deploy: {resources: {limits: {cpus: "0.5", memory: 128m}}}
"""
TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox

@solver
def run(*commands: tuple[str, str]) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        said = []
        for where, command in commands:
            result = await sandbox(where).exec(["sh", "-c", command])
            said.append(result.stdout.strip() or str(result.returncode))
        state.output.completion = "|".join(said)
        return state
    return solve

@scorer(metrics=[mean()])
def said() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=int(state.output.completion == target.text), explanation=state.output.completion)
    return score

CURL = "curl -s --max-time 60 "

@task
def apart() -> Task:
    commands = [
        (None, CURL + "http://web:8000/"),
        ("web", CURL + "http://store:8000/"),
        (None, CURL + "http://store:8000/"),
        (None, CURL + "http://$(" + CURL + "http://web:8000/store):8000/"),
        ("store", CURL + "http://default:8000/"),
        ("store", CURL + "http://$(" + CURL + "http://web:8000/default):8000/"),
        ("store", CURL + "http://web:8000/"),
    ]
    return Task(
        dataset=[Sample(id="apart", input="x", target="web|store|6|7|6|7|web")], solver=run(*commands), scorer=said(), sandbox=("docker", "apart.yaml"))

@task
def shop() -> Task:
    commands = [
        (None, "echo $WHO"),
        ("default", CURL + "http://web:8000/"),
        (None, CURL + "http://front:8000/"),
        ("web", "pwd"),
        ("web", CURL + "http://db01:5432/table"),
        (None, CURL + "http://DB01.Corp.local:5432/table"),
        ("web", CURL + "http://127.0.0.1:5432/table"),
        ("DB01", "cat /data/table"),
        (None, CURL + "http://elsewhere:8000/"),
        (None, "python3 -m http.server 7777 > /dev/null 2>&1 & " + CURL + "--retry 60 --retry-connrefused --retry-delay 1 -o /dev/null http://127.0.0.1:7777/; echo up"),
        ("DB01", CURL + "-o /dev/null -w '%{http_code}' http://default:7777/"),
    ]
    target = "agent|web says rows|web says rows|/srv|rows|rows|7|rows|6|up|200"
    return Task(dataset=[Sample(id="shop", input="x", target=target)], solver=run(*commands), scorer=said(), sandbox=("docker", "compose.yaml"))

DEVICES = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | xargs"

@solver
def look(*names: str) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox(names[-1]).write_file("/tmp/kept", "kept")
        said = [await sandbox(names[-1]).read_file("/tmp/kept")]
        for name in names:
            result = await sandbox(name).exec(["sh", "-c", DEVICES + "; test ! -e /tmp/kept; echo $?"])
            said.append(result.stdout.replace("\\n", " ").strip())
        state.output.completion = "|".join(said)
        return state
    return solve

@task
def sealed() -> Task:
    sample = Sample(id="sealed", input="x", target="kept|lo 0|lo 1")
    return Task(dataset=[sample], solver=look("default", "Scorer"), scorer=said(), sandbox=("docker", "sealed.yaml"))
"""
# A store that only the web server reaches, and whose health is the web server's, which starts after
# it.
APART = """
x-serve: &serve
  image: default
  user: root
  entrypoint: [python3, -c]
  healthcheck: {test: "curl -fs http://127.0.0.1:8000/", interval: 200ms, retries: 100}
  command:
    - |
      import http.server, os, socket
      class Name(http.server.BaseHTTPRequestHandler):
          def do_GET(self):
              self.send_response(200)
              self.end_headers()
              self.wfile.write((socket.gethostbyname(self.path[1:]) if self.path[1:] else os.environ["NAME"]).encode())
      http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Name).serve_forever()
services:
  default: {<<: *serve, environment: {NAME: agent}, networks: [front]}
  web: {<<: *serve, environment: {NAME: web}, networks: [front, back], depends_on: [store]}
  store: {<<: *serve, environment: {NAME: store}, networks: [back], healthcheck: {test: "curl -fs http://web:8000/", interval: 200ms, retries: 100}}
networks: {front: , back: {internal: true}}
"""
SEALED = """
services:
  default: {image: default, network_mode: none}
  Scorer: {image: default, network_mode: none}
"""


@pytest.fixture(scope="module")
def tasks(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with tasks, and a policy of risk low as the user's own."""
    folder = tmp_path_factory.mktemp("tasks")
    files = {"tasks.py": TASKS, "low.yaml": POLICY}
    files |= {"compose.yaml": COMPOSE, "apart.yaml": APART, "sealed.yaml": SEALED}
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_HOME", str(vm_home))
        patch.setenv("BELLJAR_POLICY", str(folder / "low.yaml"))
        yield folder


def belljar_run(tasks: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, what `belljar run --json` printed, its standard error."""
    argv = quick_command("run", "--json", *words)
    done = subprocess.run(argv, cwd=tasks, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@dataclass
class Finished:
    """A run that is over: what was said of its samples, by name, and its record."""

    samples: dict[str, dict[str, Any]]
    run: Path

    @classmethod
    def of(cls, tasks: Path, *words: str) -> Finished:
        code, said, errors = belljar_run(tasks, *words)
        assert code == 0, errors[-4000:]
        assert not said["stray_cells"]
        made = cls({each["sample"]: each for each in said["samples"]}, Path(said["run_dir"]))
        assert verify(made.run).ok(strict=True)
        for sample in made.samples.values():
            assert (sample["verdict"], sample["destroyed"]) == ("contained", True)
            assert sample["scores"]["said"] == "1", [log.output.completion for log in made.logs()]
        return made

    def logs(self) -> list[EvalSample]:
        paths = (self.run / "inspect").glob("*.eval")
        return [sample for path in paths for sample in read_eval_log(str(path)).samples or []]

    def lines(self, *kinds: Kind) -> list[Line]:
        return [line for line in read_events(self.run) if line.kind in kinds]


@pytest.mark.promise("1.5")
def test_compose_tasks_run_unchanged(tasks: Path) -> None:
    """Each service is a cell: `sandbox()` is the default's, others go by name."""
    names = [f"tasks.py@{name}" for name in ("shop", "apart", "sealed")]
    done = Finished.of(tasks, *names, "--model", "mockllm/model")
    cells = {name: len(sample["cells"]) for name, sample in done.samples.items()}
    assert cells == {"shop": 3, "apart": 3, "sealed": 2}
    assert [line.data["clean"] for line in done.lines(Kind.CELL_DESTROYED)] == [True] * 8
    # Where no cell has a device, no network is made
    assert [line.data["clean"] for line in done.lines(Kind.RANGE_DESTROYED)] == [True] * 2
    refused = [line.data["reason"] for line in done.lines(Kind.NETWORK_FLOW)]
    assert refused.count("neighbour") >= 2
    probed = [line for line in done.lines(Kind.PROBE_COMPLETED) if not line.data["problem"]]
    assert {(line.cell, line.data["phase"]) for line in probed} == {
        (line.cell, phase) for line in done.lines(Kind.CELL_PLANNED) for phase in ("start", "end")
    }
