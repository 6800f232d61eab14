"""A real model in a cell: llama.cpp's server with SmolLM2, asked by Inspect, by people, by a
client."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Belljar
from tests.machine import link_or_copy
from tests.real_packages import real_model

from belljar.model.fetch import PUBLISHED

pytestmark = [pytest.mark.vm, pytest.mark.slow]
DIGEST = PUBLISHED["smollm2"].sha256
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
from inspect_ai.solver import solver
from inspect_ai.tool import ToolFunction, tool

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
        first = await get_model().generate(state.messages, config=config)
        assert first.completion and first.usage.output_tokens, first
        assert first.choices[0].logprobs.content, first.choices[0]
        if state.sample_id == "tools":
            state.output = await get_model().generate("Add 1 and 2.", tools=[add()],
                tool_choice=ToolFunction("add"), config=GenerateConfig(max_tokens=40, temperature=0))
            (call,) = state.output.message.tool_calls
            assert set(call.arguments) == {"a", "b"}, call
        return state
    return solve

@task
def talk():
    samples = [Sample(id=name, input="Say hello.", target="") for name in ("plain", "tools")]
    return Task(dataset=samples, solver=ask(), scorer=includes(), sandbox=("belljar", "cells.yaml"))
"""


@pytest.fixture
def folder(
    prepared_home: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The working directory, with a task and a model's policy; the store has image and weights."""
    real_model(prepared_home)
    for name in ("images", "weights"):
        for entry in (prepared_home / name).iterdir():
            if not (home / name / entry.name).exists() and not entry.name.startswith("."):
                shutil.copytree(entry, home / name / entry.name, copy_function=link_or_copy)
    shutil.copy2(prepared_home / "image-names.json", home / "image-names.json")
    (tmp_path / "model.yaml").write_text(POLICY)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "cells.yaml").write_text("belljar: 1\nrisk: low\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def events(belljar: Belljar, run: Path, kind: str) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [line["data"] for line in belljar.events(run) if line["kind"] == kind]


@pytest.mark.parametrize("tier", ["container", "gvisor"])
def test_an_evaluation_asks_a_model_in_a_cell(
    tier: str, folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """Tools, log probabilities, usage; one model cell, in no lower tier than the samples', probed,
    in the verdict and destroyed; each request is on record. Streamed in the second tier."""
    stream = ["-M", "stream=true"] if tier == "gvisor" else []
    ran = belljar(
        *("run", "task.py", "--model", "belljar/model.yaml", "--tier", tier, "--json", *stream),
        timeout_s=500,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found = json.loads(ran.stdout)
    assert found["verdict"] == "contained"
    assert [row["error"] for row in found["samples"]] == ["", ""]
    (model,) = found["model_cells"]
    assert (model["name"], model["weights"], model["tier"]) == ("smollm2", DIGEST, tier)
    assert (model["requests"], model["failed"]) == (3, 0)
    assert model["completion_tokens"] > 0
    assert [each["phase"] for each in model["probes"]] == ["start", "end"]
    assert model["destroyed"]
    run = clean_after()
    started = events(belljar, run, "model.request.started")
    completed = events(belljar, run, "model.request.completed")
    assert len(started) == len(completed) == 3
    assert all(each["path"] == "/v1/chat/completions" for each in started)
    plan = json.loads(next(run.glob("plan*.json")).read_text())
    assert plan["network"] is None
    judged = belljar("verdict", str(run))
    assert judged.returncode == 0
    assert b"no network device" in judged.stdout


def test_inspect_eval_finds_the_model_too(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """Without Belljar's command line."""
    argv = [sys.executable, "-m", "inspect_ai", "eval", "task.py", "--model", "belljar/model.yaml"]
    ran = subprocess.run(
        [*argv, "--log-dir", "logs", "--display", "plain", "--limit", "1"],
        env=belljar.environment(),
        capture_output=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    run = clean_after()
    assert len(events(belljar, run, "model.request.completed")) == 1
    verdict = json.loads(belljar("verdict", str(run), "--json").stdout)
    assert verdict["verdict"] == "contained"


def test_a_microvm_serves_the_same_model(folder: Path, belljar: Belljar) -> None:
    """Weights come by a second disk; a token of an emulated processor takes seconds."""
    (folder / "model.yaml").write_text(POLICY.replace("cpus: 2", "cpus: 1"))
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    with serving(belljar, "--tier", "microvm") as at:
        answer = at.ask(asked)
    assert answer["usage"]["completion_tokens"] == 1


def test_a_hostile_template_is_the_cells_problem(folder: Path, belljar: Belljar) -> None:
    """Weights whose chat template is no template, or never ends: an error of that request or start,
    nothing else."""
    weights = (Path(belljar.home) / "weights" / DIGEST / "data").iterdir()
    content = next(weights).read_bytes()
    start = content.index(b"{% for message in messages")
    hostile = b"{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}"
    end = content.index(b"{% endif %}", start) + len(b"{% endif %}")
    padded = hostile.ljust(end - start)[: end - start]
    (folder / "hostile.gguf").write_bytes(content[:start] + padded + content[end:])
    added = json.loads(belljar("model", "add", "hostile.gguf", "--json").stdout)
    policy = POLICY.replace(DIGEST, added["digest"]).replace(
        "model:", "model:\n  start_timeout: 20s"
    )
    (folder / "model.yaml").write_text(policy)
    ran = belljar("run", "task.py", "--model", "belljar/model.yaml", "--limit", "1", timeout_s=300)
    assert ran.returncode != 0
    assert belljar.leftovers() == []


def test_a_wrong_digest_starts_nothing(folder: Path, belljar: Belljar) -> None:
    """No run directory is made; the message says what to do."""
    before = belljar.runs()
    (folder / "model.yaml").write_text(POLICY.replace(DIGEST, "0" * 64))
    ran = belljar("run", "task.py", "--model", "belljar/model.yaml")
    assert ran.returncode == 3
    assert b"belljar model" in ran.stderr
    assert belljar.runs() == before


def test_an_interrupted_evaluation_leaves_nothing(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """Ctrl-C while the model writes: its cell is destroyed with proof, and the record ends."""
    (folder / "task.py").write_text(
        TASK.replace("max_tokens=4", "max_tokens=900").replace("temperature=0", "temperature=1")
    )
    process = belljar.start("run", "task.py", "--model", "belljar/model.yaml")
    assert process.stderr is not None
    for line in process.stderr:
        if b"the model answers" in line:
            break
    for run in belljar.runs()[-1:]:
        while not events(belljar, run, "model.request.started"):
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    run = clean_after()
    assert events(belljar, run, "run.finished")[0]["outcome"] == "interrupted"
    assert len(events(belljar, run, "cell.destroyed")) == len(events(belljar, run, "cell.planned"))


class Served:
    """A client of `belljar model serve`."""

    def __init__(self, about: dict[str, str]) -> None:
        self.address, self.token = about["address"], about["token"]

    def ask(self, body: object, *, token: str = "", path: str = "/chat/completions") -> Any:  # noqa: ANN401
        """The answer's JSON."""
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.address + path,
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=500) as answer:  # noqa: S310
            return json.load(answer)


class serving:  # noqa: N801 - read as a word at its use
    """`belljar model serve`, ended with Ctrl-C."""

    def __init__(self, belljar: Belljar, *options: str) -> None:
        self.process = belljar.start("model", "serve", "model.yaml", "--json", *options)

    def __enter__(self) -> Served:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        return Served(json.loads(line))

    def __exit__(self, *_error: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=120) == 130


def test_people_and_clients_are_served_with_a_token(
    folder: Path, belljar: Belljar, clean_after: Callable[[], Path]
) -> None:
    """On loopback: whoever lacks the token gets nothing, and only `/v1/` reaches the server."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    with serving(belljar) as at:
        assert at.ask(asked)["choices"]
        for refused, status in (({"token": "x"}, 401), ({"path": "/../slots"}, 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                at.ask(asked, **refused)
            assert caught.value.code == status
    assert len(events(belljar, clean_after(), "model.request.started")) == 1
