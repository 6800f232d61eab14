"""The documentation's examples are true: each Python block runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
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
