"""The tools of a run: which act outside of a cell, how often each was called, and how many calls
reached a cell. Pure.

A call that makes no operation in a cell ran in the evaluation's own process or at a third party.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.units import printable

HARMLESS: Final = frozenset({"submit", "think", "todo_write", "update_plan", "memory"})
"""Tools of Inspect that keep notes or end the sample: they never reach a cell, and nothing else
either.
"""
_TYPE: Final = "__internal_tool_type__"
"""Key of a tool's options in which Inspect says that a model's provider may carry the tool out."""

MCP_PREFIX: Final = "mcp_server_"
"""Inspect's name of a tool that stands for an MCP server which the model's provider connects to."""


class Outside(StrEnum):
    """Where a tool acts that is known to act outside of a cell."""

    MCP = "an MCP server that is not in a cell"
    WEB_SEARCH = "web search"
    HOSTED_CODE = "code execution hosted by the model's provider"
    HOSTED = "hosted by the model's provider"
    NOTIFICATION = "a notification to a person, by a third party"
    EXTRA_BODY = "fields for the model's provider that Inspect does not know"


EXTRA_BODY_TOOL: Final = "extra_body"
"""Name by which a policy allows requests with an `extra_body` of unknown fields."""

_PLAIN_FIELDS: Final = frozenset(
    {
        *("frequency_penalty", "logit_bias", "max_completion_tokens", "max_tokens", "min_p"),
        *(
            "presence_penalty",
            "repetition_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
        ),
        *("max_tool_calls", "parallel_tool_calls", "reasoning", "reasoning_effort", "thinking"),
        *("metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("service_tier", "store", "truncation", "user", "verbosity"),
    }
)
"""Fields of an `extra_body` that make no provider act: sampling, reasoning, bookkeeping. Those that
Inspect's bridge passes on for an agent in a cell are among them, but `previous_response_id`: it
names what another sample may have left at the provider.
"""


def extra_fields(body: Mapping[str, Any] | None) -> list[str]:
    """The unknown fields of an `extra_body`: a provider may be asked to act by any of them."""
    return sorted(set(body or ()) - _PLAIN_FIELDS)


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
    **dict.fromkeys(
        ("memory", "think", "todo_write", "update_plan", "submit", "default_submit_tool")
    ),
    # agents: the tools that they hold are looked at themselves
    **dict.fromkeys(
        ("as_tool", "agent", "agent_status", "agent_wait", "agent_cancel", "agent_list")
    ),
}
"""Where each of Inspect's own tools acts when it is called, by the function that makes it; None:
not outside of a cell.
"""


def outside(name: str, options: Mapping[str, Any] | None) -> Outside | None:
    """Where a provider's or MCP tool acts; None: not known to act outside of a cell.

    A task's own `web_search` has no options: it is a function, and may act in a cell.
    """
    if options is None:
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
    """The name by which a policy allows a tool, whatever the task calls it."""
    kind = (options or {}).get(_TYPE)
    return str(kind) if kind in {"web_search", "code_execution"} else name


HOSTED_USE: Final[Mapping[str, Outside]] = {
    "web_search": Outside.WEB_SEARCH,
    "mcp_call": Outside.MCP,
    "code_execution": Outside.HOSTED_CODE,
}
"""What a model's answer says that its provider did, by the type of the use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool; `outside`: where it acted, if not in a cell."""

    name: str
    reached_cell: bool = False
    outside: Outside | None = None
    began: datetime | None = None
    ended: datetime | None = None

    def covers(self, time: datetime | None) -> bool:
        """Whether something happened while the call was going on."""
        return bool(time and self.began and self.ended and self.began <= time <= self.ended)


def with_hidden_operations(
    calls: Iterable[ToolCall], times: Sequence[datetime | None]
) -> tuple[ToolCall, ...]:
    """Add cell operations that the transcript lacks, matched to calls by time alone."""
    return tuple(
        replace(call, reached_cell=call.reached_cell or any(call.covers(time) for time in times))
        for call in calls
    )


def refused_calls(calls: Iterable[ToolCall], allowed: Sequence[str]) -> list[str]:
    """The tools that acted outside of the cell although the policy names others; `*` allows all."""
    beside = dict.fromkeys(call.name.removeprefix(MCP_PREFIX) for call in calls if call.outside)
    return [name for name in beside if "*" not in allowed and name not in allowed]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """All calls of one tool."""

    name: str
    calls: int
    reached_cell: int
    outside: Outside | None = None

    @property
    def is_unexplained(self) -> bool:
        """No call reached a cell, and it is none of those that are known not to act anywhere."""
        return not self.reached_cell and self.name not in HARMLESS

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "name": self.name,
            "calls": self.calls,
            "reached_cell": self.reached_cell,
            "outside": self.outside.value if self.outside else "",
        }


def tool_uses(calls: Iterable[ToolCall]) -> tuple[ToolUse, ...]:
    """The calls by tool, in the order of each tool's first call."""
    by_tool: dict[tuple[str, Outside | None], list[ToolCall]] = {}
    for call in calls:
        by_tool.setdefault((call.name, call.outside), []).append(call)
    return tuple(
        ToolUse(
            name=name,
            outside=where,
            calls=len(each),
            reached_cell=sum(call.reached_cell for call in each),
        )
        for (name, where), each in by_tool.items()
    )


def tool_lines(uses: Sequence[ToolUse]) -> list[str]:
    """The tools for a person: a line for each, and those by name that never reached a cell."""
    if not uses:
        return []
    lines = ["\nTools, with their calls and how many reached a cell:"]
    lines += [
        f"  {printable(use.name, max_chars=80)}: {use.calls}, {use.reached_cell}{_remark(use)}"
        for use in uses
    ]
    return lines


def _remark(use: ToolUse) -> str:
    if use.outside:
        return f" — outside of the cell: {use.outside}"
    remark = (
        " — never reached a cell: it ran in the evaluation's own process, or Inspect turned the "
        "call down"
    )
    return remark if use.is_unexplained else ""
