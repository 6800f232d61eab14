"""The public names, imported late, and what a short command imports: counted, not timed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import belljar


def test_the_librarys_names_are_found() -> None:
    """Each name of `belljar.__all__` is there; another is an `AttributeError`."""
    assert [name for name in belljar.__all__ if not hasattr(belljar, name)] == []
    with pytest.raises(AttributeError):
        belljar.no_such_name  # noqa: B018


def test_importing_belljar_costs_nothing() -> None:
    """Nothing but the standard library's comes with it, and no room."""
    code = "import sys; before = set(sys.modules); import belljar; print(set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name for name in ast.literal_eval(ran.stdout) if name.startswith("belljar.")}
    assert found == {"belljar.package"}
    rooms = {name.split(".")[0] for name in ast.literal_eval(ran.stdout)}
    assert rooms - sys.stdlib_module_names == {"belljar"}


HEAVY = {
    *("pydantic", "ruamel", "cryptography", "asyncio", "anyio", "rich", "inspect_ai", "uvicorn"),
    *("wsproto", "dulwich"),
}


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
    assert modules & HEAVY == set()
