"""What `belljar run` controls in Inspect: sandbox providers, and texts for models.

Other providers are refused in the registry, in their base class, and at the start of a sample.
Raises `HostError` where the installed Inspect lacks such a place.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import urlsplit

import anyio.to_thread
from inspect_ai.hooks import BeforeModelGenerate, Hooks, SampleAttemptStart, hooks
from inspect_ai.model import (
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    ContentToolUse,
    Model,
    ModelAPI,
    get_model,
)
from inspect_ai.util import LimitExceededError, SandboxEnvironment
from pydantic import BaseModel
from typing_extensions import override

import belljar.harness._registry
import belljar.harness.tool_arguments  # noqa: F401
from belljar.cell.guarded import GuardedRecorder
from belljar.errors import BelljarError, HostError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness import config as configs
from belljar.harness.options import PROVIDER, unknown_inspect
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session, current_session
from belljar.harness.source import print_status
from belljar.policy import Risk
from belljar.report.reasons import ReasonCode
from belljar.signals.observe import MIN_SCANNED_BYTES, model_part
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai.model import ChatMessage, GenerateConfig
    from inspect_ai.tool import ToolInfo

# Inspect may ask these of another provider: to read tasks and logs that name one.
_HARMLESS: Final = ("config_files", "is_docker_compatible", "config_deserialize")
_LOOKUP: Final = "registry_find_sandboxenv"
# Inspect's modules that look providers up, to use them.
_CALLERS: Final = ("_eval.loader", "_eval.run", "_eval.task.sandbox", "util._sandbox.context")


class SoleProvider:
    """Refuses other providers in all threads."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def refuse(self, what: str, *, where: str) -> NoReturn:
        """Stop the run before the provider is used."""
        self.session.refuse(
            f"{what}; under belljar run a task's commands run in cells only",
            where=where,
            hint="let the task name no sandbox but its own: belljar run puts a cell in its place",
            cause=ReasonCode.OTHER_PROVIDER,
        )

    def look_at(self, environments: Mapping[str, object] | None, *, where: str) -> None:
        """Check a starting sample's sandboxes. Raises `ContainmentBreach`."""
        if not environments:
            try:
                risk = configs.load(None, **self.session.operator_options).policy.risk
            except BelljarError:
                risk = Risk.HIGH  # what can't be read is not low
            if risk in {Risk.HIGH, Risk.CRITICAL}:
                self.refuse("a sample has no sandbox, and the policy's risk is high", where=where)
            print_status(f"belljar: {printable(where)}: it has no sandbox")
        for name, environment in (environments or {}).items():
            provider = type(getattr(environment, "_sandbox", environment))
            if not issubclass(provider, BelljarSandboxEnvironment):
                self.refuse(f"sandbox {name!r} is a {provider.__name__}", where=where)


class _Closed(type):
    """Replaces another provider; any use stops the run."""

    provider: type[SandboxEnvironment]
    sole: SoleProvider

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 - never returns
        if name.startswith("__"):
            raise AttributeError(name)
        cls.sole.refuse(
            f"the sandbox provider {cls.provider.__name__} was about to be used ({name})",
            where="inspect",
        )


def _closed(provider: type[SandboxEnvironment], sole: SoleProvider) -> _Closed:
    harmless = {name: staticmethod(getattr(provider, name)) for name in _HARMLESS}
    return _Closed(
        f"Closed{provider.__name__}", (), {"provider": provider, "sole": sole, **harmless}
    )


_lock = threading.Lock()
_active: SoleProvider | None = None


@hooks(
    name="belljar_sole_provider",
    description="Looks at the sandboxes of each sample before it begins.",
)
class LookAtSandboxes(Hooks):
    """Called when an attempt's sandboxes exist."""

    @override
    def enabled(self) -> bool:
        """Only during `belljar run`."""
        return _active is not None

    @override
    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        """Stop the run when a sandbox is not a cell."""
        from inspect_ai.util._sandbox.context import sandbox_environments_context_var

        sole = _active
        if sole is None:
            return
        where = f"sample {data.summary.id}"
        try:
            sole.look_at(sandbox_environments_context_var.get(None), where=where)
        except Exception as error:  # noqa: BLE001 - what can't be looked at does not begin
            await sole.session.end_sample(error, where=where)


