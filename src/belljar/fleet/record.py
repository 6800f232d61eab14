"""The fleet's run directory: units' archives, verified and judged, now or offline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass, replace
from belljar.errors import LedgerError
from belljar.events import Kind
from belljar.fleet.archive import check_log, unpack
from belljar.fleet.units import KIND, Asked, Try, Unit, judge_fleet, summary
from belljar.harness.evidence import stored_evidence
from belljar.image.layers import LayerError
from belljar.ledger.files import digest_file, open_beneath, open_directory
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import INSPECT_LOGS
from belljar.ledger.schema import Line
from belljar.ledger.verification import Status, verify
from belljar.probe.model import Verdict
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings
from belljar.report.timeline import Timelines
from belljar.report.verdict import EVALUATION, Evidence, judge, left_out, record_reasons
from belljar.units import printable

UNITS: Final = "units"
# Of each placed unit, until a later event says how it ended.
UNFINISHED: Final = "it was running when the head ended"
_OF_UNIT: Final = frozenset(
    {Kind.FLEET_UNIT_PLACED, Kind.FLEET_UNIT_FINISHED, Kind.FLEET_UNIT_FAILED}
)


def archive_of(run: Path, unit: Unit) -> Path:
    """Return the place of a unit's run directory in the fleet's."""
    return run / UNITS / f"{unit.name}.tar"


@dataclass(frozen=True, slots=True)
class Shown:
    """A page's data of each unit while unpacked: its events, then whatever `keep` reads of its
    verified run directory."""

    timelines: Timelines
    keep: Callable[[Path], None]


@contextmanager
def unpacked(run: Path, tried: Try, *, only: str = "") -> Iterator[Path]:
    """Unpack a unit's archive into a temporary directory. Raises `LedgerError`, `OSError`.

    The run directory may come from anywhere: links in it are refused.
    """
    path = archive_of(run, tried.unit)
    with (
        tempfile.TemporaryDirectory(prefix="belljar-unit-") as made,
        open_directory(run) as root,
        open_beneath(root, str(path.relative_to(run))) as file,
    ):
        # Before it is unpacked: the file may have been exchanged since it came.
        if digest_file(file)[0] != tried.archive:
            raise LedgerError("its digest is another than the one named", where=path.name)
        directory = Path(made, "run")
        try:
            unpack(file, directory, only=only)
        except (LayerError, UnicodeDecodeError) as error:
            raise LedgerError(f"the archive is refused: {error}", where=path.name) from error
        yield directory


def examine(run: Path, tried: Try, shown: Shown | None = None) -> Try:
    """Verify and judge a unit's archive; return the attempt with its findings and ledger's root.

    `tried.root` "": not known yet. A record may be unfinished, as its process died. Raises
    `LedgerError` for what does not verify, `OSError`.
    """
    key, run_id = tried.key, tried.run_id
    with unpacked(run, tried) as directory:
        result = verify(directory, expected_key=key, expected_run=run_id)
        why = str(result.problem) if result.problem is not None else ""
        if not why and result.status not in {Status.VERIFIED, Status.UNFINISHED}:
            why = "its node left contents out"
        if tried.root not in {"", result.root}:
            why = "its ledger is another than the one recorded"
        if why:
            raise LedgerError(why, where=tried.where)
        for log in (directory / INSPECT_LOGS).rglob("*"):
            if log.is_file():
                check_log(log)
        # In a directory of its own: neighbours' records are not its evidence.
        timelines = None if shown is None else shown.timelines
        if timelines is not None:
            timelines.begin_ledger()
        evidence = stored_evidence(
            directory, expected_key=key, expected_run=run_id, timelines=timelines, result=result
        )
        # A node could send another kind of record, which verifies as well.
        if evidence.run.kind != EVALUATION:
            raise LedgerError("it is no record of an evaluation", where=tried.where)
        if shown is not None:
            shown.keep(directory)
        return replace(tried, findings=judge(evidence), root=result.root)


def record_of(run: Path, shown: Shown | None = None) -> tuple[dict[str, Any], list[Try]]:
    """Return a fleet's plan and its attempts by its ledger, each archive verified and judged again.

    One that does not verify is an attempt that `is_bad`. Raises `LedgerError` without a plan.
    """
    plan: dict[str, Any] = {}
    tries: dict[str, Try] = {}
    recorded: dict[str, str] = {}
    for line in read_events(run):
        if line.kind is Kind.FLEET_PLANNED:
            plan = line.data
        elif line.kind in _OF_UNIT:
            tried = _try_of(line, tries)
            tries[tried.unit.name] = tried
            if line.kind is Kind.FLEET_UNIT_FINISHED:
                recorded[tried.unit.name] = str(line.data["verdict"])
    if not plan:
        raise LedgerError("its plan is not on record", where=str(run))
    for name, verdict in recorded.items():
        try:
            tries[name] = examine(run, tries[name], shown)
            found = tries[name].findings
            # Judging again, perhaps by a later version's rules, must not clear a breach.
            if verdict == Verdict.BREACHED and found and found.verdict is not Verdict.BREACHED:
                raise LedgerError("it was breached when it came, and is not now")
        except (LedgerError, OSError) as error:
            why = f"its record does not verify: {printable(str(error), max_chars=400)}"
            tries[name] = replace(tries[name], findings=None, why=why, is_bad=True)
    return plan, list(tries.values())


def _try_of(line: Line, tries: Mapping[str, Try]) -> Try:
    data, samples = line.data, tuple(map(str, line.data["samples"]))
    unit = Unit(number=int(data["unit"]), attempt=int(data["attempt"]), samples=samples)
    tried = Try(unit=unit, node=str(data["node"]))
    if line.kind is Kind.FLEET_UNIT_PLACED:
        return replace(tried, why=UNFINISHED)
    if line.kind is Kind.FLEET_UNIT_FINISHED:
        run_id, key, root, archive = (str(data[n]) for n in ("run_id", "key", "root", "archive"))
        return replace(tried, run_id=run_id, key=key, root=root, archive=archive)
    # After a finish, this failure is of some samples only: the archive stays.
    known = tries.get(unit.name, tried)
    return replace(
        known,
        why=str(data["reason"]),
        began=data.get("began") is not False,
        is_bad=data.get("is_bad") is True,
        archive=str(data.get("archive", known.archive)),
    )


def is_whole(archive: Path) -> bool:
    """Return whether an archive ends with two zero blocks (POSIX pax)."""
    try:
        with archive.open("rb") as file:
            file.seek(-1024, os.SEEK_END)
            return not any(file.read())
    except OSError:  # none, or one that has hardly begun
        return False


def findings_of(
    run: Path, evidence: Evidence, shown: Shown | None = None
) -> tuple[RunFindings, list[str]]:
    """Return any run's findings by its stored evidence, and fleet lines."""
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
    if evidence.ledger is not Status.BAD or is_signed:
        try:
            plan, tries = record_of(run, shown)
            samples, epochs = tuple(plan["samples"]), int(plan["epochs"])
            asked = replace(asked, task=str(plan["task"]), samples=samples, epochs=epochs)
        except LedgerError as error:
            detail = printable(str(error), max_chars=400)
            problems.append(Reason(code=ReasonCode.LEDGER_BAD, detail=detail))
    findings = judge_fleet(
        asked,
        tries,
        problems=problems,
        interrupted=evidence.run.interrupted,
        stopped=evidence.run.stopped,
        own=evidence.left.end(is_whole=evidence.ledger is Status.VERIFIED),
    )
    return replace(findings, left_out=left_out(evidence)), summary(tries)
