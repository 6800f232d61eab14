"""A unit that comes back: verified by its node's key and run, or nothing of it counts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from belljar.dataclass import replace
from belljar.errors import LedgerError, PolicyError
from belljar.events import Event, JsonValue, Kind
from belljar.fleet.archive import pack_run
from belljar.fleet.judge import KIND
from belljar.fleet.record import UNITS, Came, examine, plan_of, stored_fleet, tries_on_record
from belljar.fleet.units import Unit
from belljar.ledger import RunDirectory, create_run, local_fingerprint
from belljar.probe.model import Verdict

UNIT = Unit(number=1, samples=("a",))


@pytest.fixture
def came(tmp_path: Path) -> Came:
    """A node's sealed run, as an archive in a fleet's run directory."""
    node = tmp_path / "node"
    with create_run(node, "run", ["belljar"]) as run:
        evaluated: dict[str, JsonValue] = {"interrupted": False, "stopped": False, "errors": []}
        run.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=evaluated))
    return archived(run, tmp_path, node)


def archived(run: RunDirectory, fleet: Path, node: Path) -> Came:
    """The run's archive."""
    content = b"".join(pack_run(run.path))
    (fleet / UNITS).mkdir(exist_ok=True)
    (fleet / UNITS / f"{UNIT.name}.tar").write_bytes(content)
    return Came(
        unit=UNIT,
        node="n",
        run_id=run.run_id,
        key=local_fingerprint(node) or "",
        root="",
        archive=hashlib.sha256(content).hexdigest(),
    )


def test_a_unit_is_judged_by_its_own_record(tmp_path: Path, came: Came) -> None:
    """Its root is the one that the fleet's ledger keeps."""
    findings, root = examine(came.path(tmp_path), came)
    assert findings.run_id == came.run_id
    assert examine(came.path(tmp_path), replace(came, root=root))[1] == root


@pytest.mark.parametrize("field", ["key", "root", "archive"])
def test_another_key_root_or_archive_is_refused(tmp_path: Path, came: Came, field: str) -> None:
    """A node that signs with another key, a run put in another's place, bytes changed since."""
    with pytest.raises(LedgerError):
        examine(came.path(tmp_path), replace(came, **{field: "0" * 64}))  # type: ignore[arg-type]


def test_another_run_is_refused(tmp_path: Path, came: Came) -> None:
    """Though it is genuine, and of the same node."""
    with pytest.raises(LedgerError):
        examine(came.path(tmp_path), replace(came, run_id="20200101-000000000-000000"))


def fleet_run(home: Path, came: Came) -> Path:
    """A fleet's run with one unit."""
    with create_run(home, KIND, ["belljar"]) as run:
        folder = run.path / UNITS
        folder.mkdir()
        came.path(run.path).write_bytes((home.parent / UNITS / f"{UNIT.name}.tar").read_bytes())
        about: dict[str, JsonValue] = {"unit": 1, "attempt": 1, "node": "n", "samples": ["a"]}
        _, root = examine(came.path(run.path), came)
        events: tuple[tuple[Kind, dict[str, JsonValue]], ...] = (
            (
                Kind.FLEET_PLANNED,
                {"task": "t", "samples": ["a"], "epochs": 1, "code": "0" * 64},
            ),
            (Kind.FLEET_UNIT_PLACED, about),
            (
                Kind.FLEET_UNIT_FINISHED,
                {
                    **about,
                    "run_id": came.run_id,
                    "key": came.key,
                    "root": root,
                    "archive": came.archive,
                    "bytes": 1,
                    "verdict": "void",
                },
            ),
            (
                Kind.RUN_EVALUATED,
                {"interrupted": False, "stopped": False, "errors": [], "causes": []},
            ),
        )
        for kind, data in events:
            run.recorder.record(Event(kind=kind, data=data))
    return run.path


def test_a_fleet_is_judged_again_offline(tmp_path: Path, came: Came) -> None:
    """From its ledger and its archives; one that was replaced is bad evidence for all of it."""
    home = tmp_path / "head"
    run = fleet_run(home, came)
    asked, tries, found = tries_on_record(run)
    assert (asked.samples, [each.node for each in tries], [*found]) == (("a",), ["n"], ["00001-1"])
    key = local_fingerprint(home)
    findings, lines = stored_fleet(run, expected_key=key, expected_run=run.name)
    assert {row.transcript.sample for row in findings.rows} == {"a"}
    assert "1 unit(s) on 1 node(s)" in lines[0]
    came.path(run).write_bytes(b"")
    findings, _ = stored_fleet(run, expected_key=key, expected_run=run.name)
    assert findings.verdict is Verdict.VOID
    assert {reason.code.value for reason in findings.problems} >= {"ledger_bad"}


def test_without_a_known_key_nothing_is_proven(tmp_path: Path, came: Came) -> None:
    """As for any run."""
    run = fleet_run(tmp_path / "head", came)
    findings, _ = stored_fleet(run, expected_key=None, expected_run=None)
    assert {reason.code.value for reason in findings.problems} >= {"ledger_bad"}


def test_only_a_fleets_run_is_resumed(tmp_path: Path, came: Came) -> None:
    """A run of another kind, and one that is not there, are refused."""
    home = tmp_path / "head"
    run = fleet_run(home, came)
    assert plan_of(home, run.name)[1]["task"] == "t"
    with create_run(home, "run", ["belljar"]) as other:
        pass
    for name in (other.run_id, "20200101"):
        with pytest.raises(PolicyError):
            plan_of(home, name)
