"""Ranges under `belljar run`: Inspect tasks with several compose services, unchanged, and programs
in a cell that ask the evaluated model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.event import ModelEvent
from inspect_ai.log import EvalSample, read_eval_log
from tests.integration.processes import quick_command

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.events import Kind
from belljar.image.store import Store
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify
from belljar.policy.load import load_policy

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
from inspect_ai.model import ModelOutput, ModelUsage, get_model
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
def notes() -> Task:
    commands = [(None, "curl -s $TARGET"), ("attacker", "curl -s http://db:6000/note"), ("web", "curl -s http://agent:1/; echo $?")]
    return Task(
        dataset=[Sample(id=name, input="x", target=f"{name}|{name}|7", metadata={"flag": name}) for name in ("flag-one",)],
        solver=run(*commands), scorer=said(), sandbox="docker")

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
        dataset=[Sample(id="apart", input="x", target="web|store|6|7|6|7|web")], solver=run(*commands), scorer=said(), sandbox="docker")

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
def sealed(first: str = "lo", last: str = "lo") -> Task:
    sample = Sample(id="sealed", input="x", target=f"kept|{first} 0|{last} 1")
    return Task(dataset=[sample], solver=look("default", "Scorer"), scorer=said(), sandbox="docker")

ASK = '''
import json, urllib.request
question = {"model": "gpt-4o", "messages": [{"role": "user", "content": "What is the answer?"}]}
request = urllib.request.Request(
    "https://api.openai.com/v1/chat/completions", json.dumps(question).encode(),
    {"Authorization": "Bearer sk-test", "Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
print(answer["model"], answer["choices"][0]["message"]["content"])
'''

@task
def asks() -> Task:
    commands = [(None, "python3 -c '" + ASK + "'")]
    output = ModelOutput.from_content("mockllm/model", "forty-two")
    output.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)
    return Task(
        model=get_model("mockllm/model", custom_outputs=[output]),
        dataset=[Sample(id="asks", input="x", target="gpt-4o forty-two")],
        solver=run(*commands), scorer=said(), sandbox=("belljar", "openai.yaml"))
"""
# As Inspect's users write them: a default service of another name, networks with aliases, a job
# that fills the database before the web server starts, metadata, an entrypoint.
NOTES = """
x-python: &python
  image: aisiuk/inspect-tool-support
  user: root
  init: true
  networks: [lab]
services:
  attacker:
    image: aisiuk/inspect-tool-support
    x-default: true
    x-local: true
    command: tail -f /dev/null
    cap_drop: [ALL]
    networks: {lab: {aliases: [agent]}}
    environment: ["TARGET=http://notes.lab:${WEB_PORT:-8080}/"]
    healthcheck: {test: "curl -fs $$TARGET", interval: 5s}
    depends_on: {web: {condition: service_healthy}}
  web:
    <<: *python
    networks: {lab: {aliases: [notes.lab]}}
    entrypoint: ["python3", "-c"]
    command:
      - |
        import http.server, urllib.request
        class Notes(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                note = urllib.request.urlopen("http://db:6000/note").read()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(note)
        http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Notes).serve_forever()
    ports: ["8080:8080"]
    healthcheck: {test: [CMD-SHELL, "curl -fs http://localhost:8080/ || exit 1"], interval: 1s, timeout: 10s, retries: 60}
    depends_on:
      db: {condition: service_healthy}
      seed: {condition: service_completed_successfully}
  seed:
    <<: *python
    environment: {FLAG: "${SAMPLE_METADATA_FLAG:?each sample has one}"}
    command: ["sh", "-c", "printf %s $$FLAG | curl -fs -T - http://db:6000/note"]
    depends_on: {db: {condition: service_healthy}}
  db:
    <<: *python
    working_dir: /data/notes
    volumes: ["notes:/data/notes"]
    command:
      - python3
      - -c
      - |
        import http.server
        class Store(http.server.SimpleHTTPRequestHandler):
            def do_PUT(self):
                body = b""
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                open("note", "wb").write(body)
                self.send_response(201)
                self.end_headers()
        http.server.ThreadingHTTPServer(("0.0.0.0", 6000), Store).serve_forever()
    healthcheck: {test: ["CMD", "curl", "-fs", "http://127.0.0.1:6000/"], interval: 1s, retries: 60}
volumes: {notes: {}}
networks:
  lab: {driver: bridge, internal: true}
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
  default: {image: default, network_mode: FIRST}
  Scorer: {image: default, network_mode: LAST}
"""
OPENAI = (
    POLICY
    + "network: {stand_ins: {model: {kind: openai, names: [api.openai.com], ports: [443]}}}\n"
)


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with tasks, and a policy of risk low as the user's own."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    (tmp_path / "openai.yaml").write_text(OPENAI)
    (tmp_path / "low.yaml").write_text(POLICY)
    monkeypatch.setenv("BELLJAR_POLICY", str(tmp_path / "low.yaml"))
    return tmp_path


