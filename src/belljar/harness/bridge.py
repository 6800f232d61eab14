"""Programs' chat requests to the stand-in `openai` become calls of the evaluated model.

They are on the sample's transcript. Only text, tools and a few numbers are used, each checked.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Literal

import anyio
import anyio.from_thread
import anyio.lowlevel
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo, ToolParams
from inspect_ai.util import LimitExceededError

from belljar.harness.model_boundary import STOPPED
from belljar.network.stand_ins.web import parse_json
from belljar.units import printable

logger = logging.getLogger(__name__)
CHAT: Final = "chat"
# Of all requests of a sample: each is in the host's memory and log, also when the model refuses.
MAX_REQUEST_BYTES: Final = 256 << 20
# OpenAI's names, of which the first two are the older and the newer of one limit.
_NUMBERS: Final = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# OpenAI's `required` is Inspect's `any`.
_TOOL_CHOICES: Final[Mapping[str, Literal["auto", "any", "none"]]] = {
    "auto": "auto",
    "required": "any",
    "none": "none",
}
# Inspect's reasons in OpenAI's words; a client knows no others.
_REASONS: Final[Mapping[str, str]] = {
    "stop": "stop",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}


class ModelBridge:
    """Sends programs' chat requests to the sample's model."""

    def __init__(self) -> None:
        self._context = copy_context()
        self._token = anyio.lowlevel.current_token()
        self._request_bytes = 0
        self._open: set[anyio.CancelScope] = set()
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        """Handle a request, from any thread.

        Raises `ValueError` for an invalid request, beyond `MAX_REQUEST_BYTES`, and after the end.
        """
        if kind != CHAT:
            raise ValueError(f"requests of the kind {printable(kind)} are not supported")
        self._request_bytes += len(body)
        if self._request_bytes > MAX_REQUEST_BYTES:
            raise ValueError(
                f"the requests of this sample's programs are over {MAX_REQUEST_BYTES} bytes"
            )
        request = read_request(body)
        try:
            # A context can't be entered by two threads at once, so each request has a copy.
            answer = self._context.copy().run(
                partial(anyio.from_thread.run, self._generate, request, token=self._token)
            )
        except anyio.RunFinishedError as error:
            raise ValueError("the evaluation has ended") from error
        return json.dumps(answer).encode()

    def close(self) -> None:
        """Cancel open requests and refuse more. Idempotent."""
        self._closed = True
        for scope in self._open:
            scope.cancel()

    async def _generate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with anyio.CancelScope() as scope:
            if self._closed:
                scope.cancel()
            self._open.add(scope)
            try:
                # A request that came after `close` ends here.
                await anyio.lowlevel.checkpoint()
                return await _answer(request)
            except LimitExceededError as error:
                active = sample_active()
                if error.message == STOPPED and active is not None:
                    with suppress(RuntimeError):  # the sample has not begun
                        active.limit_exceeded(error)  # raised in this task it would end nothing
                raise
            except Exception as error:
                # The program in the cell learns only that its API is down; the transcript has why.
                why = printable(repr(error), max_chars=500)
                logger.warning("a program's request to the model failed: %s", why)
                raise
            finally:
                self._open.discard(scope)
        raise ValueError("the range has ended")


def read_request(body: bytes) -> dict[str, Any]:
    """A chat request as JSON. Raises `ValueError`."""
    request = _json(body)
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise ValueError("no chat request: it has no messages")
    return request


def _json(data: bytes | str) -> Any:  # noqa: ANN401 - a guest's JSON
    value = parse_json(data)
    # Refuse what would end the evaluation: Inspect's log can't represent 250 levels or surrogates.
    json.dumps(value, ensure_ascii=False).encode()
    return value


async def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    wanted = request.get("tool_choice")
    choice: ToolChoice | None = _TOOL_CHOICES.get(wanted) if isinstance(wanted, str) else None
    if isinstance(wanted, Mapping) and isinstance(wanted.get("function"), Mapping):
        choice = ToolFunction(name=str(wanted["function"].get("name", "")))
    output = await get_model().generate(
        messages_of(request["messages"]),
        tools=tools_of(request.get("tools") or ()),
        tool_choice=choice,
        config=_config(request),
    )
    return completion_of(output)


def messages_of(messages: Sequence[Any]) -> list[ChatMessage]:
    """The conversation in Inspect's types. Raises `ValueError`."""
    return [_message(message) for message in messages]


def _message(message: Any) -> ChatMessage:  # noqa: ANN401 - a guest's JSON
    if not isinstance(message, Mapping):
        raise ValueError("a message is an object")
    text = _text(message.get("content"))
    match message.get("role"):
        case "system" | "developer":
            return ChatMessageSystem(content=text)
        case "user":
            return ChatMessageUser(content=text)
        case "assistant":
            calls = []
            for call in message.get("tool_calls") or ():
                function = call.get("function") if isinstance(call, Mapping) else None
                if not isinstance(function, Mapping):
                    raise ValueError("a tool call names a function")
                # In OpenAI's API arguments are text that holds JSON.
                arguments = _json(str(function.get("arguments") or "{}"))
                if not isinstance(arguments, dict):
                    raise ValueError("a tool call's arguments are an object")
                name = str(function.get("name", ""))
                calls.append(
                    ToolCall(id=str(call.get("id", "")), function=name, arguments=arguments)
                )
            return ChatMessageAssistant(content=text, tool_calls=calls or None)
        case "tool":
            return ChatMessageTool(content=text, tool_call_id=str(message.get("tool_call_id", "")))
    raise ValueError("a message has one of the roles system, developer, user, assistant, tool")


def _text(content: Any) -> str:  # noqa: ANN401 - a guest's JSON
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    ):
        return "".join(str(part.get("text", "")) for part in content)
    raise ValueError("only text is passed on to the model")


def tools_of(tools: Sequence[Any]) -> list[ToolInfo]:
    """The tools in Inspect's types. Raises `ValueError`."""
    found = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError("a tool is a function")
        name = str(function.get("name", ""))
        written = function.get("parameters") or {"type": "object", "properties": {}}
        parameters = ToolParams.model_validate(written)
        description = str(function.get("description") or name)
        found.append(ToolInfo(name=name, description=description, parameters=parameters))
    return found


def _config(request: Mapping[str, Any]) -> GenerateConfig:
    given: dict[str, Any] = {
        ours: request[name]
        for name, ours in _NUMBERS.items()
        # In Python `true` of JSON is an int, too.
        if isinstance(request.get(name), (int, float)) and not isinstance(request.get(name), bool)
    }
    stop = request.get("stop")
    if isinstance(stop, (str, list)):
        given["stop_seqs"] = [stop] if isinstance(stop, str) else [str(word) for word in stop[:16]]
    return GenerateConfig(**given)


def completion_of(output: ModelOutput) -> dict[str, Any]:
    """The chat completion; the stand-in adds a model's name."""
    usage = output.usage
    counted = (
        {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        if usage
        else {}
    )
    return {
        "object": "chat.completion",
        "created": int(time.time()),
        "choices": [_choice(index, choice) for index, choice in enumerate(output.choices)],
        **({"usage": {**counted, "total_tokens": sum(counted.values())}} if counted else {}),
    }


def _choice(index: int, choice: ChatCompletionChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.message.text or None}
    if choice.message.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
            }
            for call in choice.message.tool_calls
        ]
    return {
        "index": index,
        "message": message,
        "finish_reason": _REASONS.get(choice.stop_reason, "stop"),
    }
