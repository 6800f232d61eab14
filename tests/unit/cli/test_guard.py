"""`belljar guard scan`."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

import pytest

from belljar.cli.main import run

POLICY = """belljar: 1
risk: high
guard:
  protect:
    - {id: codename, value: ORCHID-7731-DELTA}
    - {id: customers, file: customers.csv, columns: [email]}
  classes: [card]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a policy and a protected file."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "customers.csv").write_text("name,email\nAda,ada@customer.io\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scan_ends_as_grep_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 when something is found, 0 when not, 2 when a file is not there."""
    (here / "a.txt").write_bytes(b"x " + base64.b64encode(b"ORCHID-7731-DELTA") + b" y")
    (here / "b.txt").write_text("nothing")
    assert run(["guard", "scan", "--policy", "policy.yaml", "b.txt", "a.txt"]) == 1
    shown = capsys.readouterr().out
    assert "a.txt: bytes 2-26" in shown
    assert "codename" in shown
    assert "base64" in shown
    assert "ORCHID" not in shown
    assert run(["guard", "scan", "--policy", "policy.yaml", "b.txt"]) == 0
    assert run(["guard", "scan", "missing.txt"]) == 2


def test_scan_reads_standard_input_and_prints_json(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class, place, encoding and digest of each hit, never the value."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"mail ada@customer.io now")))
    assert run(["guard", "scan", "--policy", "policy.yaml", "--json", "-"]) == 1
    (file,) = json.loads(capsys.readouterr().out)["files"]
    (hit,) = file["hits"]
    assert (hit["class"], hit["value"], hit["start"], hit["end"]) == (
        "protected",
        "customers/1",
        5,
        20,
    )
    assert "ada@" not in json.dumps(file)


def test_a_protected_file_that_is_missing_is_the_policys_fault(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 4, and the file is named."""
    (here / "customers.csv").unlink()
    (here / "b.txt").write_text("nothing")
    assert run(["guard", "scan", "--policy", "policy.yaml", "b.txt"]) == 4
    assert "customers.csv" in capsys.readouterr().err
