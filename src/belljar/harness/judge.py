"""The evidence of a run, read from its directory and Inspect's logs, for `report.verdict.judge` to
decide on. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.errors import LedgerError
from belljar.events import JsonValue
from belljar.ledger import Line, Verification, read_events, verify
from belljar.ledger.rundir import INSPECT_LOGS
from belljar.ledger.verification import Status
from belljar.report.cells import CellGatherer
from belljar.report.ranges import RangeGatherer
from belljar.report.reasons import ReasonCode
from belljar.report.samples import RunFindings, as_json
from belljar.report.signals import SignalGatherer
from belljar.report.upstreams import UpstreamGatherer
from belljar.report.verdict import EVALUATION, Evidence, LedgerState, LogRecord, RunRecord

if TYPE_CHECKING:
    from belljar.ledger import RunDirectory

FINDINGS: Final = "findings.json"
"""The findings in a run directory, as they were when it was sealed."""


def own_evidence(run: RunDirectory) -> Evidence:
    """The evidence of a run that this process is about to seal."""
    evidence = _evidence(run.path, check_ledger(run), logs=(), remote=True)
    return _with_other_runs(evidence, run.path, run.recorder.key.fingerprint)


def put_on_record(run: RunDirectory, findings: RunFindings, dropped: Sequence[str] = ()) -> None:
    """The findings as a file of the run directory, and the verdict in the run's last event."""
    run.write_json(FINDINGS, {**as_json(findings), "not_in_metrics": list(dropped)})
    reasons = {reason.code: reason for reason in findings.problems}
    refused, unbound = (
        reasons.get(ReasonCode.RUN_REFUSED),
        reasons.get(ReasonCode.VERDICTS_NOT_IN_LOG),
    )
    details: dict[str, JsonValue] = {"verdict": findings.verdict.value}
    if unbound is not None:
        details["verdicts_not_in_log"] = unbound.detail
    run.finish(
        findings.outcome,
        exit_code=findings.exit_code,
        error=refused.detail if refused else None,
        **details,
    )


def check_ledger(run: RunDirectory) -> tuple[LedgerState, str]:
    """What verification says of the record of a run of this process: not finished yet, or
    sealed.
    """
    key = run.recorder.key.fingerprint
    try:
        result = verify(run.path, expected_key=key, expected_run=run.run_id)
    except (OSError, LedgerError) as error:
        return LedgerState.BAD, str(error)
    if result.problem is None and result.status is Status.UNFINISHED and not run.is_sealed:
        return LedgerState.OWN, ""
    return _state(result)


def stored_evidence(
    path: Path,
    *,
    logs: Sequence[str] = (),
    expected_key: str | None = None,
    expected_run: str | None = None,
) -> Evidence:
    """The evidence of any run directory.

    Args:
        path: the run directory.
        logs: where Inspect's logs are now; none: where the ledger says they were.
        expected_key: the fingerprint that must have signed; without one nobody says whose word the
            ledger is: bad.
        expected_run: the run that it must be.

    Raises:
        OSError: there is no such directory, or it can't be read.
    """
    result = verify(path, expected_key=expected_key, expected_run=expected_run)
    state, problem = _state(result)
    if state is LedgerState.VERIFIED and not result.key_checked:
        state, problem = (
            LedgerState.BAD,
            f"signed by {result.key}, which was compared with no known key",
        )
    return _with_other_runs(
        _evidence(path, (state, problem), logs=logs, remote=False), path, expected_key
    )


def _state(result: Verification) -> tuple[LedgerState, str]:
    if result.problem is not None:
        return LedgerState.BAD, str(result.problem)
    if result.status is Status.UNFINISHED:
        return LedgerState.UNFINISHED, "; ".join(result.warnings)
    return LedgerState.VERIFIED, ""


def _evidence(
    path: Path, ledger: tuple[LedgerState, str], *, logs: Sequence[str], remote: bool
) -> Evidence:
    record, cells, ranges, upstreams = (
        RunRecord(),
        CellGatherer(),
        RangeGatherer(),
        UpstreamGatherer(),
    )
    signals = SignalGatherer()
    for line in _readable(path):
        for each in (record, cells, ranges, upstreams, signals):
            each.take(line)
    return Evidence(
        logs=_logs(
            path,
            record,
            logs,
            has_samples=any(cell.sample for cell in cells.found.values()),
            remote=remote,
        ),
        cells=cells.found,
        ranges=ranges.end(),
        upstreams=tuple(upstreams.found.values()),
        signals=signals,
        run=record,
        ledger=ledger[0],
        ledger_problem=ledger[1],
    )


def _with_other_runs(evidence: Evidence, path: Path, key: str | None) -> Evidence:
    """With what the runs beside this one, signed by the same key, say of samples that name them as
    theirs.
    """
    if evidence.run.kind == EVALUATION:
        return evidence
    named = {each.judged_by for log in evidence.logs for each in log.transcripts} - {
        evidence.run.run_id
    }
    begun: dict[str, frozenset[str]] = {}
    for run in path.parent.iterdir() if any(named) else ():
        if run.name in named and run.is_dir() and _is_signed(run, key):
            cells = CellGatherer()
            for line in _readable(run):
                cells.take(line)
            begun[run.name] = frozenset(cell.uuid for cell in cells.found.values() if cell.uuid)
    return replace(evidence, begun_elsewhere=begun)


def _is_signed(path: Path, key: str | None) -> bool:
    try:
        return verify(path, expected_key=key, expected_run=path.name).problem is None
    except (OSError, LedgerError):
        return False


def _readable(path: Path) -> Iterator[Line]:
    """The events up to the first that is none: that there is one, verification says."""
    try:
        yield from read_events(path)
    except (OSError, LedgerError):
        return


def _logs(
    path: Path, record: RunRecord, given: Sequence[str], *, has_samples: bool, remote: bool
) -> list[LogRecord]:
    """Inspect's logs: those in the run directory under `belljar run`, else where Inspect
    put them.
    """
    from belljar.harness.transcript import logs_in, read_log

    if record.kind == EVALUATION:
        found = logs_in(path / INSPECT_LOGS)
        if not found and has_samples:
            return [LogRecord(location=INSPECT_LOGS, missing=True)]
        records = [read_log(location, record.run_id) for location in found]
        return [
            replace(each, location=f"{INSPECT_LOGS}/{Path(each.location).name}") for each in records
        ]
    return [
        read_log(location, record.run_id)
        if remote or given or "://" not in location or location.startswith("file://")
        else LogRecord(location=location, problem="it is not on this host; give it with --log")
        for location in given or record.logs
    ]