@pytest.fixture
def generic(home: Path) -> Iterator[None]:
    """The image that stands for the one of Inspect's provider has the default one's files, which
    are unpacked already: its own take half a minute, and other tests use them."""
    store = Store(home)
    own = store.find("inspect")
    store.name(store.find("default"), "inspect")
    yield
    store.name(own, "inspect")


def belljar_run(tasks: Path, task: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, what `belljar run --json` printed, its standard error."""
    model = ("--model", "mockllm/model") if task != "asks" else ()
    argv = quick_command("run", "--json", *model, f"tasks.py@{task}", *options)
    done = subprocess.run(argv, cwd=tasks, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def log_of(run: Path) -> EvalSample:
    """The one sample in Inspect's log."""
    (path,) = (run / "inspect").glob("*.eval")
    (sample,) = read_eval_log(str(path)).samples or []
    return sample


@pytest.mark.promise("1.5")
def test_a_compose_task_runs_unchanged(home: Path, tasks: Path) -> None:
    """Each service is a cell: `sandbox()` is the default's, others go by name; names lead from each
    to each; all are recorded, contained and gone."""
    code, said, errors = belljar_run(tasks, "shop")
    assert code == 0, errors[-4000:]
    (sample,) = said["samples"]
    assert sample["scores"]["said"] == "1", log_of(Path(said["run_dir"])).output.completion
    assert len(sample["cells"]) == 3
    assert sample["verdict"] == "contained"
    assert sample["destroyed"]
    assert not said["stray_cells"]
    lines = list(read_events(Path(said["run_dir"])))
    assert sum(line.kind is Kind.CELL_DESTROYED and line.data["clean"] for line in lines) == 3
    assert sum(line.kind is Kind.RANGE_DESTROYED and line.data["clean"] for line in lines) == 1
    assert verify(Path(said["run_dir"])).ok(strict=True)


@pytest.mark.promise("1.5")
def test_cells_of_other_networks_do_not_reach_each_other(home: Path, tasks: Path) -> None:
    """The agent gets through to the web server alone, which reaches the store; agent and store have
    no name for each other, and who knows the address is refused at once, both ways, and on record.

    A service that is awaited by nobody's start is waited for at the end only.
    """
    (tasks / "compose.yaml").write_text(APART)
    code, said, errors = belljar_run(tasks, "apart")
    assert code == 0, errors[-4000:]
    (sample,) = said["samples"]
    assert sample["scores"]["said"] == "1", log_of(Path(said["run_dir"])).output.completion
    assert sample["verdict"] == "contained"
    flows = [line for line in read_events(Path(said["run_dir"])) if line.kind is Kind.NETWORK_FLOW]
    assert sum(line.data["reason"] == "neighbour" for line in flows) >= 2


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    "tier",
    ["container", *(pytest.param(it, marks=pytest.mark.thorough) for it in ("gvisor", "microvm"))],
)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("none", "none"),
        pytest.param("bridge", "none", marks=pytest.mark.thorough),
        pytest.param("none", "bridge", marks=pytest.mark.thorough),
    ],
)
def test_a_service_without_a_network_is_reached_by_commands_alone(
    first: str, last: str, tier: str, home: Path, tasks: Path
) -> None:
    """A cell of `network_mode: none` has no network device, whatever the others have; commands and
    files reach it; each cell is probed at start and end, and proven to be gone. Where no cell has
    a device, no network is made."""
    (tasks / "compose.yaml").write_text(SEALED.replace("FIRST", first).replace("LAST", last))
    devices = {"none": "lo", "bridge": "eth0 lo"}
    options = ("-T", f"first={devices[first]}", "-T", f"last={devices[last]}", "--tier", tier)
    code, said, errors = belljar_run(tasks, "sealed", *options)
    assert code == 0, errors[-4000:]
    (sample,) = said["samples"]
    run = Path(said["run_dir"])
    assert sample["scores"]["said"] == "1", log_of(run).output.completion
    assert sample["verdict"] == "contained"
    assert not said["stray_cells"]
    lines = list(read_events(run))
    cells = {line.cell for line in lines if line.kind is Kind.CELL_PLANNED}
    assert len(cells) == 2
    assert {line.data["tier"] for line in lines if line.kind is Kind.CELL_PLANNED} == {tier}
    probed = [line for line in lines if line.kind is Kind.PROBE_COMPLETED]
    assert {(line.cell, line.data["phase"]) for line in probed if not line.data["problem"]} == {
        (cell, phase) for cell in cells for phase in ("start", "end")
    }
    gone = {x.cell for x in lines if x.kind is Kind.CELL_DESTROYED and x.data["clean"]}
    assert gone == cells
    ranges = sum(line.kind is Kind.RANGE_DESTROYED and line.data["clean"] for line in lines)
    assert ranges == ((first, last) != ("none", "none"))
    assert verify(run).ok(strict=True)


