"""The controls of `belljar run` in Inspect: no other sandbox provider, no refused tool.

Raises `HostError` where Inspect lacks a place to check either.
"""

# ruff: noqa: ANN401 - values of Inspect's own functions

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from inspect import signature, unwrap
from typing import Any, Final, NoReturn

from inspect_ai._util.registry import RegistryInfo
from inspect_ai.agent._bridge.sandbox import service
from inspect_ai.hooks import BeforeModelGenerate, Hooks, SampleAttemptStart, hooks
from inspect_ai.hooks._hooks import get_all_hooks
from inspect_ai.model import _call_tools
from inspect_ai.tool import ToolDef, ToolInfo
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import registry
from inspect_ai.util._sandbox.context import sandbox_environments_context_var
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from typing_extensions import override

from belljar.errors import BelljarError, HostError
from belljar.harness.config import OURS
from belljar.harness.model_boundary import sample_environment
from belljar.harness.options import unknown_inspect
from belljar.harness.provider import BelljarSandboxEnvironment
from belljar.harness.session import Session
from belljar.policy.limits import Risk
from belljar.report.reasons import ReasonCode
from belljar.report.tools import (
    BUILT_IN,
    EXTRA_BODY_TOOL,
    MCP_PREFIX,
    Outside,
    extra_fields,
    outside,
    policy_name,
)
from belljar.units import printable
from belljar.waiting import print_status

# Inspect may ask these of another provider: to read tasks and logs that name one.
_HARMLESS: Final = ("config_files", "is_docker_compatible", "config_deserialize")
_LOOKUP: Final = "registry_find_sandboxenv"  # callers import it by name: patching it reaches none
# Inspect's modules that look providers up, to use them.
_CALLERS: Final = ("_eval.loader", "_eval.run", "_eval.task.sandbox", "util._sandbox.context")
_CALL: Final = ["tools", "message", "message_id", "call"]  # of `call_tool`, read by position

_lock = threading.Lock()
_active: Session | None = None


@contextmanager
def controlled(session: Session) -> Iterator[None]:
    """Raises `HostError` for an unknown Inspect, or beside another run."""
    global _active
    with ExitStack() as stack:
        if not _lock.acquire(blocking=False):
            what = "another evaluation runs in this process"
            raise HostError(what, hint="run one after the other")
        stack.callback(_lock.release)
        _patch_registry(session, stack)
        _patch_base_class(session, stack)
        _patch_calls(session, stack)
        if not any(isinstance(hook, LookAtSamples) for hook in get_all_hooks()):
            raise unknown_inspect("a hook at the start of each sample is not called")
        _active = session
        try:
            yield
        finally:
            _active = None


@hooks(name="belljar_boundary", description="Looks at each sample's sandboxes and tools.")
class LookAtSamples(Hooks):
    @override
    def enabled(self) -> bool:
        return _active is not None

    @override
    async def on_sample_attempt_start(self, data: SampleAttemptStart) -> None:
        if (session := _active) is None:  # read once: the end of the run may take it away meanwhile
            return
        where = f"sample {data.summary.id}"
        try:
            look_at(session, sandbox_environments_context_var.get(None), where=where)
        except Exception as error:  # noqa: BLE001 - what can't be looked at does not begin
            await session.end_sample(error, where=where)

    @override
    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        # A refused tool is never offered: the provider could carry it out at once.
        if (session := _active) is None:
            return
        try:
            for tool in data.tools:
                _check_tool(session, *_offered(tool))
            if extra_fields(data.config.extra_body):
                _check_tool(session, EXTRA_BODY_TOOL, Outside.EXTRA_BODY)
        except Exception as error:  # noqa: BLE001 - what can't be checked is not offered
            await session.end_sample(error, where="tools")


def _refuse(session: Session, what: str, *, where: str = "inspect") -> NoReturn:
    what = f"{what}; under belljar run a task's commands run in cells only"
    hint = "let the task name no sandbox but its own: belljar run puts a cell in its place"
    session.refuse(what, where=where, hint=hint, cause=ReasonCode.OTHER_PROVIDER)


def look_at(session: Session, environments: Mapping[str, object] | None, *, where: str) -> None:
    """Check a starting sample's sandboxes. Raises `ContainmentBreach`."""
    if not environments:
        try:
            risk = session.default_policy().risk
        except BelljarError:
            risk = Risk.HIGH  # what can't be read is not low
        if risk in {Risk.HIGH, Risk.CRITICAL}:
            what = "a sample has no sandbox, and the policy's risk is high"
            _refuse(session, what, where=where)
        print_status(f"belljar: {printable(where)}: it has no sandbox")
    for name, environment in (environments or {}).items():
        # Inspect wraps a sandbox in a proxy that records calls: the one inside counts.
        provider = type(getattr(environment, "_sandbox", environment))
        if not issubclass(provider, BelljarSandboxEnvironment):
            _refuse(session, f"sandbox {name!r} is a {provider.__name__}", where=where)


class _Closed(type):
    """It replaces another provider; any use stops the run."""

    session: Session

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # looks of Python itself are no use of the provider
            raise AttributeError(name)
        what = f"the sandbox provider {cls.__name__} was about to be used ({name})"
        _refuse(cls.session, what)


