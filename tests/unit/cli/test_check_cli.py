"""`belljar check` and `belljar policy check`: real Inspect, no cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from belljar.cli.main import run

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def many(n: int = 3) -> Task:
    samples = [Sample(id=i, input="x", metadata={"kind": i % 2}) for i in range(1, n + 1)]
    bad = Sample(id=n + 1, input="x", sandbox=("docker", "bad-compose.yaml"))
    return Task(dataset=[*samples, bad], sandbox=("docker", "compose.yaml"))
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task in the working directory, and an empty store."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BELLJAR_POLICY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "compose.yaml").write_text(
        "services: {default: {image: 'team/i-${SAMPLE_METADATA_KIND}', tty: true}}"
    )
    (tmp_path / "bad-compose.yaml").write_text("services: {default: {image: i, gpus: all}}")
    return tmp_path


def checked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = run(["check", *arguments, "--json"])
    out = capsys.readouterr().out
    said = json.loads(out[out.index("{") :])  # Inspect's own banner goes past pytest's capture
    assert isinstance(said, dict)
    return code, said


@pytest.mark.promise("1.5")
def test_each_sample_of_a_task_has_an_outcome(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those with the same outcome together, one's refusal beside the others; nothing is made."""
    arguments = ("task.py@many", "-T", "n=40", "--policy", "low")
    code, said = checked(*arguments, capsys=capsys)
    groups = said["groups"]
    assert isinstance(groups, list)
    assert code == said["exit_code"] == 4
    assert [len(group["samples"]) for group in groups] == [20, 20, 1]
    assert [group["outcome"] for group in groups][-1] == "refused"
    assert [fact["key"] for fact in groups[2]["differences"]] == ["gpus"]
    assert not (directory / "home" / "runs").exists()


@pytest.mark.promise("1.5")
def test_hostile_words_of_a_task_are_escaped(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a file holds: nothing of it acts on the terminal."""
    (directory / "compose.yaml").write_text(
        'services: {"d\\e[2J": {image: "x\\e]0;t\\a", "k\\e[1m": 1, working_dir: "/\\u202e"}}'
    )
    run(["check", "compose.yaml"])
    shown = capsys.readouterr()
    assert not set("\x1b\x07\u202e") & set(shown.out + shown.err)


@pytest.mark.promise("1.1")
def test_wrong_fields_are_listed_at_once_and_then_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All wrong fields at once; once they are right, missing files and what is in the others."""
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec/a.har").write_text("no json")
    file = tmp_path / "p.yaml"
    text = (
        "belljar: 1\nrisk: low\nresources: {memory: 512MiB}\n"
        "files: [{source: absent, target: /x}]\nnetwork:\n  stand_ins:\n"
        "    site: {kind: har, names: [a.example], recording: rec/a.har}\n"
    )
    wrong = text.replace("512MiB", "512M").replace("/x", "/proc/x").replace("har, names", "htpp, n")
    for written, places in (
        (
            wrong,
            [(3, "resources.memory"), (4, "files[0].target"), (7, "network.stand_ins.site.kind")],
        ),
        (text, [(4, "files[0].source"), (7, "network.stand_ins.site.recording")]),
    ):
        file.write_text(written)
        assert run(["policy", "check", "--json", str(file)]) == 4
        found = json.loads(capsys.readouterr().out)["problems"]
        assert [(each["line"], each["field"]) for each in found] == places
        assert run(["policy", "check", str(file)]) == 4
        told = capsys.readouterr().err
        assert all(
            f"{file}:{each['line']}:{each['column']}: {each['field']}: " in told for each in found
        )
