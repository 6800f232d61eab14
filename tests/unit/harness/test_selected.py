"""Which samples run: what Inspect's own log says ran, and words that run some elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai._cli.eval import eval_command
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import list_eval_logs, read_eval_log

from belljar.errors import PolicyError
from belljar.harness.evaluate import load_only
from belljar.harness.options import (
    RunRequest,
    SelectedTask,
    Selection,
    read_options,
    read_selection,
    select_task,
)
from belljar.policy.limits import Tier

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def names(ids: str = "a b c"):
    return Task(dataset=[Sample(id=name, input="x") for name in ids.split()], epochs=3, time_limit=60)

@task
def other():
    return names()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "low.yaml").write_text("belljar: 1\nrisk: low\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    return tmp_path


def select(*words: str, **more: object) -> SelectedTask:
    arguments = ["task.py@names", "--model", "mockllm/model", *words]
    request = RunRequest(inspect_args=arguments, **more)  # type: ignore[arg-type]
    return select_task(request, load_only(request))


def test_the_selection_and_what_a_unit_runs(folder: Path) -> None:
    """Samples by Inspect's options, in its order."""
    found = select("--limit", "2", "--temperature=0.5", policy="low.yaml")
    assert (found.samples, found.epochs, found.time_limit_s) == (("a", "b"), 3, 60.0)
    assert (found.tier, found.root) == (Tier.CONTAINER, folder)
    assert (found.memory_mib, found.needs_hardware) == (512 + 512 + 192, False)
    words = found.unit_words(["b"], cells=4)
    assert words[:3] == ["task.py@names", "--policy", "low.yaml"]
    assert "--limit" not in words
    assert words[words.index("--sample-id") + 1] == "b"
    assert "--temperature=0.5" in words
    assert select("--sample-id=c").samples == ("c",)
    shuffled = select("--sample-shuffle", "42")
    assert sorted(shuffled.samples) == ["a", "b", "c"]
    assert not {"--sample-shuffle", "42"} & {*shuffled.unit_words(["b"], cells=1)[:-4]}
    assert select().tier is Tier.MICROVM
    assert select("--epochs", "2").epochs == 2


@pytest.mark.parametrize(
    "words",
    [
        *(["-T", f"ids={ids}"] for ids in ("a,b c", "01 1", "x names:x", "a*", "[x]")),
        *(["--sample-shuffle"], ["--model", "belljar/model.yaml"], ["task.py@other"]),
        ["--model", "mockllm/a,mockllm/b"],
    ],
    ids=lambda words: words[-1],
)
def test_what_units_can_not_share_is_refused(words: list[str]) -> None:
    """A unit would run other samples than it was given."""
    with pytest.raises(PolicyError):
        select(*words)


SEVEN = """\
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def seven():
    return Task(dataset=[Sample(input="x", id=None if n in (2, 3) else f"s{n}") for n in range(7)])
"""


def seven() -> Task:
    samples = [Sample(input="x", id=None if n in (2, 3) else f"s{n}") for n in range(7)]
    return Task(dataset=MemoryDataset(samples), name="seven")


def chosen(selection: Selection, task: Task) -> list[str]:
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
    Path("seven.py").write_text(SEVEN)
    words = ["seven.py", "--model", "mockllm/model", "--display", "none", *options]
    eval_command.main([*words, "--log-dir", "logs"], standalone_mode=False)
    assert chosen(read_selection(read_options(words)), seven()) == ran(tmp_path / "logs")
