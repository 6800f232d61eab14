"""A program's chat request becomes a call of the model; the arguments of hostile tool calls."""

from __future__ import annotations

import json
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai._util.json import to_json_safe
from inspect_ai.log import EvalSample, list_eval_logs, read_eval_log
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.model._call_tools import parse_tool_call
from inspect_ai.model._model import init_active_model
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams
from inspect_ai.util import JSONSchema, LimitExceededError
from inspect_ai.util._concurrency import init_concurrency
from tests.unit.harness.runs import MODEL, evaluated

from belljar.harness import model_api, model_boundary  # noqa: F401 - either puts the bounds in place
from belljar.harness.bridge import STOPPED, ModelBridge, message_of, read_request
from belljar.harness.session import Session

pytestmark = pytest.mark.anyio


def messages_of(messages: list[Any]) -> list[ChatMessage]:
    body = json.dumps({"messages": messages}).encode()
    return [message_of(each) for each in read_request(body).messages]


async def ask(bridge: ModelBridge, **request: Any) -> Any:  # noqa: ANN401 - JSON
    body = json.dumps(request).encode()
    return json.loads(await anyio.to_thread.run_sync(bridge, "chat", body))


def use(output: ModelOutput) -> None:
    output.usage = ModelUsage(
        input_tokens=1, output_tokens=2, total_tokens=3
    )  # else Inspect would count, with a file from the network
    init_concurrency()
    init_active_model(
        get_model("mockllm/model", custom_outputs=[output], memoize=False), GenerateConfig()
    )


async def test_tool_calls_go_both_ways() -> None:
    """In the loop and context of the sample, from another thread."""
    use(ModelOutput.for_tool_call("mockllm/model", "look", {"at": "x"}))
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    said = await ask(ModelBridge(), messages=[{"role": "user", "content": "?"}], tools=[tool])
    (choice,) = said["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], choice["finish_reason"]) == ("look", "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"at": "x"}
    use(ModelOutput.from_content("mockllm/model", "forty-two"))
    said = await ask(ModelBridge(), model="x", messages=[{"role": "user", "content": "?"}])
    (choice,) = said["choices"]
    assert choice["message"] == {"role": "assistant", "content": "forty-two"}
    assert choice["finish_reason"] == "stop"


async def test_no_question_outlives_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being asked is cancelled when the range ends, what is asked then is not passed on."""
    begun, cancelled = anyio.Event(), anyio.Event()
    refused: list[bool] = []

    async def never(_request: object) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async def asking() -> None:
        with pytest.raises(ValueError, match="the range has ended"):
            await ask(bridge, messages=[])
        refused.append(True)

    monkeypatch.setattr("belljar.harness.bridge._answer", never)
    bridge = ModelBridge()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asking)
            await begun.wait()
            bridge.close()
        assert cancelled.is_set()
        begun = anyio.Event()
        await asking()
    assert not begun.is_set()
    assert refused == [True, True]


STOPPING = """
from contextlib import suppress
import anyio
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from belljar.harness.bridge import ModelBridge

@solver
def asks():
    async def solve(state, generate):
        bridge = ModelBridge()
        with suppress(Exception):
            await anyio.to_thread.run_sync(bridge, "chat", b'{"messages": []}')
        await anyio.sleep(1)
        state.metadata["went_on"] = True
        return state
    return solve

@task
def one():
    return Task(dataset=[Sample(id="s", input="x")], solver=asks())
"""


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("why", [STOPPED, "a limit of the model's"])
def test_what_the_guard_stops_ends_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Though the request was a program's in the cell, which reads of an error alone."""

    async def stopped(_request: object) -> None:
        raise LimitExceededError("custom", value=1, limit=0, message=why)

    monkeypatch.setattr("belljar.harness.bridge._answer", stopped)
    (tmp_path / "task.py").write_text(STOPPING)
    outcome = evaluated(tmp_path, str(tmp_path / "task.py"), *MODEL)
    (info,) = list_eval_logs(str(outcome.path / "inspect"))
    (sample,) = read_eval_log(info).samples or []
    assert (sample.limit is not None) is (why == STOPPED)
    assert ("went_on" in sample.metadata) is (why != STOPPED)
    assert outcome.exit_code == 0


