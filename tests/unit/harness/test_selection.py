"""Which samples run is what Inspect's own log says ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai._cli.eval import eval_command
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import list_eval_logs, read_eval_log

from belljar.harness.options import Selection, read_options, read_selection

TASK = """\
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def seven():
    return Task(dataset=[Sample(input="x", id=None if n in (2, 3) else f"s{n}") for n in range(7)])
"""


def seven() -> Task:
    """As `TASK`."""
    samples = [Sample(input="x", id=None if n in (2, 3) else f"s{n}") for n in range(7)]
    return Task(dataset=MemoryDataset(samples), name="seven")


def chosen(selection: Selection, task: Task) -> list[str]:
    """The ids of the samples that run."""
    selection.order(task)
    return sorted(str(task.dataset[each].id) for each in selection.positions(task, ["seven"]))


def ran(directory: Path) -> list[str]:
    """The ids of the samples of the one log there."""
    (log,) = list_eval_logs(str(directory))
    return sorted(str(sample.id) for sample in read_eval_log(log).samples or ())


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--limit", "6-20"],
        ["--limit", "2-4", "--sample-shuffle", "7"],
        ["--sample-id", "s1,3,seven:s6"],
    ],
    ids=" ".join,
)
def test_the_same_samples_as_inspects(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Inspect's own command line and the log that it writes."""
    monkeypatch.chdir(tmp_path)
    Path("seven.py").write_text(TASK)
    words = ["seven.py", "--model", "mockllm/model", "--display", "none", *options]
    eval_command.main([*words, "--log-dir", "logs"], standalone_mode=False)
    assert chosen(read_selection(read_options(words)), seven()) == ran(tmp_path / "logs")