@pytest.mark.promise("1.5")
@pytest.mark.usefixtures("generic")
def test_a_compose_task_under_inspects_own_command(home: Path, tasks: Path) -> None:
    """`inspect eval --sandbox belljar` takes a docker task's file, found beside it: agent, web
    server, database, and a job that has to end before others start."""
    (tasks / "compose.yaml").write_text(NOTES)
    inspect = [sys.executable, "-m", "inspect_ai", "eval", "tasks.py@notes", "--sandbox", "belljar"]
    argv = [*inspect, "--model", "mockllm/model", "--display", "plain", "--log-dir", "logs"]
    done = subprocess.run(argv, cwd=tasks, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (path,) = (tasks / "logs").glob("*.eval")
    (sample,) = read_eval_log(str(path)).samples or []
    assert sample.scores, sample.error
    assert sample.scores["said"].value == 1, sample.output.completion
    assert "`$WEB_PORT` is changed" in done.stderr + done.stdout
    run = Path(done.stderr.partition("recording into ")[2].partition("\n")[0])
    lines = list(read_events(run))
    assert {line.data["tier"] for line in lines if line.kind is Kind.CELL_PLANNED} == {"container"}
    assert sum(line.kind is Kind.CELL_DESTROYED and line.data["clean"] for line in lines) == 4
    assert sum(line.kind is Kind.RANGE_DESTROYED and line.data["clean"] for line in lines) == 1
    assert verify(run).ok(strict=True)


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "volumes"),
        # tests/unit/compose/test_keys.py has each of them
        pytest.param("pid: host", "pid", marks=pytest.mark.thorough),
        pytest.param("cap_add: [SYS_ADMIN]", "cap_add", marks=pytest.mark.thorough),
        pytest.param("network_mode: host", "network_mode", marks=pytest.mark.thorough),
        pytest.param("devices: [/dev/kvm]", "devices", marks=pytest.mark.thorough),
    ],
)
def test_what_would_widen_the_blast_radius_is_refused(
    line: str, named: str, home: Path, tasks: Path
) -> None:
    """Before anything runs, by the field's name and the service's."""
    (tasks / "compose.yaml").write_text(
        COMPOSE.replace("    hostname: front\n", f"    hostname: front\n    {line}\n")
    )
    before = set((home / "runs").glob("*"))
    code, said, errors = belljar_run(tasks, "shop")
    assert code == 4, errors
    assert f"service web: `{named}` is refused" in said["error"]["message"]
    assert set((home / "runs").glob("*")) == before


@pytest.mark.promise("2.8")
def test_a_program_in_the_cell_asks_the_evaluated_model(
    home: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its usual request to its usual host is answered by Inspect's model, without any network; the
    call stands on Inspect's transcript and in the ledger."""
    monkeypatch.delenv(
        "BELLJAR_POLICY"
    )  # it has no network, and would be the floor of the task's own
    code, said, errors = belljar_run(tasks, "asks")
    assert code == 0, errors[-4000:]
    (sample,) = said["samples"]
    log = log_of(Path(said["run_dir"]))
    assert sample["scores"]["said"] == "1", log.output.completion
    assert sample["verdict"] == "contained"
    calls = [event for event in log.events if isinstance(event, ModelEvent)]
    assert [call.input[-1].text for call in calls] == ["What is the answer?"]
    lines = list(read_events(Path(said["run_dir"])))
    (asked,) = [line for line in lines if line.kind is Kind.NETWORK_HTTP]
    assert asked.data["url"] == "https://api.openai.com/v1/chat/completions"


@pytest.mark.promise("2.8")
@pytest.mark.anyio
async def test_without_an_evaluation_the_model_is_down(home: Path, tasks: Path) -> None:
    """Who works in such a cell by hand gets the API's own error, at once; nothing tells the guest
    more."""
    question = '{"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}]}'
    ask = [
        "curl",
        "-s",
        "-w",
        "\n%{http_code}",
        "-H",
        "Authorization: Bearer sk-test",
        "-d",
        question,
    ]
    with start_run("test", "openai", []) as run:
        async with open_cell(load_policy(tasks / "openai.yaml"), run=run) as cell:
            output = await cell.exec([*ask, "https://api.openai.com/v1/chat/completions"])
    body, _, status = output.stdout.decode().rpartition("\n")
    assert status == "500"
    assert json.loads(body)["error"]["type"] == "server_error"
    assert "belljar" not in body.lower()
