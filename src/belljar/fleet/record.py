"""The fleet's own run directory: units' archives, verified and judged, now or offline."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass, replace
from belljar.errors import LedgerError, PolicyError
from belljar.events import Kind
from belljar.fleet.archive import unpack
from belljar.fleet.judge import KIND, Asked, Try, judge_fleet, summary
from belljar.fleet.units import Unit
from belljar.harness.evidence import stored_evidence
from belljar.image.layers import LayerError
from belljar.ledger import Line, local_fingerprint, read_events, verify
from belljar.ledger.files import digest_file, is_being_written
from belljar.ledger.listing import find_run
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings
from belljar.report.verdict import judge, record_reasons
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
            unpack(archive, directory, only=only)
        except (LayerError, UnicodeDecodeError) as error:
            raise LedgerError(f"the archive is refused: {error}", where=archive.name) from error
        yield directory


def examine(archive: Path, came: Came) -> tuple[RunFindings, str]:
    """Verify and judge a unit's archive; returns its findings and its ledger's root.

    `came.root` "": not known yet. Raises `LedgerError` for what does not verify, `OSError`.
    """
    with archive.open("rb") as file:
        if digest_file(file)[0] != came.archive:
            raise LedgerError("its digest is another than the one named", where=archive.name)
    with unpacked(archive) as directory:
        result = verify(directory, expected_key=came.key, expected_run=came.run_id)
        if result.problem is not None:
            raise LedgerError(str(result.problem), where=archive.name)
        if came.root not in {"", result.root}:
            raise LedgerError("its ledger is another than the one recorded", where=archive.name)
        # In a directory of its own: neighbours' records are not its evidence.
        evidence = stored_evidence(directory, expected_key=came.key, expected_run=came.run_id)
        return judge(evidence), result.root


def tries_on_record(run: Path) -> tuple[Asked, list[Try], dict[str, Came]]:
    """What a fleet's ledger says of its units, each archive verified and judged again.

    Raises `LedgerError` for a ledger without a plan or an archive that does not verify.
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
        findings, _ = examine(came.path(run), came)
        tries[name] = replace(tries[name], findings=findings)
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
        tried = replace(tried, why=str(data["reason"]), began=data.get("began") is not False)
    else:
        named = {name: str(data[name]) for name in ("run_id", "key", "root", "archive")}
        found[unit.name] = Came(unit=unit, node=node, **named)
    tries[unit.name] = tried


def plan_of(home: Path, ref: str) -> tuple[Path, dict[str, Any]]:
    """A fleet's run to be resumed, and its plan. Raises `PolicyError`."""
    try:
        run = find_run(home, ref)
        result = verify(run, expected_key=local_fingerprint(home), expected_run=run.name)
        events = read_events(run)
        plan = next((line.data for line in events if line.kind is Kind.FLEET_PLANNED), None)
    except (OSError, LedgerError) as error:
        raise PolicyError(printable(str(error)), where=f"--resume {printable(ref)}") from error
    why = str(result.problem) if result.problem is not None else ""
    if plan is None:
        why = "it is not a run of a fleet, or nothing was planned in it"
    elif is_being_written(run):
        why = "it is still running"
    if why or plan is None:
        raise PolicyError(f"the run can't be resumed: {why}", where=str(run))
    return run, plan


def is_fleet(run: Path) -> bool:
    """Whether a run directory is of a fleet."""
    with suppress(OSError, LedgerError, StopIteration):
        return next(read_events(run)).data.get("kind") == KIND
    return False


def stored_fleet(
    run: Path, *, expected_key: str | None, expected_run: str | None
) -> tuple[RunFindings, list[str]]:
    """The findings of a fleet's run, offline, and lines about it. Raises `OSError`."""
    evidence = stored_evidence(run, expected_key=expected_key, expected_run=expected_run)
    problems = [*record_reasons(evidence)]
    try:
        asked, tries, _ = tries_on_record(run)
    except LedgerError as error:
        bad = Reason(code=ReasonCode.LEDGER_BAD, detail=printable(str(error), max_chars=400))
        asked, tries = Asked(run_id=run.name, task="", samples=(), epochs=1), []
        problems.append(bad)
    interrupted = evidence.run.interrupted
    return judge_fleet(asked, tries, problems=problems, interrupted=interrupted), summary(tries)