@contextmanager
def sole_provider(session: Session) -> Iterator[SoleProvider]:
    """Keep other providers out inside the block; an attempt to use one stops `session`.

    Raises `HostError` for an unknown Inspect, or when another run is active.
    """
    from importlib import import_module

    from inspect_ai.hooks._hooks import get_all_hooks
    from inspect_ai.util._sandbox import registry

    global _active
    sole = SoleProvider(session)
    with ExitStack() as stack:
        if not _lock.acquire(blocking=False):
            raise HostError(
                "another evaluation runs in this process", hint="run one after the other"
            )
        stack.callback(_lock.release)
        _patch_registry(sole, stack)
        _patch_base_class(sole, stack)
        find = getattr(registry, _LOOKUP, None)
        for name in (f"inspect_ai.{caller}" for caller in _CALLERS):
            if find is None or getattr(import_module(name), _LOOKUP, None) is not find:
                raise unknown_inspect(f"{name} looks sandbox providers up in another way")
        if registry.registry_find_sandboxenv(PROVIDER) is not BelljarSandboxEnvironment:
            raise unknown_inspect("the sandbox provider `belljar` is not found")
        if not isinstance(registry.registry_find_sandboxenv("local"), _Closed):
            raise unknown_inspect("its registry of sandbox providers can't be controlled")
        if not any(isinstance(hook, LookAtSandboxes) for hook in get_all_hooks()):
            raise unknown_inspect("a hook at the start of each sample is not called")
        _active = sole
        try:
            yield sole
        finally:
            _active = None


def _patch_registry(sole: SoleProvider, stack: ExitStack) -> None:
    from inspect_ai._util.registry import RegistryInfo
    from inspect_ai.util._sandbox import registry

    find = getattr(registry, "registry_find", None)
    if not callable(find):
        raise unknown_inspect("its registry of sandbox providers is not where it was")

    # Not what is registered under our name: a task may have registered another there.
    own = RegistryInfo(type="sandboxenv", name=f"{PROVIDER}/{PROVIDER}")

    def find_closed(predicate: Any) -> list[Any]:  # noqa: ANN401 - as Inspect's
        if predicate(own):
            return [BelljarSandboxEnvironment]
        return [_closed(each, sole) for each in find(predicate)]

    registry.__dict__["registry_find"] = find_closed
    stack.callback(registry.__dict__.__setitem__, "registry_find", find)


