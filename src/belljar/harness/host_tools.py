"""Tools that act outside of a cell: found at load, refused by policy before they act.

Checked in Inspect: what a model is offered, each tool call, and each connection to an MCP server,
which starts a process on this host. Raises `HostError` where the installed Inspect lacks such a
place.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from inspect import signature, unwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inspect_ai._util.registry import is_registry_object, registry_info
from inspect_ai.hooks import BeforeModelGenerate, Hooks, hooks
from inspect_ai.tool import Tool, ToolDef, ToolInfo, ToolSource
from typing_extensions import override

from belljar.errors import PolicyError
from belljar.harness import config as configs
from belljar.harness.model_boundary import sample_environment
from belljar.harness.options import PROVIDER, unknown_inspect
from belljar.policy.limits import HostTools
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
    from inspect_ai import Task

    from belljar.harness.session import Session

_MCP: Final = "inspect_ai.tool._mcp"
# The parameters of Inspect's `call_tool` that the check reads by position.
_CALL: Final = ["tools", "message", "message_id", "call"]
# Objects of a task that are searched for tools; those beyond are checked when they are called.
_MAX_VISITED: Final = 20_000


class KnownTool(NamedTuple):
    """A task's tool; `outside`: where it acts."""

    name: str
    outside: Outside | None = None


def known_tools(task: Task) -> list[KnownTool]:
    """A task's tools, except those made at runtime."""
    found: dict[KnownTool, None] = {}
    waiting: deque[object] = deque([task.solver, task.setup])
    seen: dict[int, object] = {}  # an object that is gone would leave its id to another
    while waiting and len(seen) < _MAX_VISITED:
        item = waiting.popleft()
        if id(item) not in seen:
            seen[id(item)] = item
            if (known := _known(item)) is not None:
                found[known] = None
            waiting.extend(_referents(item))
    return list(found)


def _known(item: object) -> KnownTool | None:
    if isinstance(item, ToolSource) and type(item).__module__.startswith(_MCP):
        config, client = getattr(item, "_config", None), getattr(item, "_client", None)
        if config is not None:
            return KnownTool(f"{MCP_PREFIX}{getattr(config, 'name', '')}", Outside.MCP)
        if client is not None and not _is_in_sandbox(client):
            return KnownTool(str(getattr(item, "_name", "")), Outside.MCP)
        return None
    if isinstance(item, ToolDef):
        return _known_tool(item)
    if is_registry_object(item) and registry_info(item).type == "tool" and isinstance(item, Tool):
        try:
            return _known_tool(ToolDef(item))
        except Exception:  # noqa: BLE001 - badly described; Inspect says so when it is used
            return KnownTool(registry_info(item).name)
    return None


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


def _referents(item: object) -> Iterable[object]:
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    if isinstance(item, Mapping):
        return item.values()
    if isinstance(item, functools.partial):
        return (item.func, item.args, item.keywords)
    if isinstance(item, (str, bytes, int, float, type)):
        return ()
    cells = getattr(item, "__closure__", None) or ()
    found = list[object]()
    for cell in cells:
        with suppress(ValueError):  # it is empty yet
            found.append(cell.cell_contents)
    found += [getattr(item, "__self__", None), getattr(item, "__wrapped__", None)]
    if type(item).__module__.startswith("inspect_ai"):
        found += list(getattr(item, "__dict__", {}).values())
    return [each for each in found if each is not None and type(each).__name__ != "module"]


def check_known_tools(task: Task, session: Session) -> None:
    """Raises `PolicyError` for a tool that acts outside of the cell and may not."""
    specs = [task.sandbox, *(sample.sandbox for sample in task.dataset or ())]
    # what is refused keeps another provider's, and does not run
    written = {spec.config for spec in specs if spec is not None and spec.type == PROVIDER}
    rules = {_rule(session, config) for config in written or {None}}
    for tool in known_tools(task):
        if tool.outside and not all(rule.permits(_names(tool.name)) for rule in rules):
            raise PolicyError(
                f"the tool {printable(tool.name)} acts outside of the cell ({tool.outside}), "
                f"which the policy refuses",
                where=f"task {printable(task.name)}",
                hint=_hint(tool.name),
            )
        if tool.outside:
            session.show_once([_ACTS.format(printable(tool.name), tool.outside)])


