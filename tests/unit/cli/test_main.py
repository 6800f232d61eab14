"""The command group: what a user mistypes, and where its own input and output may not lead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.ledger.conftest import make_run


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["policy schema", "export"])
def test_output_that_can_not_be_written_is_one_message(
    command: str, unbuffered: str, tmp_path: Path
) -> None:
    """A full disk behind standard output: exit 3, what happened and what to do, no traceback."""
    words = [*command.split(), *([str(make_run(tmp_path))] if command == "export" else [])]
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "belljar", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert ran.returncode == 3
    said = "belljar: standard output can't be written: No space left on device"
    assert ran.stderr.splitlines()[0] == said
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_descriptor_is_an_empty_one(closed: str) -> None:
    """Its number is no file's of ours: `main` puts /dev/null there, and ends as it would have."""
    look = (
        "import os,sys; from belljar.cli import main as m; m._open_standard_streams();"
        " os._exit(os.open('.', 0) < 3 or None in (sys.stdin, sys.stdout, sys.stderr))"
    )
    argv = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", look]
    assert subprocess.run(argv, check=False).returncode == 0