async def test_a_sample_asks_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program asks fills the transcript."""
    use(ModelOutput.from_content("mockllm/model", "yes"))
    bridge, request = ModelBridge(), {"messages": [{"role": "user", "content": "?"}]}
    monkeypatch.setattr("belljar.harness.bridge.MAX_REQUEST_BYTES", 4000)  # two objects: 2 KiB
    await ask(bridge, **request)
    with pytest.raises(ValueError, match="are over"):
        await ask(bridge, **request)


_ARGUMENTS = (
    '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[%s]"}}]}]}'
)


@pytest.mark.parametrize(
    ("request_of", "item"),
    [
        ('{"messages": [%s]}', '{"role": "user"}'),
        ('{"messages": [], "tools": [%s]}', '{"function": {}}'),
        (_ARGUMENTS, "[]"),
    ],
)
def test_a_request_of_many_objects_is_refused(request_of: str, item: str) -> None:
    """Of 4 MiB, Inspect would make a gigabyte of this host's memory and keep the evaluation's loop
    for 40 s."""
    body = request_of % ",".join([item] * ((4 << 20) // (len(item) + 1)))
    with pytest.raises(ValueError, match="too many objects"):
        read_request(body.encode())


def test_what_requests_take_beside_their_text_is_counted() -> None:
    """A history of many short messages takes far more than its bytes."""
    spent: list[int] = []
    body = json.dumps({"messages": [{"role": "user"}] * 5000}).encode()
    assert len(read_request(body, spent.append).messages) == 5000
    assert sum(spent) >= 5000 << 10


async def test_what_is_not_passed_on_is_refused() -> None:
    """An address in a request would have the host fetch it: only text of a chat goes on."""
    image = [{"type": "image_url", "image_url": {"url": "http://x/"}}]
    call = {"function": {"name": "f", "arguments": "[1]"}}
    messages: list[Any] = [
        "text",
        {"role": "stranger", "content": ""},
        {"role": "user", "content": image},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": [call]},
    ]
    for message in messages:
        with pytest.raises(ValueError, match=r"."):
            messages_of([message])
    for kind, body in (("other", b"{}"), ("chat", b"[]"), ("chat", b"\xff")):
        with pytest.raises(ValueError, match=r"."):
            ModelBridge()(kind, body)


def _nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_what_inspects_log_could_not_hold_is_refused() -> None:
    """One made-up call of a tool could end the evaluation, and no sample would be written."""
    for arguments in (_nested(300), '{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": NaN}'):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        request = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
        with pytest.raises(ValueError, match=r"."):
            messages_of(request["messages"])
        with pytest.raises(ValueError, match=r"."):
            read_request(b'{"messages": [], "x": ' + arguments.encode() + b"}")
    call = {"id": "1", "function": {"name": "f", "arguments": _nested(127)}}
    messages = messages_of([{"role": "assistant", "tool_calls": [call]}])
    assert to_json_safe(EvalSample(id=1, epoch=1, input="", target="", messages=messages))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "name"]), inner
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON)
def test_any_json_is_read_or_refused(messages: Any, tools: Any) -> None:  # noqa: ANN401 - JSON
    """Nothing but `ValueError`."""
    try:
        request = read_request(json.dumps({"messages": messages, "tools": tools}).encode())
        for each in request.messages:
            message_of(each)
    except ValueError:
        return


@pytest.mark.parametrize(
    "request_of",
    [
        '{"messages": [%s]}',
        '{"messages": [{"role": "user", "content": [%s]}]}',
        '{"messages": [{"role": "assistant", "tool_calls": [%s]}]}',
        '{"messages": [], "tools": [%s]}',
        '{"messages": [], "stop": [%s]}',
        '{"messages": [], "tools": [{"function": {"parameters": {"properties": {"a": {"anyOf": [%s]}}}}}]}',
    ],
)
def test_a_request_of_many_wrong_items_costs_no_more_than_one(request_of: str) -> None:
    """An error for each of them would be gigabytes of this host's memory."""
    body = (request_of % ",".join(["0"] * 50_000)).encode()
    with pytest.raises(ValueError, match="fields are wrong") as raised:
        read_request(body)
    assert int(str(raised.value).split()[3]) < 10


PARAMETERS = ToolParams(properties={"text": JSONSchema(type="string")})
TOOL = ToolInfo(name="say", description="Says it.", parameters=PARAMETERS)


def parsed(arguments: str) -> Any:  # noqa: ANN401 - a JSON value
    return parse_tool_call("1", "say", arguments, [TOOL]).arguments.get("text")


BOMBS = {
    "aliases": "[&a0 [x]"
    + "".join(f", &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
    + "]",
    "merges": "- &a {x: 1}\n- {<<: *a}",
    "a long number": "0x" + "f" * 16_000,
    "no date": "2001-99-99",
    "a key of lists": "? [a]\n: b",
    "much": "- a\n" * 4_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_grows_or_takes_long_stays_a_text(name: str) -> None:
    """What comes of it is never larger than what was sent, and can be written to the log."""
    began = time.monotonic()
    value = parsed(BOMBS[name])
    assert value == BOMBS[name].strip()
    assert len(json.dumps(value)) < 2 * len(BOMBS[name])
    assert time.monotonic() - began < 10


def test_other_arguments_are_what_they_were() -> None:
    """Text, numbers, lists, dates, no YAML at all, and JSON objects, as in Inspect alone."""
    for arguments, value in (
        ("ls -l && cat a | grep '*'", "ls -l && cat a | grep '*'"),
        ("7", 7),
        ("[a, true]", ["a", True]),
        ("2001-01-01", date(2001, 1, 1)),
        ("a: [b", "a: [b"),
        ('{"text": "x"}', "x"),
    ):
        assert parsed(arguments) == value


@pytest.mark.anyio
async def test_arguments_that_are_nested_too_deeply_end_their_sample_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model chooses them, and must not choose the end of the run: they are not sent."""
    session.ensure_run()
    deep: object = 1
    for _ in range(900):
        deep = {"a": deep}
    let_out: Any = lambda part, **_: part.data  # noqa: E731 - it finds nothing
    cell = SimpleNamespace(id="c", guard=SimpleNamespace(passed={}, let_out=let_out))
    monkeypatch.setattr(model_boundary, "sample_environment", lambda: SimpleNamespace(cell=cell))
    call = ToolCall(id="1", function="f", arguments={"a": deep})
    data: Any = SimpleNamespace(
        model_name="m",
        input=[ChatMessageAssistant(content="", tool_calls=[call])],
        tools=[],
        config=GenerateConfig(),
        tool_choice=None,
    )
    with pytest.raises(LimitExceededError):
        await model_boundary.LookAtMessages().on_before_model_generate(data)
    assert session.stopped is None