def _patch_registry(session: Session, stack: ExitStack) -> None:
    # Not what is registered under our name: a task may have registered another there.
    own = RegistryInfo(type="sandboxenv", name=f"{OURS}/{OURS}")

    def closed(provider: type[SandboxEnvironment]) -> _Closed:
        harmless = {name: staticmethod(getattr(provider, name)) for name in _HARMLESS}
        return _Closed(provider.__name__, (), {"session": session, **harmless})

    def make_find(find: Any) -> Any:
        def find_closed(predicate: Any) -> list[Any]:
            if predicate(own):
                return [BelljarSandboxEnvironment]
            return [closed(each) for each in find(predicate)]

        return find_closed

    _replace(stack, registry, "registry_find", make_find)
    lookup = getattr(registry, _LOOKUP, None)
    for name in (f"inspect_ai.{caller}" for caller in _CALLERS):
        if lookup is None or getattr(import_module(name), _LOOKUP, None) is not lookup:
            raise unknown_inspect(f"{name} looks sandbox providers up in another way")
    # Asked once, to see that the replacement has taken effect.
    if registry.registry_find_sandboxenv(OURS) is not BelljarSandboxEnvironment or not (
        isinstance(registry.registry_find_sandboxenv("local"), _Closed)
    ):
        raise unknown_inspect("its registry of sandbox providers can't be controlled")


def _patch_base_class(session: Session, stack: ExitStack) -> None:
    def check(kind: type) -> None:
        if not issubclass(kind, (BelljarSandboxEnvironment, SandboxEnvironmentProxy)):
            what = f"a sandbox of the provider {kind.__name__} was about to be made"
            _refuse(session, what)

    def new(cls: type, *_args: Any, **_more: Any) -> Any:
        check(cls)
        return object.__new__(cls)

    def make_init(made: Any) -> Any:
        def init(self: SandboxEnvironment, *args: Any, **kwargs: Any) -> None:
            check(type(self))
            made(self, *args, **kwargs)

        return init

    if SandboxEnvironment.__new__ not in (object.__new__, _new):
        raise unknown_inspect("sandboxes are made in another way")
    # `__new__` for a provider that calls no `__init__` but its own, `__init__` for one with its own
    # `__new__`. A `__new__` that is taken away again would leave a class that takes no arguments.
    stack.callback(setattr, SandboxEnvironment, "__new__", _new)
    SandboxEnvironment.__new__ = new  # type: ignore[method-assign]
    _replace(stack, SandboxEnvironment, "__init__", make_init)
    if LocalSandboxEnvironment.__new__ is not new:
        raise unknown_inspect("the making of sandboxes can't be controlled")


def _new(cls: type, *_args: Any, **_more: Any) -> Any:
    return object.__new__(cls)


def _check_tool(session: Session, tool: str, where: Outside | None) -> None:
    """Stop the run at a refused tool. Raises `ContainmentBreach`."""
    if where is None:
        return
    environment = sample_environment()
    policy = environment.policy.policy if environment else session.default_policy()
    names = (tool, tool.removeprefix(MCP_PREFIX))
    name = printable(names[-1])
    if not policy.host_tools_rule.permits(names):
        what = f"the tool {name} was about to act outside of the cell ({where}), which the policy"
        hint = f"leave it out of the task, or name it: host_tools: {{allow: [{name}]}}"
        cause = ReasonCode.LATE_HOST_TOOL
        session.refuse(f"{what} refuses", where="tools", hint=hint, cause=cause)
    session.show_once([f"the tool {name} acts OUTSIDE of the cell: {where}"])


def _offered(tool: ToolDef | ToolInfo) -> tuple[str, Outside | None]:
    return policy_name(tool.name, tool.options), outside(tool.name, tool.options)


def _called(tool: ToolDef) -> tuple[str, Outside | None]:
    made = unwrap(tool.tool)
    maker, inner, _ = str(getattr(made, "__qualname__", "")).partition(".<locals>.")
    is_inspects = str(getattr(made, "__module__", "")).startswith("inspect_ai.")
    where = BUILT_IN.get(maker) if inner and is_inspects else None
    return _offered(tool) if where is None else (maker, where)


def _replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if not callable(original):
        raise unknown_inspect(f"{owner.__name__} has no `{name}`")
    setattr(owner, name, make(original))
    stack.callback(setattr, owner, name, original)


def _patch_calls(session: Session, stack: ExitStack) -> None:
    def make_call(original: Any) -> Any:
        async def call_tool(*given: Any, **more: Any) -> Any:
            tools, _, _, call = given[:4]
            for tool in tools:
                if tool.name == call.function:
                    _check_tool(session, *_called(tool))
            return await original(*given, **more)

        return call_tool

    def make_bridged(original: Any) -> Any:
        async def execute_host_tool(bridge: Any, server: str, tool: str, arguments: Any) -> Any:
            found = bridge.bridged_tools.get(server, {}).get(tool)
            if found is not None:
                known = found if isinstance(found, ToolDef) else ToolDef(found)
                _check_tool(session, *_called(known))
            return await original(bridge, server, tool, arguments)

        return execute_host_tool

    def make_server(original: Any) -> Any:
        def init(self: Any, client: Callable[[], Any], *, name: str, **more: Any) -> None:
            def connect() -> Any:
                names = getattr(getattr(client, "__code__", None), "co_names", ())
                if "sandbox_client" not in names:  # else the server runs in the cell
                    _check_tool(session, name, Outside.MCP)
                return client()

            original(self, connect, name=name, **more)

        return init

    known = list(signature(_call_tools.call_tool).parameters)[:4]
    code = _call_tools._execute_tools_impl.__code__
    codes = [code, *(each for each in code.co_consts if isinstance(each, type(code)))]
    if known != _CALL or not any("call_tool" in each.co_names for each in codes):
        raise unknown_inspect("its tools are called in another way")
    _replace(stack, _call_tools, "call_tool", make_call)
    _replace(stack, service, "execute_host_tool", make_bridged)
    if find_spec("mcp") is not None:  # else Inspect has no MCP
        from inspect_ai.tool._mcp._local import MCPServerLocalSession

        _replace(stack, MCPServerLocalSession, "__init__", make_server)
