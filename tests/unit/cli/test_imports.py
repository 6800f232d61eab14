"""What a command imports: the start of a short command is mostly that. Modules are counted, not
time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = [
    "pydantic",
    "ruamel",
    "cryptography",
    "asyncio",
    "anyio",
    "rich",
    "inspect_ai",
    "uvicorn",
    "wsproto",
    "dulwich",
]


def imported(home: Path, code: str) -> set[str]:
    """The modules that a fresh interpreter has after this code."""
    look = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "BELLJAR_HOME": str(home)}
    argv = [sys.executable, "-c", look]
    ran = subprocess.run(argv, check=True, capture_output=True, text=True, env=environment)
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", [["--help"], ["ps"], ["exec", "--help"]])
def test_commands_that_only_look_import_nothing_heavy(tmp_path: Path, command: list[str]) -> None:
    """Help and the list of cells need no policy, no keys and no event loop."""
    modules = imported(tmp_path, f"from belljar.cli.main import run; run({command})")
    assert modules & set(HEAVY) == set()
