"""The documentation's examples are true: each Python block runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.gapped import gapped, whole_machine
from tests.integration.processes import quick_command

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
EXAMPLES = [
    block
    for page in ("python", "revert")
    for block in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())
]


@pytest.mark.vm
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_in_python_runs(
    number: int, home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Example `number` of the pages for Python programs ends with exit code 0 as a program of its own."""
    if "belljar.open_" not in EXAMPLES[number] and "sync.open_" not in EXAMPLES[number]:
        exec(EXAMPLES[number], {})  # noqa: S102 - a solver: its imports take long elsewhere
        return
    program = tmp_path / "example.py"
    # A machine of its own shape is made for minutes of `--thorough` alone.
    tier = "microvm" if request.config.getoption("--thorough") else "container"
    program.write_text(EXAMPLES[number].replace('"tier": "microvm"', f'"tier": "{tier}"'))
    ran = in_folder(tmp_path, home, *quick_command("-m", "example"))
    assert ran.returncode == 0, ran.stderr


def in_folder(folder: Path, home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command there, with this store."""
    env = {**os.environ, "BELLJAR_HOME": str(home)}
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_tutorial_works(home: Path, tmp_path: Path) -> None:
    """With its files in place, each `belljar` command of docs/tutorial.md succeeds in order."""
    for name, text in TITLED.findall(TUTORIAL):
        (tmp_path / name).write_text(text)
    installed = TUTORIAL.split("## 2.")[1]
    outputs = []
    for command in re.findall(r"^\$ belljar (.*)$", installed, re.MULTILINE):
        ran = in_folder(tmp_path, home, *quick_command(*shlex.split(command)))
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        outputs.append(ran.stdout)
    assert len(outputs) >= 10
    assert any("The code is 4711." in output for output in outputs)
    assert any("contained: 1 sample" in output for output in outputs)


def of_section(title: str) -> list[list[str]]:
    """The words of each `belljar` command in a section of the first page."""
    section = (ROOT / "README.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\$ \.venv/bin/belljar ([^#\n]*)", section, re.MULTILINE)
    return [shlex.split(command) for command in found]


@pytest.mark.vm
@pytest.mark.root
@pytest.mark.thorough  # a real model is fetched and talks: minutes
def test_the_first_pages_models_and_air_gap_work(home: Path, tmp_path: Path) -> None:
    """README's commands on models in cells succeed in order; the air gap's check finds no way."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    env = {**os.environ, "BELLJAR_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}
    commands = of_section("A model in a cell")
    assert [words[0] for words in commands] == ["model", "model", "run", "run", "run"]
    for words in commands:
        argv = [sys.executable, "-m", "belljar", *words]
        ran = subprocess.run(
            argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1500, check=False
        )
        assert ran.returncode == 0, f"{words}: {ran.stderr}"
        assert words[0] != "run" or "contained" in ran.stdout
    check = next(words for words in of_section("Without a network") if words[0] == "airgap")
    apart = gapped(*whole_machine(*check))
    ran = subprocess.run(apart, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "air-gapped: " in ran.stdout
