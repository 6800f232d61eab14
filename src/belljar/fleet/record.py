"""The fleet's own run directory: units' archives, verified and judged, now or offline."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.dataclass import dataclass, replace
from belljar.errors import LedgerError, PolicyError
from belljar.events import Kind
from belljar.fleet.archive import unpack
from belljar.fleet.judge import KIND, Asked, Try, judge_fleet, summary
from belljar.fleet.units import Unit
from belljar.harness.evidence import stored_evidence
from belljar.image.layers import LayerError
from belljar.ledger import Line, Status, local_fingerprint, read_events, verify
from belljar.ledger.files import (
    digest_file,
    is_being_written,
    open_beneath,
    open_directory,
)
from belljar.ledger.listing import find_run
from belljar.probe.model import Verdict
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings
from belljar.report.verdict import (
    EVALUATION,
    Evidence,
    LedgerState,
    judge,
    left_out,
    record_reasons,
)
from belljar.units import printable

UNITS: Final = "units"
PLAN: Final = "fleet.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A unit's run directory that came back, as the fleet's ledger names it."""

    unit: Unit
    node: str
    run_id: str
    key: str
    archive: str
    root: str = ""

    def path(self, run: Path) -> Path:
        """Its archive in the fleet's run directory."""
        return run / UNITS / f"{self.unit.name}.tar"


@contextmanager
def unpacked(archive: Path, *, only: str = "") -> Iterator[Path]:
    """The archive's files in a temporary directory. Raises `LedgerError`, `OSError`."""
    with tempfile.TemporaryDirectory(prefix="belljar-unit-") as made:
        directory = Path(made, "run")
        try:
            with _opened(archive) as file:
                unpack(file, directory, only=only)
        except (LayerError, UnicodeDecodeError) as error:
            raise LedgerError(f"the archive is refused: {error}", where=archive.name) from error
        yield directory


def _opened(archive: Path) -> BinaryIO:
    """An archive of a run directory that may come from anywhere: links are refused."""
    run = archive.parent.parent
    with open_directory(run) as root:
        return open_beneath(root, f"{UNITS}/{archive.name}")


def examine(archive: Path, came: Came) -> tuple[RunFindings, str]:
    """Verify and judge a unit's archive; returns its findings and its ledger's root.

    `came.root` "": not known yet. A record may be unfinished, as its process died. Raises
    `LedgerError` for what does not verify, `OSError`.
    """
    with _opened(archive) as file:
        if digest_file(file)[0] != came.archive:
            raise LedgerError("its digest is another than the one named", where=archive.name)
    with unpacked(archive) as directory:
        result = verify(directory, expected_key=came.key, expected_run=came.run_id)
        if result.problem is not None:
            raise LedgerError(str(result.problem), where=archive.name)
        if result.status not in {Status.VERIFIED, Status.UNFINISHED}:
            raise LedgerError("its node left contents out", where=archive.name)
        if came.root not in {"", result.root}:
            raise LedgerError("its ledger is another than the one recorded", where=archive.name)
        # In a directory of its own: neighbours' records are not its evidence.
        evidence = stored_evidence(directory, expected_key=came.key, expected_run=came.run_id)
        if evidence.run.kind != EVALUATION:
            raise LedgerError("it is no record of an evaluation", where=archive.name)
        return judge(evidence), result.root


def tries_on_record(run: Path) -> tuple[Asked, list[Try], dict[str, Came]]:
    """What a fleet's ledger says of its units, each archive verified and judged again.

    One that does not verify is an attempt that `is_bad`. Raises `LedgerError` without a plan.
    """
    plan: dict[str, Any] = {}
    tries: dict[str, Try] = {}
    found: dict[str, Came] = {}
    run_id = ""
    for line in read_events(run):
        data = line.data
        if line.kind is Kind.RUN_STARTED:
            run_id = str(data["run_id"])
        elif line.kind is Kind.FLEET_PLANNED:
            plan = data
        elif line.kind in _OF_UNIT:
            _take(line, tries, found)
    if not plan:
        raise LedgerError("its plan is not on record", where=str(run))
    for name, came in found.items():
        try:
            tries[name] = replace(tries[name], findings=examine(came.path(run), came)[0])
        except (LedgerError, OSError) as error:
            why = f"its record does not verify: {printable(str(error), max_chars=400)}"
            tries[name] = replace(tries[name], why=why, is_bad=True)
    asked = Asked(
        run_id=run_id,
        task=str(plan["task"]),
        samples=tuple(plan["samples"]),
        epochs=int(plan["epochs"]),
        code=str(plan["code"]),
    )
    return asked, list(tries.values()), found


