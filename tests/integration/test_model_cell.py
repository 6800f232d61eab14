"""A real model in a cell: llama.cpp's server with SmolLM2, and servers of the author's own."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for
from tests.machine import PATIENCE_S
from tests.real_packages import JSON_SERVER, store_real_model

from belljar.model.weights import EXAMPLE_SHA256

pytestmark = [pytest.mark.vm, pytest.mark.slow]
DIGEST = EXAMPLE_SHA256
POLICY = f"""
belljar: 1
name: smollm2
risk: low
image: llama-cpp
resources: {{cpus: 2, memory: 1GiB, disk: 64MiB}}
model:
  weights: {{sha256: {DIGEST}}}
  context: 1024
  parallel: 2
"""
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import sandbox

@tool
def add():
    async def execute(a: int, b: int) -> int:
        '''Add two numbers.

        Args:
            a: One.
            b: The other.
        '''
        return a + b
    return execute

@solver
def ask():
    async def solve(state, generate):
        config = GenerateConfig(max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
        state.output = await get_model().generate(state.messages, config=config)
        assert state.output.completion and state.output.usage.output_tokens, state.output
        assert state.output.choices[0].logprobs.content, state.output.choices[0]
        return state
    return solve

@solver
def agent():
    async def solve(state, generate):
        body = '{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}'
        url = "https://api.openai.com/v1/chat/completions"
        words = ["curl", "-sS", "-H", "Content-Type: application/json", "-H", "Authorization: Bearer x"]
        result = await sandbox().exec([*words, "-d", body, url], timeout=300)
        state.output.completion = result.stdout + result.stderr
        return state
    return solve

def talking(cells, *solvers, target=""):
    samples = [Sample(id="one", input="Say hello.", target=target)]
    return Task(dataset=samples, solver=list(solvers), scorer=includes(), sandbox=("belljar", cells))

@task
def talk():
    return talking("cells.yaml", ask())

@task
def tools():
    return talking("cells.yaml", use_tools(add()), generate(), target="it is 3")

@solver
def graded():
    async def solve(state, generate):
        if get_model().api.__class__.__name__ != "MockLLM":
            await get_model().generate("Hi", tools=[add()])
        found = await get_model(role="grader").generate("Is it right?", tools=[add()])
        state.output.completion = found.message.tool_calls[0].function
        return state
    return solve

@task
def judged():
    return talking("cells.yaml", graded(), target="add")

@task
def program():
    return talking("range.yaml", agent(), target="chat.completion")
"""
TOOL_CALLER = (
    JSON_SERVER
    + """\
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last, tool = asked["messages"][-1], asked["tools"][0]["function"]["name"]
        call = {"id": "c1", "type": "function"}
        call["function"] = {"name": tool, "arguments": json.dumps({"a": 1, "b": 2})}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        if last["role"] == "tool":
            message = {"role": "assistant", "content": f"it is {last['content']}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.send({"id": "x", "object": "chat.completion", "created": 1, "model": asked["model"],
                   "choices": [choice], "usage": usage})
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
)
TOOL = {"type": "function", "function": {"name": "add"}}
RANGE = """
belljar: 1
risk: low
network:
  stand_ins:
    model: {kind: openai, names: [api.openai.com]}
"""


@pytest.fixture
def folder(
    prepared_home: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The working directory, with a task and a model's policy; the store has image and weights."""
    store_real_model(prepared_home, home)
    (tmp_path / "model.yaml").write_text(POLICY)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "cells.yaml").write_text("belljar: 1\nrisk: low\n")
    (tmp_path / "range.yaml").write_text(RANGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def events(belljar: Belljar, run: Path, kind: str) -> list[dict[str, Any]]:
    return [line["data"] for line in belljar.events(run) if line["kind"] == kind]


@pytest.mark.promise("2.8")
def test_an_evaluation_asks_a_model_in_a_cell(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """Streamed log probabilities and usage."""
    words = ["--model", "belljar/model.yaml", "-M", "stream=true", "--tier", "container", "--json"]
    ran = belljar("run", "task.py@talk", "task.py@program", *words, timeout_s=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr.decode()
    found = json.loads(ran.stdout)
    assert found["verdict"] == "contained"
    assert [row["error"] for row in found["samples"]] == ["", ""]
    assert [list(row["scores"].values()) for row in found["samples"]][-1] == ["C"]
    left = found["left_this_host"]
    assert (left["claim"], left["destinations"], left["unknown"]) == ("nothing", [], [])
    (model,) = found["model_cells"]
    assert (model["name"], model["weights"], model["tier"]) == ("smollm2", DIGEST, "container")
    assert (model["requests"], model["failed"]) == (2, 0)
    assert [each["phase"] for each in model["probes"]] == ["start", "end"]
    assert model["destroyed"]
    run = clean_after()
    started = events(belljar, run, "model.request.started")
    completed = events(belljar, run, "model.request.completed")
    assert len(started) == len(completed) == 2
    assert all(each["path"] == "/v1/chat/completions" for each in started)
    plan = json.loads(next(run.glob("plan*.json")).read_text())
    assert plan["network"] is None
    judged = belljar("verdict", str(run))
    assert judged.returncode == 0
    assert b"no network device" in judged.stdout


def write_script(folder: Path, belljar: Belljar, program: str, **fields: object) -> str:
    """Write the policy of a model whose server is this program; return its weights' digest."""
    (folder / "weights").write_text("of a script")
    added = json.loads(belljar("model", "add", "weights", "--json").stdout)
    server = ["python3", "-c", program, "{port}"]
    model = {"weights": {"sha256": added["digest"]}, "server": server}
    policy = {"belljar": 1, "risk": "low", "model": model, **fields}
    (folder / "model.yaml").write_text(json.dumps(policy))
    return str(added["digest"])


ROLE = ("--model-role", "grader=belljar/model.yaml")


def test_a_model_calls_tools_and_has_a_role(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """A server of the author's own, whose tool calls reach the task and whose answers come back."""
    write_script(folder, belljar, TOOL_CALLER)
    tasks = [f"task.py@{name}" for name in ("tools", "judged")]
    ran = belljar("run", *tasks, "--model", "belljar/model.yaml", *ROLE, "--json")
    assert ran.returncode == 0, ran.stderr.decode() + ran.stdout.decode()
    found = json.loads(ran.stdout)
    scores = [list(sample["scores"].values()) for sample in found["samples"]]
    assert (found["verdict"], scores) == ("contained", [["C"]] * 2)
    (model,) = found["model_cells"]
    assert (model["requests"], model["failed"], model["destroyed"]) == (4, 0, True)
    assert [each["verdict"] for each in model["probes"]] == ["contained", "contained"]
    clean_after()


POSTED = """\
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
"""
SLEEPS = "        import time; time.sleep(600)\n"


def until_asked(belljar: Belljar) -> tuple[subprocess.Popen[bytes], str]:
    """A run whose model is being asked, and its model's cell."""
    known, asked = set(belljar.runs()), list[str]()
    process = belljar.start("run", "task.py@tools", "--model", "belljar/model.yaml", "--json")

    def is_asked() -> bool:
        assert process.poll() is None
        new = [run / "ledger.jsonl" for run in set(belljar.runs()) - known]
        texts = [path.read_bytes() for path in new if path.exists()]
        for line in b"".join(texts).splitlines(keepends=True):
            if b'"model.request.started"' in line and line.endswith(b"\n"):
                asked.append(json.loads(line)["cell"])
        return bool(asked)

    wait_for(is_asked, "a request", within_s=PATIENCE_S)
    return process, asked[0]


def test_a_model_cell_that_ends_in_mid_request(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """As by an operator's kill: the run is void, says why, and waits for no more answers."""
    write_script(folder, belljar, TOOL_CALLER.replace(POSTED, POSTED + SLEEPS))
    process, cell = until_asked(belljar)
    assert belljar("kill", cell).returncode == 0
    said, _ = process.communicate(timeout=PATIENCE_S)
    found = json.loads(said)
    assert (process.returncode, found["verdict"]) == (2, "void")
    assert "model_cell_died" in [each["code"] for each in found["problems"]]
    assert found["model_cells"][0]["requests"] == 1
    clean_after()


class Served:
    def __init__(self, about: dict[str, str]) -> None:
        self.address, self.token, self.cell = about["address"], about["token"], about["cell"]

    def ask(self, body: object, *, token: str = "", path: str = "/chat/completions") -> Any:  # noqa: ANN401
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.address + path,
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            return json.load(answer)


class serving:  # noqa: N801 - read as a word at its use
    def __init__(self, belljar: Belljar, *options: str) -> None:
        self.process = belljar.start("model", "serve", "model.yaml", "--json", *options)

    def __enter__(self) -> Served:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        return Served(json.loads(line))

    def __exit__(self, *_error: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 130


def test_people_and_clients_are_served_with_a_token(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """On loopback: whoever lacks the token gets nothing, and only `/v1/` reaches the server."""
    digest = write_script(folder, belljar, TOOL_CALLER)
    asked = {"model": "m", "messages": [{"role": "tool", "content": "3"}], "tools": [TOOL]}
    with serving(belljar) as one:
        server = serving(belljar)
        other = server.__enter__()
        assert one.cell != other.cell
        assert one.ask(asked)["choices"][0]["message"]["content"] == "it is 3"
        for refused, status in (
            ({"token": "x"}, 401),
            ({"path": "/../slots"}, 404),
            ({"path": "//x"}, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                one.ask(asked, **refused)
            assert caught.value.code == status
            caught.value.close()
        assert other.ask(asked)["choices"]
        assert b"in use" in belljar("model", "rm", digest).stderr
        assert belljar("kill", other.cell).returncode == 0
        said, _ = server.process.communicate(timeout=PATIENCE_S)
        assert server.process.returncode == 5
        assert "killed by the operator" in json.loads(said)["error"]["message"]
        assert one.ask(asked)["choices"]
    assert belljar("model", "rm", digest).returncode == 0
    assert len(events(belljar, clean_after(), "model.request.started")) == 1
