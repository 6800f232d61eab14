"""`/v1/responses` in terms of chat; nothing is kept, only functions pass as tools. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_PASSED: Final = ("model", "temperature", "top_p", "parallel_tool_calls", "user", "metadata")


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `ValueError` with the API's words."""
    for name in ("previous_response_id", "conversation", "background"):
        if body.get(name):
            raise ValueError(f"Unsupported parameter: '{name}' is not supported with this model.")
    question = {name: body[name] for name in _PASSED if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        question["max_completion_tokens"] = body["max_output_tokens"]
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    question["messages"] = [*system, *_messages(body.get("input"))]
    if body.get("tools"):
        question["tools"] = _tools(body["tools"])
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if choice is not None:
        question["tool_choice"] = choice
    return question


def _messages(value: object) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("Missing required parameter: 'input'.")
    found: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        message = _message(item, index)
        if message is None:
            continue
        if message.get("tool_calls") and found and found[-1].get("tool_calls"):
            found[-1]["tool_calls"] += message["tool_calls"]
        else:
            found.append(message)
    return found


def _message(item: object, index: int) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        raise ValueError(f"Invalid type for 'input[{index}]': expected an object.")
    match item.get("type", "message"):
        case "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            return {"role": role, "content": _content(item.get("content"), index)}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            output = _content(item.get("output"), index)
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case "reasoning":
            return None
    raise ValueError(f"Invalid value for 'input[{index}].type'.")


def _content(value: object, index: int) -> str:
    if isinstance(value, str):
        return value
    texts = ("input_text", "output_text", "text")
    if not isinstance(value, list) or not all(
        isinstance(part, dict) and part.get("type") in texts for part in value
    ):
        raise ValueError(f"Invalid value for 'input[{index}].content': only text is supported.")
    return "".join(str(part.get("text", "")) for part in value)


def _tools(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("Invalid type for 'tools': expected an array of objects.")
    fields = ("name", "description", "parameters", "strict")
    found = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            only = "only 'function' is supported with this model"
            raise ValueError(f"Invalid value for 'tools[{index}].type': {only}.")
        function = {name: tool[name] for name in fields if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    return found


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a completion's message, each whole."""
    found = message.get("tool_calls")
    whole = []
    for call in found if isinstance(found, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            known = {name: str(function.get(name, "")) for name in ("name", "arguments")}
            whole.append({"id": str(call.get("id", "")), "type": "function", "function": known})
    return whole


def from_chat(
    completion: Mapping[str, Any], body: Mapping[str, Any], random: Callable[[int], bytes]
) -> dict[str, Any]:
    """The response for a completion."""
    message = completion["choices"][0]["message"]
    output: list[dict[str, Any]] = []
    if isinstance(message.get("content"), str):
        part = {
            "type": "output_text",
            "text": message["content"],
            "annotations": [],
            "logprobs": [],
        }
        item = {"type": "message", "id": f"msg_{random(24).hex()}", "status": "completed"}
        output.append({**item, "role": "assistant", "content": [part]})
    for call in calls_of(message):
        item = {"type": "function_call", "id": f"fc_{random(24).hex()}", "status": "completed"}
        output.append({**item, "call_id": call["id"], **call["function"]})
    given: dict[str, Any] = {
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }
    return {
        "id": f"resp_{random(24).hex()}",
        "object": "response",
        "created_at": completion["created"],
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": completion["model"],
        "output": output,
        "previous_response_id": None,
        **{name: body.get(name, usual) for name, usual in given.items()},
        "usage": _usage(completion.get("usage")),
        "metadata": body.get("metadata") or {},
    }


def _usage(usage: object) -> dict[str, Any]:
    known = usage if isinstance(usage, dict) else {}
    counts = [known.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    asked, made, total = (count if type(count) is int else 0 for count in counts)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }


def events(response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The response as the events of a stream."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    bare: list[dict[str, Any]] = [
        {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
    ]
    for index, item in enumerate(response["output"]):
        bare += _item_events(item, index)
    bare.append({"type": "response.completed", "response": response})
    for number, event in enumerate(bare):
        yield {**event, "sequence_number": number}


def _item_events(item: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    is_text = item["type"] == "message"
    empty = {**item, "status": "in_progress", **({"content": []} if is_text else {"arguments": ""})}
    at: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    found: list[dict[str, Any]] = []
    usual: dict[str, Any] = {"logprobs": []} if is_text else {}
    if is_text:
        part, at = item["content"][0], {**at, "content_index": 0}
        kind, text, end = "output_text", {"text": part["text"], "logprobs": []}, part["text"]
        found.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
    else:
        kind, end = "function_call_arguments", item["arguments"]
        text = {"name": item["name"], "arguments": end}
    found.append({"type": f"response.{kind}.delta", **at, "delta": end, **usual})
    found.append({"type": f"response.{kind}.done", **at, **text})
    if is_text:
        found.append({"type": "response.content_part.done", **at, "part": part})
    around = {"output_index": index}
    return [
        {"type": "response.output_item.added", **around, "item": empty},
        *found,
        {"type": "response.output_item.done", **around, "item": item},
    ]
