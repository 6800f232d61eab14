"""What a node takes over from the head."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from belljar.fleet import node
from belljar.fleet.node import settings_of

DYING = """#!{python}
import os, signal, sys
from pathlib import Path
from belljar.ledger.rundir import create_run
with create_run(Path(os.environ["BELLJAR_HOME"]), "run", []) as run:
    Path(os.environ["BELLJAR_RUN_NOTED_IN"]).write_text(str(run.path))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_record_of_a_process_that_died_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints nothing at its end, and its directory goes to the head all the same."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    (tmp_path / "fleet" / "f" / "task").mkdir(parents=True)
    program = tmp_path / "program"
    program.write_text(DYING.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    *pieces, end = node.run_unit("f", "00001-1", [], dict(os.environ))
    assert isinstance(end, dict)
    (run,) = (tmp_path / "runs").iterdir()
    assert (end["run_id"], end["exit_code"]) == (run.name, -9)
    archive = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert b"ledger.jsonl" in archive


def test_settings_go_along_and_secrets_and_choices_of_samples_do_not() -> None:
    """Options go along, but neither keys of the head nor which samples it selects."""
    environ = {
        "INSPECT_EVAL_MAX_RETRIES": "3",
        "BELLJAR_POLICY": "low",
        "INSPECT_EVAL_LIMIT": "5",
        "INSPECT_EVAL_SAMPLE_ID": "a",
        "INSPECT_EVAL_SAMPLE_SHUFFLE": "1",
        "OPENAI_API_KEY": "secret",
        "RAY_AUTH_TOKEN": "secret",
    }
    kept = {name: environ[name] for name in ("INSPECT_EVAL_MAX_RETRIES", "BELLJAR_POLICY")}
    assert settings_of(environ) == kept
