"""What is sent to a model, and can't be looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from inspect_ai.model import ChatMessageAssistant, GenerateConfig
from inspect_ai.tool import ToolCall
from inspect_ai.util import LimitExceededError

from belljar.cell.guarded import LetOut
from belljar.harness import model_boundary
from belljar.harness.session import Session


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
