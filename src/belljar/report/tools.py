"""The tools of a run: where they act, and how many calls reached a cell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import asdict, dataclass
from belljar.units import printable

# Tools of Inspect that keep notes or end the sample: they reach nothing.
HARMLESS: Final = frozenset({"submit", "think", "todo_write", "update_plan", "memory"})
# Inspect's key in the options of a tool that a model's provider may carry out.
_TYPE: Final = "__internal_tool_type__"
# Inspect's name of a tool for an MCP server that the model's provider connects to.
MCP_PREFIX: Final = "mcp_server_"


class Outside(StrEnum):
    """Where a tool acts, if not in a cell."""

    MCP = "an MCP server that is not in a cell"
    WEB_SEARCH = "web search"
    HOSTED_CODE = "code execution hosted by the model's provider"
    HOSTED = "hosted by the model's provider"
    NOTIFICATION = "a notification to a person, by a third party"
    EXTRA_BODY = "fields for the model's provider that Inspect does not know"


# Name by which a policy allows requests with an `extra_body` of unknown fields.
EXTRA_BODY_TOOL: Final = "extra_body"

# Fields of an `extra_body` that make no provider act: sampling, reasoning, bookkeeping. Not
# `previous_response_id`, which may name what another sample left at the provider.
_PLAIN_FIELDS: Final = frozenset(
    {
        *("frequency_penalty", "logit_bias", "max_completion_tokens", "max_tokens", "min_p"),
        *("presence_penalty", "repetition_penalty", "seed", "stop", "temperature"),
        *("top_k", "top_p"),
        *("max_tool_calls", "parallel_tool_calls", "reasoning", "reasoning_effort", "thinking"),
        *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("service_tier", "store", "truncation", "user", "verbosity"),
    }
)


def extra_fields(body: Mapping[str, Any] | None) -> list[str]:
    """Return the `extra_body` fields that may make a provider act."""
    return sorted(set(body or ()) - _PLAIN_FIELDS)


# Where each of Inspect's own tools acts, by its maker's name; None: not outside of a cell.
BUILT_IN: Final[Mapping[str, Outside | None]] = {
    **dict.fromkeys(("notify_user", "ask_user"), Outside.NOTIFICATION),
    "web_search": Outside.WEB_SEARCH,
    # in the cell, unless its options say that a provider may run it
    "code_execution": None,
    # by commands and files of the cell
    **dict.fromkeys(("bash", "python", "bash_session", "text_editor", "computer", "skill")),
    **dict.fromkeys(("grep", "list_files", "read_file")),
    **dict.fromkeys(
        f"web_browser_{act}"
        for act in ("go", "click", "type", "type_submit", "scroll", "back", "forward", "refresh")
    ),
    # in the evaluation's own process, with nothing but its memory
    **dict.fromkeys((*HARMLESS, "default_submit_tool")),
    # agents: their tools are checked themselves
    **dict.fromkeys(
        ("as_tool", "agent", "agent_status", "agent_wait", "agent_cancel", "agent_list")
    ),
}


def outside(name: str, options: Mapping[str, Any] | None) -> Outside | None:
    """Return where a provider's or MCP tool acts; None: not known to act outside."""
    if options is None:  # a task's own function, whatever its name
        return None
    kind = options.get(_TYPE)
    if kind == "mcp_call" or name.startswith(MCP_PREFIX):
        return Outside.MCP
    if "web_search" in (kind, name):
        return Outside.WEB_SEARCH
    if "code_execution" in (kind, name):
        # without another provider than `python` the code runs in the sandbox
        return Outside.HOSTED_CODE if set(options.get("providers") or ()) - {"python"} else None
    return Outside.HOSTED if kind is not None else None


def policy_name(name: str, options: Mapping[str, Any] | None) -> str:
    """Return a tool's name in policies, independent of the task's name."""
    kind = (options or {}).get(_TYPE)
    return str(kind) if kind in {"web_search", "code_execution"} else name


# By the type of a use in a model's answer.
HOSTED_USE: Final[Mapping[str, Outside]] = {
    "web_search": Outside.WEB_SEARCH,
    "mcp_call": Outside.MCP,
    "code_execution": Outside.HOSTED_CODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call; `outside`: where it acted, if not in a cell."""

    name: str
    reached_cell: bool = False
    outside: Outside | None = None
    began: datetime | None = None
    ended: datetime | None = None

    def covers(self, time: datetime | None) -> bool:
        return bool(time and self.began and self.ended and self.began <= time <= self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    name: str
    calls: int
    reached_cell: int
    outside: Outside | None = None

    @property
    def is_unexplained(self) -> bool:
        return not self.reached_cell and self.name not in HARMLESS

    def to_json(self) -> dict[str, object]:
        remark = " — never reached a cell" if self.is_unexplained else ""
        remark = f" — outside of the cell: {self.outside}" if self.outside else remark
        text = f"{printable(self.name, max_chars=80)}: {self.calls}, {self.reached_cell}{remark}"
        return {**asdict(self), "outside": self.outside or "", "text": text}


def tool_uses(calls: Iterable[ToolCall]) -> tuple[ToolUse, ...]:
    by_tool: dict[tuple[str, Outside | None], list[bool]] = {}
    for call in calls:
        by_tool.setdefault((call.name, call.outside), []).append(call.reached_cell)
    return tuple(
        ToolUse(name=name, outside=where, calls=len(reached), reached_cell=sum(reached))
        for (name, where), reached in by_tool.items()
    )
