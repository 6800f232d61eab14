"""Programs' chat requests to the stand-in `openai` become calls of the evaluated model."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Annotated, Any, Final, Literal, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
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
from pydantic import BaseModel, BeforeValidator, FailFast, ValidationError
from typing_extensions import TypeAliasType

from belljar.network.stand_ins.web import parse_json
from belljar.units import printable

logger = logging.getLogger(__name__)
CHAT: Final = "chat"
# The limit by which the guard ends a sample, whoever asked the model
STOPPED: Final = "the policy's guard found protected data in what was to be sent to the model"
MAX_REQUEST_BYTES: Final = 256 << 20  # of a sample: each is in the host's memory and log
MAX_OBJECTS_BYTES: Final = 16 << 20  # of one, beside its text: 0.2 ms in the loop for each object
# What an object takes, most of which become one of Inspect's, and any value.
_OBJECT_BYTES, _VALUE_BYTES = 1 << 10, 64
_CHOICES: Final[Mapping[str, ToolChoice]] = {"auto": "auto", "required": "any", "none": "none"}
# Inspect's reasons in OpenAI's words; of others a client knows `stop` alone.
_REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("max_tokens", "model_length"), "length"),
    **{name: name for name in ("tool_calls", "content_filter")},
}


class ModelBridge:
    def __init__(self) -> None:
        self._context = copy_context()
        self._token = anyio.lowlevel.current_token()
        self._request_bytes = 0
        self._reading = Lock()
        self._open: set[anyio.CancelScope] = set()
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        """Handle a request, from any thread. Raises `ValueError`."""
        if kind != CHAT:
            raise ValueError(f"requests of the kind {printable(kind)} are not supported")
        with self._reading:  # one at a time: each takes many times its size
            self._spend(len(body))
            request = read_request(body, self._spend)
        try:
            answer = self._context.copy().run(  # two threads can't enter one context
                partial(anyio.from_thread.run, self._generate, request, token=self._token)
            )
        except anyio.RunFinishedError as error:
            raise ValueError("the evaluation has ended") from error
        return json.dumps(answer).encode()

    def _spend(self, size_bytes: int) -> None:
        self._request_bytes += size_bytes
        if self._request_bytes > MAX_REQUEST_BYTES:
            what = f"the requests of this sample's programs are over {MAX_REQUEST_BYTES} bytes"
            raise ValueError(what)

    def close(self) -> None:
        self._closed = True
        for scope in self._open:
            scope.cancel()

    async def _generate(self, request: ChatRequest) -> dict[str, Any]:
        with anyio.CancelScope() as scope:
            if self._closed:
                scope.cancel()
            self._open.add(scope)
            try:
                await anyio.lowlevel.checkpoint()  # a request that came after `close` ends here
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


_T = TypeVar("_T")
# A guest's: an error for each of two million wrong items would be gigabytes.
_Items = TypeAliasType("_Items", Annotated[list[_T], FailFast()], type_params=(_T,))
_MAX_PARAMETERS_CHARS: Final = 1 << 16  # few enough for an error of each entry


def _check_small(parameters: object) -> object:
    if len(json.dumps(parameters)) > _MAX_PARAMETERS_CHARS:
        raise ValueError("a tool's parameters are too long")
    return parameters


class _TextPart(BaseModel):
    type: Literal["text"]  # only text is passed on to the model
    text: str = ""


class _Function(BaseModel):
    name: str = ""
    arguments: str | None = None  # JSON in a text
    description: str | None = None
    parameters: Annotated[ToolParams | None, BeforeValidator(_check_small)] = None


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | _Items[_TextPart] | None = None
    tool_calls: _Items[_Call] | None = None
    tool_call_id: str = ""


class ChatRequest(BaseModel):
    messages: _Items[_Message]
    tools: _Items[_Call] | None = None
    tool_choice: str | _Call | None = None
    stop: str | _Items[str] | None = None
    max_tokens: int | None = None  # the older and the newer name of one limit
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


def read_request(body: bytes, spend: Callable[[int], None] = lambda _: None) -> ChatRequest:
    """`spend` takes the memory beside the text. Raises `ValueError`."""
    value = _json(body)
    if (beside := _bytes_beside(value)) > MAX_OBJECTS_BYTES:
        raise ValueError("a request of too many objects")
    spend(beside)
    try:
        return ChatRequest.model_validate(value)
    except ValidationError as error:  # its text is as long as the guest chooses
        what = f"no chat request: {error.error_count()} of its fields are wrong"
        raise ValueError(what) from None


def _json(data: bytes | str) -> Any:  # noqa: ANN401 - a guest's JSON
    value = parse_json(data)
    # Refuse what would end the evaluation: Inspect's log can't represent 250 levels or surrogates.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _bytes_beside(value: object) -> int:
    """Estimate what a request's objects take of this host's memory."""
    total, level = 0, [value]
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        arguments = "".join(str(each.get("arguments", "")) for each in objects)
        total += _VALUE_BYTES * (len(level) + sum(map(arguments.count, "[{,")))
        total += _OBJECT_BYTES * len(objects)
        lists = (each for each in level if isinstance(each, list))
        level = [x for each in (*lists, *(each.values() for each in objects)) for x in each]
    return total


async def _answer(request: ChatRequest) -> dict[str, Any]:
    wanted = request.tool_choice
    choice: ToolChoice | None = (
        ToolFunction(name=wanted.function.name)
        if isinstance(wanted, _Call)
        else _CHOICES.get(wanted or "")
    )
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    numbers = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
    output = await get_model().generate(
        [message_of(each) for each in request.messages],
        tools=[
            ToolInfo(
                name=each.function.name,
                description=each.function.description or each.function.name,
                parameters=each.function.parameters or ToolParams(),
            )
            for each in request.tools or ()
        ],
        tool_choice=choice,
        config=GenerateConfig(
            **{name: getattr(request, name) for name in numbers},
            max_tokens=request.max_completion_tokens or request.max_tokens,
            stop_seqs=stop[:16] if stop else None,
        ),
    )
    return _completion_of(output)


def message_of(message: _Message) -> ChatMessage:
    """Raises `ValueError`."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    match message.role:
        case "system" | "developer":
            return ChatMessageSystem(content=text)
        case "user":
            return ChatMessageUser(content=text)
        case "tool":
            return ChatMessageTool(content=text, tool_call_id=message.tool_call_id)
    calls = []
    for call in message.tool_calls or ():
        arguments = _json(call.function.arguments or "{}")
        if not isinstance(arguments, dict):
            raise ValueError("a tool call's arguments are an object")
        calls.append(ToolCall(id=call.id, function=call.function.name, arguments=arguments))
    return ChatMessageAssistant(content=text, tool_calls=calls or None)


def _completion_of(output: ModelOutput) -> dict[str, Any]:
    choices = []
    for index, choice in enumerate(output.choices):
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
        reason = _REASONS.get(choice.stop_reason, "stop")
        choices.append({"index": index, "message": message, "finish_reason": reason})
    made = {"object": "chat.completion", "created": int(time.time()), "choices": choices}
    if (usage := output.usage) is not None:
        total = usage.input_tokens + usage.output_tokens
        counted = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        made["usage"] = {**counted, "total_tokens": total}
    return made
