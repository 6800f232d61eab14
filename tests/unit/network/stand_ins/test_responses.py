"""The API's endpoint `responses` in terms of chat."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.network.stand_ins.responses import calls_of, to_chat


def test_a_conversation_with_tools_becomes_messages() -> None:
    """Calls one after the other are one message; their results are tool messages; reasoning is left
    out."""
    items = [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "c"},
            ],
        },
    ]
    question = to_chat(
        {
            "model": "m",
            "input": items,
            "max_output_tokens": 9,
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {"type": "function", "name": "f"},
        }
    )
    assert [message["role"] for message in question["messages"]] == [
        "system",
        "assistant",
        "tool",
        "user",
    ]
    assert question["messages"][0]["content"] == "ab"
    assert [call["id"] for call in question["messages"][1]["tool_calls"]] == ["1", "2"]
    assert question["messages"][3]["content"] == "c"
    assert question["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert question["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert question["max_completion_tokens"] == 9


@pytest.mark.parametrize(
    "body",
    [
        {"input": 3},
        {"input": [3]},
        {"input": [{"type": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"input": "x", "previous_response_id": "r"},
        {"input": "x", "tools": [{"type": "web_search"}]},
    ],
)
def test_what_cannot_be_reported_in_chat_is_refused(body: dict[str, Any]) -> None:
    """Nothing is left out silently that would change the meaning."""
    with pytest.raises(ValueError, match=r"input|parameter|tools"):
        to_chat(body)


def test_calls_are_whole() -> None:
    """What is no call is left out; what lacks a part has it as empty text."""
    assert calls_of({"tool_calls": [None, {"function": 3}, {"function": {"name": "f"}}]}) == [
        {"id": "", "type": "function", "function": {"name": "f", "arguments": ""}}
    ]
    assert calls_of({"tool_calls": "x"}) == []
