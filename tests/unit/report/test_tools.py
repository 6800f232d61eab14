"""Which tools are known to act outside of a cell, and what became of the calls."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path

import inspect_ai
import pytest

from belljar.report.cells import ReportedOperation, TranscriptAction
from belljar.report.samples import Row, Transcript
from belljar.report.tools import BUILT_IN, Outside, ToolCall, extra_fields, outside, tool_uses


@pytest.mark.promise("1.9")
def test_each_tool_of_the_installed_inspect_is_in_the_table() -> None:
    """A new one has to be looked at: where does it act?"""
    root = Path(inspect_ai.__file__).parent
    sources = (file.read_text(encoding="utf-8") for file in root.rglob("*.py"))
    made = {
        node.name
        for text in sources
        if "@tool" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and any(_is_tool(each) for each in node.decorator_list)
    }
    assert {"notify_user", "bash", "web_browser_go"} <= made
    assert made == set(BUILT_IN)


def _is_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "tool"


@pytest.mark.promise("1.9")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, []),
        ({"top_k": 4, "metadata": {"a": "b"}, "service_tier": "auto"}, []),
        ({"tools": [], "seed": 1}, ["tools"]),
        ({"plugins": [{"id": "web"}], "web_search_options": {}}, ["plugins", "web_search_options"]),
        ({"previous_response_id": "x"}, ["previous_response_id"]),
    ],
)
def test_fields_by_which_a_provider_may_act(
    body: dict[str, object] | None, expected: list[str]
) -> None:
    """Whatever is not known to be harmless."""
    assert extra_fields(body) == expected


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("web_search", None, None),  # a task's own: a function, which may act in a cell
        ("mcp_server_docs", {"type": "http"}, Outside.MCP),
        ("search", {"__internal_tool_type__": "mcp_call"}, Outside.MCP),
        ("x", {"__internal_tool_type__": "something_new"}, Outside.HOSTED),
        ("code_execution", {}, None),
        ("bash", {"timeout": 3}, None),
    ],
)
def test_by_name_and_options(
    name: str, options: dict[str, object] | None, expected: Outside | None
) -> None:
    """What a provider may carry out and nobody knows is outside."""
    assert outside(name, options) is expected


@pytest.mark.promise("1.9")
def test_calls_are_counted_by_tool() -> None:
    """With how many reached a cell; one that never did is named. Names of a model are escaped."""
    calls = [
        ToolCall(name="bash", reached_cell=True),
        ToolCall(name="bash"),
        ToolCall(name="fetch"),
        ToolCall(name="submit"),
        ToolCall(name="\x1b[2J"),
        ToolCall(name="web_search", outside=Outside.WEB_SEARCH),
    ]
    uses = {use.name: use for use in tool_uses(calls)}
    assert (uses["bash"].calls, uses["bash"].reached_cell) == (2, 1)
    unexplained = [name for name, use in uses.items() if use.is_unexplained and not use.outside]
    assert unexplained == ["fetch", "\x1b[2J"]
    assert "\x1b" not in str(uses["\x1b[2J"].to_json()["text"])


@pytest.mark.promise("1.9")
def test_an_operation_that_raised_counts_by_its_time() -> None:
    """The transcript has no event of it."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    call = ToolCall(name="bash", began=began, ended=began + timedelta(seconds=2))
    inside, after = began + timedelta(seconds=1), began + timedelta(seconds=3)
    about = Transcript(task="t", sample="s", epoch=1, uuid="u", tools=(call,))
    for times, reached in (([inside], True), ([after, None], False)):
        hidden = tuple(
            ReportedOperation(op=1, action=TranscriptAction.EXEC, what="x", started=time)
            for time in times
        )
        row = Row(transcript=about, reasons=(), hidden=hidden)
        assert [each.reached_cell for each in row.tools] == [reached]
