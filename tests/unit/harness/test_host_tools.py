"""Tools that act outside of a cell, refused before they act. Real Inspect, fake cells."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from inspect_ai.model import GenerateConfig
from inspect_ai.tool import INTERNAL_TOOL_TYPE, ToolInfo
from inspect_ai.util import LimitExceededError
from tests.unit.harness.runs import evaluated

from belljar.errors import ContainmentBreach
from belljar.harness.boundary import LookAtSamples, controlled
from belljar.harness.evaluate import RunOutcome
from belljar.harness.operator import Operator
from belljar.harness.session import Session
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode
from belljar.report.tools import Outside

TASK = """
import sys
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant, ChatCompletionChoice, ContentToolUse, ModelOutput, ModelUsage, get_model
)
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import ToolCall, ToolDef, bash, mcp_server_stdio, notify_user, tool, tool_with, web_search
from inspect_ai.util import sandbox

SERVER = [sys.executable, "-c", "from pathlib import Path; Path('server_ran').touch()"]

def model(*calls, answer=None):
    outputs = [ModelOutput.for_tool_call("mockllm/model", name, arguments) for name, arguments in calls]
    outputs.append(answer or ModelOutput.from_content("mockllm/model", "done"))
    for output in outputs:
        # else the tokens are counted, by a table that is not on this host
        output.usage = ModelUsage()
    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)

def one(solver, *calls, **more):
    return Task(dataset=[Sample(id="s", input="x")], solver=solver, model=model(*calls, **more))

@tool
def fetch():
    async def execute(url: str) -> str:
        '''Fetch.

        Args:
            url: Where.
        '''
        Path("fetched").touch()
        return "fetched"
    return execute

@solver
def late(*tools):
    "Makes its tools while it runs: nobody sees them when the task is loaded."
    def renamed(): return ToolDef(tool_with(notify_user(), name="note"), name="web_search").as_tool()
    makers = {"renamed": renamed, "mcp": lambda: mcp_server_stdio(name="notes", command=SERVER[0], args=SERVER[1:])}
    async def solve(state, generate):
        made = [makers[name]() for name in tools]
        state = await use_tools(*made)(state, generate)
        Path("offered").touch()
        return await generate(state)
    return solve

@solver
def by_hand():
    "Executes a call that no model was offered."
    async def solve(state, generate):
        from inspect_ai.model import execute_tools
        message = ChatMessageAssistant(content="", tool_calls=[ToolCall(id="1", function="web_search", arguments={"query": "x"})])
        await execute_tools([message], [web_search("tavily")])
        return state
    return solve

@task
def late_mcp(): return one(late("mcp"))
@task
def late_renamed(): return one(late("renamed"), ("web_search", {"title": "t", "message": "m"}))
@task
def extra_body():
    return Task(dataset=[Sample(id="s", input="x")], solver=generate(extra_body={"plugins": [{"id": "web"}]}), model=model())
@task
def called_by_hand(): return one(by_hand())
@task
def own_tools():
    return one([use_tools(bash(), fetch()), generate(tool_calls="loop")], ("bash", {"command": "echo hi"}), ("fetch", {"url": "x"}), ("fetch", {"url": "y"}))
@task
def hosted():
    use = ContentToolUse(tool_type="web_search", id="1", name="web_search", arguments="{}", result="found")
    answer = ModelOutput(model="mockllm/model", choices=[ChatCompletionChoice(message=ChatMessageAssistant(content=[use]))])
    return one(generate(), answer=answer)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "named.yaml").write_text(
        "belljar: 1\nrisk: high\nhost_tools: {allow: [web_search]}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(here: Path, task: str, policy: str = "high") -> RunOutcome:
    """Run one of the tasks; no cell of the host's."""
    return evaluated(here, f"task.py@{task}", policy=policy)


needs_mcp = pytest.mark.skipif(find_spec("mcp") is None, reason="the package mcp is not installed")


@pytest.mark.promise("1.5", "1.9")
@pytest.mark.parametrize(
    ("task", "policy", "said"),
    [
        ("called_by_hand", "high", "outside of the cell"),
        pytest.param("late_mcp", "high", "outside of the cell", marks=needs_mcp),
        ("late_renamed", "named.yaml", "notify_user"),
    ],
)
def test_a_tool_that_the_policy_refuses_stops_the_run(
    here: Path, task: str, policy: str, said: str
) -> None:
    """Before the model is asked, the tool called, or the server started."""
    outcome = run(here, task, policy)
    assert outcome.exit_code == 2
    problems = outcome.findings.problems
    late = [each.detail for each in problems if each.code is ReasonCode.LATE_HOST_TOOL]
    assert any(said in detail for detail in late)
    assert not (here / "server_ran").exists()
    used = [row.transcript.tools[0] for row in outcome.findings.rows if row.transcript.tools]
    assert policy != "high" or not any(use.reached_cell for use in used)


@pytest.mark.promise("1.9")
@pytest.mark.parametrize(("allowed", "code"), [("web_search", 2), ("extra_body", 0), ("'*'", 0)])
def test_an_extra_body_may_ask_a_provider_to_act(here: Path, allowed: str, code: int) -> None:
    """It is refused before the model is asked, unless the policy names it; then it is counted."""
    (here / "body.yaml").write_text(f"belljar: 1\nrisk: high\nhost_tools: {{allow: [{allowed}]}}\n")
    outcome = run(here, "extra_body", "body.yaml")
    assert outcome.exit_code == code
    if not code:
        (use,) = outcome.findings.tools
        assert (use.name, use.calls, use.outside) == ("extra_body", 1, Outside.EXTRA_BODY)


@pytest.mark.promise("1.9")
def test_a_tool_is_not_offered_where_the_policy_can_not_be_read(tmp_path: Path) -> None:
    """Inspect goes on after any error of a hook but a limit's; the run is stopped too."""
    session = Session(given_operator=Operator(run_policy=str(tmp_path / "gone.yaml")))
    offered = [ToolInfo(name="x", description="x", options={INTERNAL_TOOL_TYPE: "web_search"})]
    data: Any = SimpleNamespace(tools=offered, config=GenerateConfig())
    with controlled(session), pytest.raises(LimitExceededError):
        anyio.run(LookAtSamples().on_before_model_generate, data)
    assert isinstance(session.stopped, ContainmentBreach)


@pytest.mark.promise("1.9")
def test_tools_are_counted_and_those_that_never_reach_a_cell_are_named(here: Path) -> None:
    """From the transcript, in the findings."""
    outcome = run(here, "own_tools")
    uses = {use.name: (use.calls, use.reached_cell) for use in outcome.findings.tools}
    assert (uses["bash"], uses["fetch"]) == ((1, 1), (2, 0))
    assert [use.name for use in outcome.findings.tools if use.is_unexplained] == ["fetch"]
    assert (here / "fetched").exists()
    assert (outcome.exit_code, outcome.findings.verdict) == (0, Verdict.CONTAINED)


@pytest.mark.promise("1.9")
@pytest.mark.parametrize(("policy", "code"), [("high", 2), ("low", 0)])
def test_what_a_provider_did_by_itself_voids_the_sample(here: Path, policy: str, code: int) -> None:
    """No tool was offered, so nothing could be refused before."""
    outcome = run(here, "hosted", policy)
    (row,) = outcome.findings.rows
    codes = [reason.code for reason in row.reasons]
    assert codes == ([ReasonCode.HOST_TOOL_CALLED] if code else [])
    assert outcome.exit_code == code
