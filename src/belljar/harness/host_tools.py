"""Tools that act outside of a cell, refused by policy before they act.

Checked in Inspect: what a model is offered, each tool call, and each connection to an MCP server,
which starts a process on this host. Raises `HostError` where the installed Inspect lacks such a
place.
"""

# ruff: noqa: ANN401 - values of Inspect's own functions

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from inspect import signature, unwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inspect_ai.hooks import BeforeModelGenerate, Hooks, hooks
from inspect_ai.tool import ToolDef, ToolInfo
from typing_extensions import override

from belljar.harness import config as configs
from belljar.harness.model_boundary import sample_environment
from belljar.harness.options import unknown_inspect
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

if TYPE_CHECKING:
    from belljar.harness.session import Session

# The parameters of Inspect's `call_tool` that the check reads by position.
_CALL: Final = ["tools", "message", "message_id", "call"]


class KnownTool(NamedTuple):
    """A task's tool; `outside`: where it acts."""

    name: str
    outside: Outside | None = None


def _known_tool(tool: ToolDef) -> KnownTool:
    made = unwrap(tool.tool)
    is_inspects = str(getattr(made, "__module__", "")).startswith("inspect_ai.")
    maker, inner, _ = str(getattr(made, "__qualname__", "")).partition(".<locals>.")
    own = maker if inner and is_inspects else ""
    if (where := BUILT_IN.get(own)) is not None:
        return KnownTool(own, where)
    return _offered(tool)


def _offered(tool: ToolDef | ToolInfo) -> KnownTool:
    return KnownTool(policy_name(tool.name, tool.options), outside(tool.name, tool.options))


def _is_in_sandbox(client: Callable[[], Any]) -> bool:
    """Whether the MCP server runs in a sandbox."""
    return "sandbox_client" in getattr(getattr(client, "__code__", None), "co_names", ())


class ToolChecks:
    """Checks the tools that one `belljar run`'s models call."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def check(self, tool: str, where: Outside | None) -> None:
        """Stop the run at a refused tool. Raises `ContainmentBreach`."""
        if where is None:
            return
        environment = sample_environment()  # outside of a sample: the operator's policy
        policy = (
            environment.policy
            if environment
            else configs.load(None, **self.session.operator_options)
        )
        names = (tool, tool.removeprefix(MCP_PREFIX))
        name = printable(names[-1])
        if not policy.policy.host_tools_rule.permits(names):
            self.session.refuse(
                f"the tool {name} was about to act outside of the cell ({where}), which the policy "
                "refuses",
                where="tools",
                hint=f"leave it out of the task, or name it: host_tools: {{allow: [{name}]}}",
                cause=ReasonCode.LATE_HOST_TOOL,
            )
        self.session.show_once([f"the tool {name} acts OUTSIDE of the cell: {where}"])


_active: ToolChecks | None = None


@hooks(name="belljar_host_tools", description="Looks at the tools that each model call offers.")
class LookAtTools(Hooks):
    """Called with the tools that a model is offered."""

    @override
    def enabled(self) -> bool:
        """Only during `belljar run`."""
        return _active is not None

    @override
    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        # A refused tool is never offered: the provider could carry it out at once.
        checks = _active
        if checks is None:
            return
        try:
            for tool in data.tools:
                checks.check(*_offered(tool))
            if extra_fields(data.config.extra_body):
                checks.check(EXTRA_BODY_TOOL, Outside.EXTRA_BODY)
        except Exception as error:  # noqa: BLE001 - what can't be checked is not offered
            await checks.session.end_sample(error, where="tools")


@contextmanager
def tool_checks(session: Session) -> Iterator[ToolChecks]:
    """Check tool calls inside the block. Raises `HostError`."""
    global _active
    checks = ToolChecks(session)
    with ExitStack() as stack:
        _patch_calls(checks, stack)
        _patch_bridge(checks, stack)
        if find_spec("mcp") is not None:  # else Inspect has no MCP
            _patch_mcp(checks, stack)
        _active = checks
        try:
            yield checks
        finally:
            _active = None


def _replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if not callable(original):
        raise unknown_inspect(f"{owner.__name__} has no `{name}`")
    setattr(owner, name, make(original))
    stack.callback(setattr, owner, name, original)


def _patch_calls(checks: ToolChecks, stack: ExitStack) -> None:
    from inspect_ai.model import _call_tools

    known = list(signature(_call_tools.call_tool).parameters)[:4]
    if known != _CALL or "call_tool" not in _names_in(_call_tools._execute_tools_impl):
        raise unknown_inspect("its tools are called in another way")

    def make(original: Any) -> Any:
        async def call_tool(*given: Any, **more: Any) -> Any:
            tools, _, _, call = given[:4]
            for tool in tools:
                if tool.name == call.function:
                    checks.check(*_known_tool(tool))
            return await original(*given, **more)

        return call_tool

    _replace(stack, _call_tools, "call_tool", make)


def _names_in(function: Callable[..., Any]) -> set[str]:
    code = function.__code__
    inner = [each for each in code.co_consts if isinstance(each, type(code))]
    return {*code.co_names}.union(*(each.co_names for each in inner))


def _patch_bridge(checks: ToolChecks, stack: ExitStack) -> None:
    from inspect_ai.agent._bridge.sandbox import service

    def make(original: Any) -> Any:
        async def execute_host_tool(bridge: Any, server: str, tool: str, arguments: Any) -> Any:
            found = bridge.bridged_tools.get(server, {}).get(tool)
            if found is not None:
                checks.check(*_known_tool(found if isinstance(found, ToolDef) else ToolDef(found)))
            return await original(bridge, server, tool, arguments)

        return execute_host_tool

    _replace(stack, service, "execute_host_tool", make)


def _patch_mcp(checks: ToolChecks, stack: ExitStack) -> None:
    from inspect_ai.tool._mcp._local import MCPServerLocalSession

    def make(original: Any) -> Any:
        def init(self: Any, client: Callable[[], Any], *, name: str, **more: Any) -> None:
            def connect() -> Any:
                checks.check(name, None if _is_in_sandbox(client) else Outside.MCP)
                return client()

            original(self, connect, name=name, **more)

        return init

    _replace(stack, MCPServerLocalSession, "__init__", make)
