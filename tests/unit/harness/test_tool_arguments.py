"""Arguments of tool calls that a hostile model or server chose."""

from __future__ import annotations

import json
import time
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from inspect_ai.model import ChatMessageAssistant, GenerateConfig
from inspect_ai.model._call_tools import parse_tool_call
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams
from inspect_ai.util import JSONSchema, LimitExceededError

from belljar.cell.guarded import LetOut
from belljar.harness import model_api, model_boundary  # noqa: F401 - either puts the bounds in place
from belljar.harness.session import Session

PARAMETERS = ToolParams(properties={"text": JSONSchema(type="string")})
TOOL = ToolInfo(name="say", description="Says it.", parameters=PARAMETERS)


def parsed(arguments: str) -> Any:  # noqa: ANN401 - a JSON value
    """As each provider of Inspect has it."""
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
    let_out: Any = lambda part, **_: LetOut(data=part.data)  # noqa: E731 - it finds nothing
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