# By the policy's `host_tools`, which a person should know.
_ACTS: Final = "the tool {} acts OUTSIDE of the cell: {}"


def _rule(session: Session, config: Any) -> HostTools:  # noqa: ANN401 - as Inspect hands it over
    # A compose file changes nothing of the rule, and may ask for metadata that only a sample has.
    ours = configs.as_config(config).model_copy(update={"compose": None})
    return configs.load(ours, **session.operator_options).policy.host_tools_rule


def _names(tool: str) -> tuple[str, ...]:
    return (tool, tool.removeprefix(MCP_PREFIX))


def _hint(tool: str) -> str:
    name = printable(_names(tool)[-1])
    return f"take it out of the task, or let the policy name it: host_tools: {{allow: [{name}]}}"


class ToolChecks:
    """Checks the tools that one `belljar run`'s models call."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def check(self, tool: str, where: Outside | None) -> None:
        """Stop the run at a refused tool. Raises `ContainmentBreach`."""
        if where is None:
            return
        environment = sample_environment()  # outside of a sample: the operator's policy
        rule = environment.policy.policy.host_tools_rule if environment else None
        if not (rule or _rule(self.session, None)).permits(_names(tool)):
            self.session.refuse(
                f"the tool {printable(tool)} was about to act outside of the cell ({where}), "
                f"which the policy refuses",
                where="tools",
                hint=_hint(tool),
                cause=ReasonCode.LATE_HOST_TOOL,
            )
        self.session.show_once([_ACTS.format(printable(tool), where)])


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


def _replace(
    stack: ExitStack,
    owner: Any,  # noqa: ANN401 - a module or class
    name: str,
    make: Callable[[Any], Any],
) -> None:
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

    def make(original: Any) -> Any:  # noqa: ANN401 - Inspect's function
        async def call_tool(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - Inspect's
            tools, _, _, call = given[:4]
            for tool in tools:
                if tool.name == call.function:
                    checks.check(*_known_tool(tool))
            return await original(*given, **more)

        return call_tool

    _replace(stack, _call_tools, "call_tool", make)


def _names_in(function: Callable[..., Any]) -> set[str]:
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, type(code))]
    return names


def _patch_bridge(checks: ToolChecks, stack: ExitStack) -> None:
    from inspect_ai.agent._bridge.sandbox import service

    def make(original: Any) -> Any:  # noqa: ANN401 - Inspect's function
        async def execute_host_tool(
            bridge: Any,  # noqa: ANN401 - Inspect's
            server: str,
            tool: str,
            arguments: Any,  # noqa: ANN401 - Inspect's
        ) -> Any:  # noqa: ANN401 - Inspect's
            known = _known(bridge.bridged_tools.get(server, {}).get(tool))
            if known is not None:
                checks.check(*known)
            return await original(bridge, server, tool, arguments)

        return execute_host_tool

    _replace(stack, service, "execute_host_tool", make)


def _patch_mcp(checks: ToolChecks, stack: ExitStack) -> None:
    from inspect_ai.tool._mcp._local import MCPServerLocalSession

    def make(original: Any) -> Any:  # noqa: ANN401 - Inspect's method
        def init(
            self: Any,  # noqa: ANN401 - Inspect's
            client: Callable[[], Any],
            *,
            name: str,
            **more: Any,  # noqa: ANN401 - Inspect's
        ) -> None:
            def connect() -> Any:  # noqa: ANN401 - Inspect's context manager
                checks.check(name, None if _is_in_sandbox(client) else Outside.MCP)
                return client()

            original(self, connect, name=name, **more)

        return init

    _replace(stack, MCPServerLocalSession, "__init__", make)
