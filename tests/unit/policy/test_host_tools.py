"""What a policy says of tools that act outside of a cell."""

from __future__ import annotations

import pytest

from belljar.policy import HostTools, Policy, Risk
from belljar.policy.limits import REFUSE, REPORT
from belljar.policy.load import examine


def policy(text: str, risk: str = "high") -> Policy:
    """The policy with that line."""
    read, problems, _ = examine(f"belljar: 1\nrisk: {risk}\n{text}\n".encode(), base=None)
    assert read is not None, problems
    return read


@pytest.mark.parametrize("risk", Risk)
def test_the_default_follows_the_risk(risk: Risk) -> None:
    """From `high` on refused, below reported; what is written comes first."""
    expected = REFUSE if risk >= Risk.HIGH else REPORT
    assert policy("", str(risk)).host_tools_rule == expected
    assert policy("host_tools: report", str(risk)).host_tools_rule == REPORT
    assert policy("host_tools: refuse", str(risk)).host_tools_rule == REFUSE


def test_what_is_named_is_allowed_and_nothing_else() -> None:
    """By the tool's name or its server's."""
    rule = policy("host_tools: {allow: [web_search, notes]}").host_tools_rule
    assert rule.permits(("web_search",))
    assert rule.permits(("mcp_server_notes", "notes"))
    assert not rule.permits(("code_execution",))
    assert not REFUSE.permits(("web_search",))
    assert REPORT.permits(("anything",))


@pytest.mark.parametrize(
    "text",
    [
        "off",
        "[a]",
        "{}",
        "{alow: [a]}",
        "{allow: []}",
        "{allow: a}",
        "{allow: [1]}",
        "{allow: ['']}",
        '{allow: ["\\e"]}',
        "true",
    ],
)
def test_anything_else_is_refused_at_its_place(text: str) -> None:
    """With the field's name."""
    read, problems, _ = examine(f"belljar: 1\nrisk: high\nhost_tools: {text}\n".encode(), base=None)
    assert read is None
    assert all(problem.field.startswith("host_tools") for problem in problems)
    assert {problem.mark.line for problem in problems} == {3}


@pytest.mark.parametrize("written", ["refuse", "report", {"allow": ["a", "b"]}, None])
def test_it_is_shown_as_it_is_written(written: object) -> None:
    """In the record and for `belljar policy`."""
    read = Policy.model_validate({"belljar": 1, "risk": "high", "host_tools": written})
    assert read.to_json()["host_tools"] == written
    assert isinstance(read.host_tools_rule, HostTools)