def _patch_base_class(sole: SoleProvider, stack: ExitStack) -> None:
    from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    made = SandboxEnvironment.__init__

    def check(kind: type) -> None:
        if not issubclass(kind, (BelljarSandboxEnvironment, SandboxEnvironmentProxy)):
            what = f"a sandbox of the provider {kind.__name__} was about to be made"
            sole.refuse(what, where="inspect")

    def new(cls: type, *_args: Any, **_more: Any) -> Any:  # noqa: ANN401 - as the original
        check(cls)
        return object.__new__(cls)

    def init(self: SandboxEnvironment, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        check(type(self))
        made(self, *args, **kwargs)

    if SandboxEnvironment.__new__ not in (object.__new__, _new):
        raise unknown_inspect("sandboxes are made in another way")
    # `__new__` for a provider that calls no `__init__` but its own, `__init__` for one with its own
    # `__new__`. A `__new__` that is taken away again would leave a class that takes no arguments.
    stack.callback(setattr, SandboxEnvironment, "__new__", _new)
    SandboxEnvironment.__new__ = new  # type: ignore[method-assign]
    stack.callback(setattr, SandboxEnvironment, "__init__", made)
    SandboxEnvironment.__init__ = init  # type: ignore[method-assign]
    if LocalSandboxEnvironment.__new__ is not new:
        raise unknown_inspect("the making of sandboxes can't be controlled")


def _new(cls: type, *_args: Any, **_more: Any) -> Any:  # noqa: ANN401
    return object.__new__(cls)


STOPPED: Final = "the policy's guard found protected data in what was to be sent to the model"
_called: ContextVar[str] = ContextVar("belljar_called_model", default="")
_READABLE: Final = (str, ContentText, ContentReasoning, ContentToolUse)


@hooks(name="belljar_model_boundary", description="Looks at what is sent to a model's provider.")
class LookAtMessages(Hooks):
    """Scans the messages of each call of a model."""

    @override
    def enabled(self) -> bool:
        """Only in a run that is on record."""
        return current_session().run is not None

    @override
    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        # Stop words, a seed, a schema: a guest may have chosen them, and none can be cut
        choice = getattr(data.tool_choice, "name", "")
        rest = {**data.config.model_dump(exclude_none=True), "tool_choice": choice}
        await _look_at(data.model_name, data.input, data.tools, rest)


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
            if await _scanned(rest, guard, cell.id, "model.config") != rest:
                raise LimitExceededError("custom", value=1, limit=0, message=STOPPED)
        lists = (each.content for each in messages if not isinstance(each.content, str))
        is_text = all(isinstance(each, _READABLE) for contents in lists for each in contents)
        parts = [each.model_dump(exclude_none=True) for each in (*messages, *tools)]
        # About as its provider sends it
        text = json.dumps([*parts, rest], ensure_ascii=False, default=str)
        about: dict[str, JsonValue] = {
            "model": model,
            "address": _address_of(model),
            "bytes": len(text.encode("utf-8", "surrogatepass")),
            "guarded": guard is not None and is_text,
        }
        cell_id = None if cell is None else cell.id
        session.record(
            Event(kind=Kind.MODEL_CALLED, data=about, cell_id=cell_id, actor=Actor.HARNESS)
        )
    except LimitExceededError:
        raise
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
    messages, tools = list(input), list(tools)
    await _look_at(str(self), messages, tools, {"instructions": instructions})
    return await _compact(self, messages, tools, instructions)


async def _count_looked_at(
    self: Model,
    input: str | list[ChatMessage],  # noqa: A002 - as Inspect's
    config: GenerateConfig | None = None,
) -> int:
    counting = type(self.api)
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


def _address_of(model: str) -> str:
    """HOST:PORT of the evaluated model's provider; "": its default, or another model's."""
    with suppress(Exception):  # no model is being evaluated, or its address is none
        active = get_model()
        if str(active) == model:
            url = urlsplit(active.api.base_url or "")
            return printable(url.netloc.rpartition("@")[2], max_chars=200)  # never a password
    return ""


async def _scanned(
    value: object, guard: GuardedRecorder, cell_id: str, operation: str = ""
) -> object:
    """Return the value with each text and number in it as it may leave: itself if all may.

    A number that is protected becomes a text. `operation`: "" for a message, whose fields name it.
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
    if not changed:
        return value
    return (
        value.model_copy(update=changed)
        if isinstance(value, BaseModel)
        else replace(value, **changed)
    )


async def _scanned_text(text: str, guard: GuardedRecorder, cell_id: str, operation: str) -> str:
    part = model_part(text.encode("utf-8", "surrogatepass"), operation)
    part = replace(part, to=_called.get())
    key = hashlib.sha256(f"{part.to}\0".encode() + part.data).digest()
    if key not in guard.passed:
        let_out = await anyio.to_thread.run_sync(lambda: guard.let_out(part, cell_id=cell_id))
        if let_out.stopped:
            raise LimitExceededError("custom", value=1, limit=0, message=STOPPED)
        guard.passed[key] = None if let_out.data == part.data else let_out.data
    passed = guard.passed[key]
    return text if passed is None else passed.decode("utf-8", "replace")


def sample_environment() -> BelljarSandboxEnvironment | None:
    """The current sample's cell, if it has one."""
    from inspect_ai.util._sandbox.context import sandbox_environments_context_var

    for environment in (sandbox_environments_context_var.get(None) or {}).values():
        ours = getattr(environment, "_sandbox", environment)
        if isinstance(ours, BelljarSandboxEnvironment):
            return ours
    return None
