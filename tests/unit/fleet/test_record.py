"""A unit that comes back: verified by its node's key and run, or nothing of it counts."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar.cli.main import run as belljar
from belljar.dataclass import replace
from belljar.errors import LedgerError
from belljar.events import Event, JsonValue, Kind
from belljar.fleet import archive
from belljar.fleet.archive import pack
from belljar.fleet.record import UNITS, archive_of, examine, findings_of, record_of
from belljar.fleet.units import KIND, Try, Unit
from belljar.harness.evidence import stored_evidence
from belljar.ledger.keys import load_or_make_key, local_fingerprint
from belljar.ledger.redaction import CLASSES, choose, share
from belljar.ledger.rundir import RunDirectory
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode
from belljar.report.samples import RunFindings, collect

UNIT = Unit(number=1, samples=("a",))
EVALUATED: dict[str, JsonValue] = {"interrupted": False, "stopped": False, "errors": []}


@pytest.fixture
def came(tmp_path: Path) -> Try:
    """A node's sealed run, as an archive in a fleet's run directory."""
    return sent(tmp_path)


def sent(
    fleet: Path,
    kind: str = "run",
    during: Callable[[RunDirectory], object] = lambda _: None,
    after: Callable[[RunDirectory], object] = lambda _: None,
) -> Try:
    """The same of this kind, to which this was done while it was written or when it was sealed."""
    with RunDirectory(fleet / "node", kind, ["belljar"]) as run:
        during(run)
        run.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=EVALUATED))
        run.write_json("findings.json", {})
    after(run)
    return archived(run, fleet, fleet / "node")


def archived(run: RunDirectory, fleet: Path, node: Path) -> Try:
    content = b"".join(pack(run.path))
    (fleet / UNITS).mkdir(exist_ok=True)
    (fleet / UNITS / f"{UNIT.name}.tar").write_bytes(content)
    return Try(
        unit=UNIT,
        node="n",
        run_id=run.run_id,
        key=local_fingerprint(node) or "",
        archive=hashlib.sha256(content).hexdigest(),
    )


@pytest.mark.parametrize("field", ["key", "root", "archive", "run_id"])
def test_another_key_root_archive_or_run_is_refused(tmp_path: Path, came: Try, field: str) -> None:
    """Another key, a run in another's place, changed bytes, another genuine run of the node."""
    with pytest.raises(LedgerError):
        examine(tmp_path, replace(came, **{field: "0" * 64}))  # type: ignore[arg-type]


def bomb(run: RunDirectory) -> None:
    with zipfile.ZipFile(run.inspect_log_dir / "a.eval", "w", zipfile.ZIP_DEFLATED) as log:
        log.writestr("header.json", bytes(1 << 20))


def purged(run: RunDirectory) -> None:
    key, copy = load_or_make_key(run.path.parents[1]), run.path.with_name("copy")
    share(run.path, copy, choose(run.path, ["logs"]), key)
    shutil.rmtree(run.path)
    copy.rename(run.path)


@pytest.mark.parametrize(
    ("how", "said"),
    [("another kind", "no record of"), ("a part", "left contents out"), ("a zip bomb", "expands")],
)
def test_a_record_that_is_not_a_whole_evaluations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    """Another kind has no samples that its log must name, who left contents out chose what is
    judged, and a node that signs a zip bomb loses its unit before Inspect reads it."""
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 1 << 19)
    kind = "cell" if how == "another kind" else "run"
    acts = {"during": bomb} if how == "a zip bomb" else {"after": purged} if how == "a part" else {}
    with pytest.raises(LedgerError, match=said):
        examine(tmp_path, sent(tmp_path, kind, **acts))


