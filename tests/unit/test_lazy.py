"""The public names, imported late."""

from __future__ import annotations

import ast
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
    """Nothing but the standard library's comes with it, and no room: only what knows the
    version."""
    code = "import sys; before = set(sys.modules); import belljar; print(set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name for name in ast.literal_eval(ran.stdout) if name.startswith("belljar.")}
    assert found == {"belljar.package"}
    rooms = {name.split(".")[0] for name in ast.literal_eval(ran.stdout)}
    assert rooms - sys.stdlib_module_names == {"belljar"}


USER = """
import signal
from pathlib import Path

import belljar

def use(policy: belljar.Policy) -> str:
    with belljar.sync.open_cell({"belljar": 1, "risk": "low"}) as cell:
        output: belljar.ExecOutput = cell.exec(["true"], input="text", env={**cell.env})
        with cell.open_exec(["cat"]) as running:
            for stream, chunk in running:
                piece: bytes = chunk
            running.signal(signal.SIGTERM)
        cell.write_file("a", "text")
        contents: bytes = cell.read_file("a", max_bytes=10)
    try:
        with belljar.sync.open_range(Path("policy.yaml")) as opened, belljar.sync.open_pool(policy) as pool:
            opened.cell.exec(["true"]).check()
            with pool.cell() as other:
                return other.exec(["id"]).stdout_text
    except (belljar.PolicyError, belljar.HostError, belljar.ContainmentBreach) as error:
        return error.hint
    except belljar.CommandError as failed:
        return failed.output.stderr_text

async def use_async() -> bytes:
    async with belljar.open_cell("low") as cell, belljar.open_range("low") as opened:
        network_cell: belljar.Cell = opened.cell
        return (await cell.exec(["true"])).stdout
"""


def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    """A type checker sees every name, and each method's types."""
    program = tmp_path / "program.py"
    program.write_text(USER)
    names = "\n".join(f"belljar.{name}" for name in belljar.__all__)
    (tmp_path / "names.py").write_text(f"import belljar\n{names}\n")
    argv = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file="]
    argv += [str(program), str(tmp_path / "names.py")]
    cache = {**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=cache, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
