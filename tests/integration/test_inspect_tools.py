"""Inspect's tools in real cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import Tool, bash, bash_session, python, text_editor
from inspect_ai.util import sandbox

import belljar.harness._registry  # noqa: F401 - what the entry point loads
from belljar.harness.operator import Operator
from belljar.harness.session import Session, session_scope
from belljar.ledger.listing import read_events
from belljar.report.cells import gather_cells

pytestmark = [pytest.mark.vm, pytest.mark.slow]


def calls(*steps: tuple[str, dict[str, Any]]) -> list[ModelOutput]:
    """A model that calls these tools in turn and then stops."""
    outputs = [ModelOutput.for_tool_call("mockllm", name, arguments) for name, arguments in steps]
    outputs.append(ModelOutput.from_content("mockllm", "done"))
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return outputs


def answers(log: EvalLog) -> list[str]:
    assert log.samples
    messages = [
        message for message in log.samples[0].messages if isinstance(message, ChatMessageTool)
    ]
    assert not [message.error for message in messages if message.error]
    return [message.text for message in messages]


@solver
def remote_commands() -> Solver:
    """`exec_remote` as its users use it; an assertion that fails is the sample's error."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        box = sandbox()
        process = await box.exec_remote(["sh", "-c", "echo $$ >/tmp/pid; exec sleep 600"])
        while not (await box.exec(["test", "-s", "/tmp/pid"])).success:  # noqa: ASYNC110 - the guest has no event to give
            await anyio.sleep(0.1)
        await process.kill()
        gone = await box.exec(["sh", "-c", "kill -0 $(cat /tmp/pid)"], user="root")
        assert not gone.success, "the killed command still runs"
        return state

    return solve


@pytest.mark.promise("1.6")
@pytest.mark.parametrize("tier", ["container", "gvisor", "microvm"])
@pytest.mark.thorough_in("gvisor", "microvm")
def test_inspects_tools_and_a_samples_files(home: Path, tmp_path: Path, tier: str) -> None:
    """Files and set-up come first, each of four tools works, a remote command is killed."""
    tools: list[Tool] = [bash(), python(), text_editor(), bash_session()]
    notes = {"path": "/tmp/notes.txt"}
    steps = calls(
        ("bash", {"command": "cat /tmp/seen; test -e $(cat /tmp/name) || echo gone"}),
        ("python", {"code": "print(sum(range(10)))"}),
        ("text_editor", {"command": "create", "file_text": "alpha\nbeta\n", **notes}),
        ("text_editor", {"command": "str_replace", "old_str": "beta", "new_str": "gamma", **notes}),
        ("bash", {"command": "cat /tmp/notes.txt"}),
        ("bash_session", {"action": "type_submit", "input": "cd /tmp && export MARK=kept"}),
        ("bash_session", {"action": "type_submit", "input": "echo $MARK-$PWD-$(id -un)"}),
    )
    sample = Sample(
        input="go",
        id="one",
        files={"data/in.txt": "from the sample\n"},
        setup="cat data/in.txt >/tmp/seen; echo $0 >/tmp/name",
    )
    solvers = [use_tools(tools), generate(), remote_commands()]
    session = Session(home=home, given_operator=Operator(run_policy="low", tier=tier))
    with session_scope(session):
        (log,) = inspect_eval(
            Task(dataset=[sample], solver=solvers, sandbox="belljar"),
            model=get_model("mockllm/model", custom_outputs=steps),
            log_dir=str(tmp_path),
            display="none",
        )
    assert log.status == "success", log.error
    said = answers(log)
    assert said[0] == "from the sample\ngone\n"
    assert said[1].strip() == "45"
    assert said[4] == "alpha\ngamma\n"
    assert "kept-/tmp" in said[6]
    assert "root" not in said[6]
    run_dir = sorted((home / "runs").iterdir())[-1]
    (cell,) = [c for c in gather_cells(read_events(run_dir)).values() if c.sample == "one"]
    assert log.samples
    assert (cell.clean, cell.uuid) == (True, log.samples[0].uuid)