def fleet_run(home: Path, came: Try, verdict: str = "void") -> Path:
    with RunDirectory(home, KIND, ["belljar"]) as run:
        folder = run.path / UNITS
        folder.mkdir()
        archive_of(run.path, UNIT).write_bytes(
            (home.parent / UNITS / f"{UNIT.name}.tar").read_bytes()
        )
        about: dict[str, JsonValue] = {"unit": 1, "attempt": 1, "node": "n", "samples": ["a"]}
        ended: dict[str, JsonValue] = {**about, "run_id": came.run_id, "key": came.key}
        ended |= {"root": examine(run.path, came).root, "archive": came.archive}
        ended |= {"bytes": 1, "verdict": verdict}
        plan: dict[str, JsonValue] = {"task": "t", "samples": ["a"], "epochs": 1, "code": "0" * 64}
        events: tuple[tuple[Kind, dict[str, JsonValue]], ...] = (
            (Kind.FLEET_PLANNED, plan),
            (Kind.FLEET_UNIT_PLACED, about),
            (Kind.FLEET_UNIT_FINISHED, ended),
            (Kind.RUN_EVALUATED, {**EVALUATED, "causes": []}),
        )
        for kind, data in events:
            run.recorder.record(Event(kind=kind, data=data))
        run.write_json("findings.json", {})
    return run.path


def test_a_fleet_is_judged_again_offline(tmp_path: Path, came: Try) -> None:
    """From its ledger and its archives; one that was replaced is bad evidence for all of it."""
    home = tmp_path / "head"
    run = fleet_run(home, came)
    plan, tries = record_of(run)
    assert (plan["samples"], [each.where for each in tries]) == (["a"], ["unit 00001-1 on n"])
    findings, lines = judged(home, run)
    assert {row.transcript.sample for row in findings.rows} == {"a"}
    assert "1 unit(s) on 1 node(s)" in lines[0]
    unknown, _ = findings_of(run, stored_evidence(run))
    assert not unknown.rows  # whose ledger it is isn't known: no archive that it names is opened
    assert ReasonCode.LEDGER_BAD in {reason.code for reason in unknown.problems}
    archive_of(run, UNIT).write_bytes(b"")
    findings, lines = judged(home, run)
    assert findings.verdict is Verdict.VOID
    assert {(r.code.value, r.where) for r in findings.problems} >= {
        ("ledger_bad", "unit 00001-1 on n")
    }
    assert {row.transcript.sample for row in findings.rows} == {"a"}
    assert findings.left.claim == "can't tell"
    archive_of(run, UNIT).unlink()
    archive_of(run, UNIT).symlink_to("/dev/zero")
    assert judged(home, run)[0].verdict is Verdict.VOID


def judged(home: Path, run: Path) -> tuple[RunFindings, list[str]]:
    key = local_fingerprint(home)
    return findings_of(run, stored_evidence(run, expected_key=key, expected_run=run.name))


def test_report_and_statement_are_of_the_fleets_judge(
    tmp_path: Path, came: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say what `belljar verdict` says: the head's own ledger has no sample and no cell."""
    home = tmp_path / "head"
    run = fleet_run(home, came)
    monkeypatch.setenv("BELLJAR_HOME", str(home))
    expected = collect(judged(home, run)[0])
    out = tmp_path / "statement.json"
    assert belljar(["export", str(run), "--format", "intoto", "-o", str(out)]) == 0
    statement = json.loads(base64.b64decode(json.loads(out.read_bytes())["payload"]))
    assert statement["predicate"] == json.loads(json.dumps(expected))
    assert statement["predicate"]["samples"][0]["verdict"] == "void"
    page = tmp_path / "page.html"
    assert belljar(["report", str(run), "-o", str(page)]) == 0
    assert "no unit of the fleet came back" in page.read_text()


def test_a_copy_without_logs_has_no_units(tmp_path: Path, came: Try) -> None:
    """An archive of a unit holds contents of every class; the findings quote them, too."""
    home = tmp_path / "head"
    run = fleet_run(home, came)
    for name in (each for each in CLASSES if each != "secrets"):
        assert f"{UNITS}/{UNIT.name}.tar" in choose(run, [name]).files
    share(run, tmp_path / "copy", choose(run, ["outputs"]), load_or_make_key(home))
    assert not list((tmp_path / "copy").rglob("*.tar"))
    assert not (tmp_path / "copy" / "findings.json").exists()
    evidence = stored_evidence(
        tmp_path / "copy", expected_key=local_fingerprint(home), expected_run=run.name
    )
    findings, _ = findings_of(tmp_path / "copy", evidence)
    assert findings.left_out
    assert findings.left.claim == "can't tell"
