"""`belljar probe` over a cell that answers as a test says: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.fakes.probing import FakeProbed, FakeProgram, read_canary

from belljar.cell.range import Range
from belljar.cli.main import run
from belljar.errors import LedgerError
from belljar.ledger.writer import LedgerWriter
from belljar.policy.limits import NOTHING_GRANTED
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.catalogue import PROBES
from belljar.probe.judge import Router
from belljar.probe.model import AttemptOutcome


class Opened(FakeProbed):
    """An emulated cell with the whole catalogue, to which everything is denied, and a user."""

    emulated = True
    opened = 0
    router: Router | None = None

    def __init__(self) -> None:
        super().__init__()
        self.run_probe_program = FakeProgram(PROBES)
        self.plan = SimpleNamespace(
            limits=self.plan.limits,
            oci=None,
            policy=self.plan.policy,
            rights=NOTHING_GRANTED,
            user="user",
            layers=[SimpleNamespace(name="jail")],
        )


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """The cell that the command opens; the test's own namespaces are hidden behind a pid."""
    opened = Opened()

    @asynccontextmanager
    async def open_range(loaded: LoadedPolicy, **_: Any) -> AsyncIterator[Range]:  # noqa: ANN401 - as the real one
        opened.opened += 1
        opened.tier = str(loaded.policy.tier or opened.tier)
        routers = {} if opened.router is None else {opened.id: opened.router}
        yield Range(cell=cast("Any", opened), routers=routers)

    monkeypatch.setattr("belljar.cell.open.open_range", open_range)
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    return opened


def test_breached(cell: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """A canary that was read: exit code 2, what was tried and why. Details act on nothing."""
    cell.run_probe_program.touch = read_canary
    cell.run_probe_program.outcomes["files.read_host"] = (AttemptOutcome.REACHED, "\x1b[2J[red]x")
    assert run(["probe", "--group", "files"]) == 2
    out = capsys.readouterr().out
    about = next(probe for probe in PROBES if probe.name == "files.read_host")
    assert about.why.split()[0] in out
    assert "\x1b" not in out
    assert "[red]x" in out


@pytest.mark.parametrize("touch", [True, False])
def test_a_breach_is_told_though_its_run_can_not_be_sealed(
    cell: Opened, monkeypatch: pytest.MonkeyPatch, *, touch: bool
) -> None:
    """A full disk would read as a fault of the record; without a breach it is one."""
    if touch:
        cell.run_probe_program.touch = read_canary
    monkeypatch.setattr(LedgerWriter, "seal", Mock(side_effect=LedgerError("no space left")))
    assert run(["probe", "--group", "files"]) == (2 if touch else 5)


def test_all_is_tried_as_root_too(cell: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """`--all` runs the catalogue as the policy's user and as root; JSON has both and the walls."""
    code = run(["probe", "--all", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [len(report["findings"]) for report in said["reports"]] == [len(PROBES)] * 2
    assert [report["user"] for report in said["reports"]] == ["", "root"]
    assert cell.opened == 2  # what the first left is not the second's
    assert (said["tier"], said["layers"], said["emulated"]) == ("microvm", ["jail"], True)
    # No process of a cell stands behind this one: what the host must look at there is void, and
    # never contained.
    assert (code, said["verdict"]) == (2, "void")