UNFINISHED: Final = "it was running when the head ended"
_OF_UNIT: Final = frozenset(
    {Kind.FLEET_UNIT_PLACED, Kind.FLEET_UNIT_FINISHED, Kind.FLEET_UNIT_FAILED}
)


def _take(line: Line, tries: dict[str, Try], found: dict[str, Came]) -> None:
    data, node = line.data, str(line.data["node"])
    samples = tuple(map(str, data["samples"]))
    unit = Unit(number=int(data["unit"]), attempt=int(data["attempt"]), samples=samples)
    tried = Try(unit=unit, node=node)
    if line.kind is Kind.FLEET_UNIT_PLACED:
        tried = replace(tried, why=UNFINISHED)
    elif line.kind is Kind.FLEET_UNIT_FAILED:
        tried = replace(
            tried,
            why=str(data["reason"]),
            began=data.get("began") is not False,
            is_bad=data.get("is_bad") is True,
            archive=str(data.get("archive", "")),
        )
    else:
        named = {name: str(data[name]) for name in ("run_id", "key", "root", "archive")}
        found[unit.name] = Came(unit=unit, node=node, **named)
    tries[unit.name] = tried


def plan_of(home: Path, ref: str) -> tuple[Path, dict[str, Any]]:
    """A fleet's run to be resumed, and its plan. Raises `PolicyError`."""
    try:
        run = find_run(home, ref)
        result = verify(run, expected_key=local_fingerprint(home), expected_run=run.name)
        plan, is_breached = None, False
        for line in read_events(run):
            if line.kind is Kind.FLEET_PLANNED:
                plan = line.data
            is_breached |= line.data.get("verdict") == Verdict.BREACHED
    except (OSError, LedgerError) as error:
        raise PolicyError(printable(str(error)), where=f"--resume {printable(ref)}") from error
    why = str(result.problem) if result.problem is not None else ""
    if plan is None:
        why = "it is not a run of a fleet, or nothing was planned in it"
    elif is_being_written(run):
        why = "it is still running"
    elif is_breached:
        why = "it is breached, and a breach is never run again"
    if why or plan is None:
        raise PolicyError(f"the run can't be resumed: {why}", where=str(run))
    return run, plan


def findings_of(run: Path, evidence: Evidence) -> tuple[RunFindings, list[str]]:
    """The findings of any run by its stored evidence, and lines about a fleet. Raises `OSError`."""
    if evidence.run.kind != KIND:
        return judge(evidence), []
    problems = [*record_reasons(evidence)]
    asked, tries = Asked(run_id=run.name, task="", samples=(), epochs=1), list[Try]()
    checked = evidence.verification
    # Of a ledger that somebody else may have written no archive is opened. One whose events are all
    # signed by the known key names its archives, and a changed one must not hide the others.
    is_signed = (
        checked is not None
        and checked.key_checked
        and not checked.key_mismatch
        and checked.signed_events == checked.events
    )
    if evidence.ledger is not LedgerState.BAD or is_signed:
        try:
            asked, tries, _ = tries_on_record(run)
        except LedgerError as error:
            detail = printable(str(error), max_chars=400)
            problems.append(Reason(code=ReasonCode.LEDGER_BAD, detail=detail))
    is_whole = evidence.ledger is LedgerState.VERIFIED
    doubt = "" if is_whole else "the ledger is not whole, or does not verify"
    findings = judge_fleet(
        asked,
        tries,
        problems=problems,
        interrupted=evidence.run.interrupted,
        stopped=evidence.run.stopped,
        own=evidence.left.end(doubt=doubt),
    )
    return replace(findings, left_out=left_out(evidence)), summary(tries)
