"""The model boundary: data for a model's provider is scanned and recorded first.

Importing it installs it: as a hook, and in Inspect's two calls without one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio.to_thread
from inspect_ai.hooks import BeforeModelGenerate, Hooks, RunEnd, hooks
from inspect_ai.model import (
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    ContentToolUse,
    Model,
    ModelAPI,
    _call_tools,
    get_model,
)
from inspect_ai.util import LimitExceededError
from inspect_ai.util._sandbox.context import sandbox_environments_context_var
from pydantic import BaseModel
from typing_extensions import override

from belljar.cell.guarded import GuardedRecorder
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness.bridge import STOPPED
from belljar.harness.sample import SampleCell
from belljar.harness.session import current_session
from belljar.policy.guarding import Place
from belljar.signals.observe import MIN_SCANNED_BYTES, Carried
from belljar.signals.values import Channel
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig
    from inspect_ai.tool import ToolInfo

TOO_DEEP: Final = "what was to be sent to the model is nested too deeply to be looked at"
_called: ContextVar[str] = ContextVar("belljar_called_model", default="")  # for the record
_READABLE: Final = (str, ContentText, ContentReasoning, ContentToolUse)


@hooks(name="belljar_model_boundary", description="Looks at what is sent to a model's provider.")
class LookAtMessages(Hooks):
    @override
    def enabled(self) -> bool:
        return current_session().run is not None

    @override
    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        choice = getattr(data.tool_choice, "name", "")  # a guest may have chosen any of it
        rest = {**data.config.model_dump(exclude_none=True), "tool_choice": choice}
        await _look_at(data.model_name, data.input, data.tools, rest)

    @override
    async def on_run_end(self, data: RunEnd) -> None:
        session = current_session()
        if session.models.opened and not session.users:  # an evaluation without our sandboxes
            await session.leave()


async def _look_at(
    model: str, messages: list[ChatMessage], tools: list[ToolInfo], rest: Mapping[str, Any]
) -> None:
    """Scan what a model is about to be sent, and put what may leave in its place; record it.

    Raises `LimitExceededError` when the sample ends: by the policy, or as this failed.
    """
    session, environment = current_session(), sample_environment()
    if session.run is None:  # a task's module, which is being loaded, or no cell anywhere
        return
    try:
        model = printable(model, max_chars=200)
        cell = None if environment is None else environment.cell
        guard = None if cell is None else cell.guard
        _called.set(model)
        if cell is not None and guard is not None:
            for index, message in enumerate(messages):
                sent = await _scanned(message, guard, cell.id)
                messages[index] = cast("ChatMessage", sent)
            for index, tool in enumerate(tools):
                sent = await _scanned(tool, guard, cell.id, "model.tools")
                tools[index] = cast("ToolInfo", sent)
            # Settings can't be replaced on the way, so what is found there ends the sample.
            if await _scanned(rest, guard, cell.id, "model.config") != rest:
                raise LimitExceededError("custom", value=1, limit=0, message=STOPPED)
        lists = (each.content for each in messages if not isinstance(each.content, str))
        is_text = all(isinstance(each, _READABLE) for contents in lists for each in contents)
        parts = [each.model_dump(exclude_none=True) for each in (*messages, *tools)]
        # About as its provider sends it
        text = json.dumps([*parts, rest], ensure_ascii=False, default=str)
        address = ""  # its provider's default, or another model's
        with suppress(Exception):  # no model is being evaluated, or its address is none
            if str(active := get_model()) == model:
                # Never a password
                address = urlsplit(active.api.base_url or "").netloc.rpartition("@")[2]
        about: dict[str, JsonValue] = {
            "model": model,
            "address": printable(address, max_chars=200),
            # A text may hold lone surrogates, which strict UTF-8 refuses.
            "bytes": len(text.encode("utf-8", "surrogatepass")),
            "guarded": guard is not None and is_text,
        }
        where = None if cell is None else cell.id
        event = Event(kind=Kind.MODEL_CALLED, data=about, cell_id=where, actor=Actor.HARNESS)
        session.record(event)
    except LimitExceededError:
        raise
    except RecursionError:
        # A model chooses how deep its own arguments are: that ends its sample, not the run.
        raise LimitExceededError("custom", value=1, limit=0, message=TOO_DEEP) from None
    except Exception as error:  # noqa: BLE001 - what can't be looked at is not sent
        await current_session().end_sample(error, where="model boundary")


_compact, _count_tokens = Model.compact, Model.count_tokens
_LOCAL_COUNTS: Final = ("count_tokens", "count_text_tokens", "count_media_tokens")


async def _compact_looked_at(
    self: Model,
    input: list[ChatMessage],  # noqa: A002 - as Inspect's
    tools: list[ToolInfo],
    instructions: str | None = None,
) -> Any:  # noqa: ANN401 - as Inspect's
    messages, tools = list(input), list(tools)  # copies: what may not leave is replaced in them
    await _look_at(str(self), messages, tools, {"instructions": instructions})
    return await _compact(self, messages, tools, instructions)


async def _count_looked_at(
    self: Model,
    input: str | list[ChatMessage],  # noqa: A002 - as Inspect's
    config: GenerateConfig | None = None,
) -> int:
    counting = type(self.api)
    # Inspect's own ways to count are local: no message leaves.
    if all(getattr(counting, name) is getattr(ModelAPI, name) for name in _LOCAL_COUNTS):
        return await _count_tokens(self, input, config)
    is_text = isinstance(input, str)
    messages: list[ChatMessage]
    messages = [ChatMessageUser(content=input)] if isinstance(input, str) else [*input]
    await _look_at(str(self), messages, [], {})
    return await _count_tokens(self, messages[0].text if is_text else messages, config)


# They too send messages to a provider, and Inspect has no hook for them
Model.compact = _compact_looked_at  # type: ignore[method-assign]
Model.count_tokens = _count_looked_at  # type: ignore[method-assign]


async def _scanned(
    value: object, guard: GuardedRecorder, cell_id: str, operation: str = ""
) -> object:
    """Return the value with each text and number in it as it may leave: itself if all may.

    `operation`: "" for a message, whose fields name it.
    """
    if isinstance(value, (str, int, float)):
        text = str(value)
        if len(text.encode("utf-8", "surrogatepass")) < MIN_SCANNED_BYTES:
            return value
        passed = await _scanned_text(text, guard, cell_id, operation)
        return value if passed == text else passed
    if isinstance(value, (list, tuple)):
        items = [await _scanned(each, guard, cell_id, operation) for each in value]
        return value if items == list(value) else items
    if isinstance(value, Mapping):
        pairs = [await _scanned(pair, guard, cell_id, operation) for pair in value.items()]
        return value if pairs == list(value.items()) else dict(cast("Any", pairs))
    if isinstance(value, BaseModel):
        # No provider is sent a message's metadata.
        own = {name: each for name, each in value if operation or name != "metadata"}
    elif is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value)}
    else:
        return value
    changed: dict[str, Any] = {}
    for name, each in own.items():
        sent = await _scanned(each, guard, cell_id, operation or f"model.{name}")
        if sent is not each:
            changed[name] = sent
    if changed and isinstance(value, BaseModel):
        return value.model_copy(update=changed)
    return replace(value, **changed) if changed else value


async def _scanned_text(text: str, guard: GuardedRecorder, cell_id: str, operation: str) -> str:
    data, to = text.encode("utf-8", "surrogatepass"), _called.get()
    part = Carried(Channel.MODEL, operation, data, place=Place.MODEL, to=to)
    # Each call sends the whole conversation anew: what has passed is not scanned again.
    key = hashlib.sha256(f"{part.to}\0".encode() + part.data).digest()
    if key not in guard.passed:
        # In a thread: a long text would hold up the other samples.
        let_out = await anyio.to_thread.run_sync(lambda: guard.let_out(part, cell_id=cell_id))
        if let_out is None:
            raise LimitExceededError("custom", value=1, limit=0, message=STOPPED)
        guard.passed[key] = None if let_out == part.data else let_out
    passed = guard.passed[key]
    return text if passed is None else passed.decode("utf-8", "replace")


def sample_environment() -> SampleCell | None:
    for environment in (sandbox_environments_context_var.get(None) or {}).values():
        ours = getattr(environment, "_sandbox", environment)
        if isinstance(ours, SampleCell):
            return ours
    return None


# A tool call's arguments: Inspect takes what doesn't begin with `{` for YAML, in which 400 bytes of
# aliases are gigabytes once they are written out. What is too much stays a text, as no YAML does.
MAX_CHARS: Final = 16 << 10  # a second to read
_calls: Final[Any] = _call_tools
_yaml: Final = _calls.yaml  # PyYAML: a dependency of Inspect


def _safe_load(text: str) -> Any:  # noqa: ANN401 - as PyYAML's
    """Raises `YAMLError`, which makes Inspect take the text; `RecursionError`."""
    if len(text) > MAX_CHARS or "*" in text:  # an alias has one
        raise _yaml.YAMLError("too much")
    try:
        value = _yaml.safe_load(text)
        json.dumps(value, default=str, skipkeys=True)  # a number may be too long to be written
    except (ValueError, OverflowError, TypeError) as error:  # of dates, numbers, keys
        raise _yaml.YAMLError("no value") from error
    return value


_calls.yaml = SimpleNamespace(safe_load=_safe_load, error=_yaml.error)
