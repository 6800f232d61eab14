"""Why a sample or a run is not contained: reason codes, their verdicts and texts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.probe.model import Verdict, worst


class ReasonCode(StrEnum):
    """One cause; its sentence is in `TEXT`."""

    CELL_NOT_DESTROYED = "cell_not_destroyed"
    CELL_SURVIVORS = "cell_survivors"
    CELL_DESTRUCTION_UNPROVEN = "cell_destruction_unproven"
    PROBES_MISSING = "probes_missing"
    PROBES_VOID = "probes_void"
    PROBES_BREACHED = "probes_breached"
    MODEL_CELL_DIED = "model_cell_died"

    RANGE_FAILED = "range_failed"
    RANGE_BREACHED = "range_breached"
    RANGE_NOT_DESTROYED = "range_not_destroyed"
    RANGE_SURVIVORS = "range_survivors"
    RANGE_DESTRUCTION_UNPROVEN = "range_destruction_unproven"
    PACKETS_NOT_RECORDED = "packets_not_recorded"
    PACKETS_OVERWRITTEN = "packets_overwritten"
    FLOWS_NOT_RECORDED = "flows_not_recorded"
    BYTES_NOT_RECORDED = "bytes_not_recorded"
    EVENTS_CUT_AT_END = "events_cut_at_end"
    TRAFFIC_ANALYSIS_ENDED = "traffic_analysis_ended"

    DECOY_CARRIED = "decoy_carried"

    NO_CELL = "no_cell"
    CALLS_OUTSIDE_CELL = "calls_outside_cell"
    HOST_TOOL_CALLED = "host_tool_called"
    SCORER_VOID = "scorer_void"
    SCORER_BREACHED = "scorer_breached"

    AIR_GAP_BROKEN = "air_gap_broken"
    AIR_GAP_UNPROVEN = "air_gap_unproven"

    LEDGER_BAD = "ledger_bad"
    LEDGER_UNFINISHED = "ledger_unfinished"
    RUN_END_MISSING = "run_end_missing"
    RUN_ERROR = "run_error"
    OTHER_PROVIDER = "other_provider"
    LATE_HOST_TOOL = "late_host_tool"
    RUN_REFUSED = "run_refused"
    NO_SAMPLES = "no_samples"
    LOG_MISSING = "log_missing"
    LOG_UNREADABLE = "log_unreadable"
    LOG_UNFINISHED = "log_unfinished"
    LOG_WITHOUT_SAMPLES = "log_without_samples"
    LOG_INCOMPLETE = "log_incomplete"
    SAMPLE_NOT_IN_LOG = "sample_not_in_log"
    VERDICTS_NOT_IN_LOG = "verdicts_not_in_log"
    UNIT_LOST = "unit_lost"
    UNIT_FORGED = "unit_forged"
    UNITS_DIFFER = "units_differ"

    @property
    def verdict(self) -> Verdict:
        """Void or breached, by this cause alone."""
        return Verdict.BREACHED if self in _BREACHES else Verdict.VOID


_BREACHES: Final = frozenset(
    {
        ReasonCode.PROBES_BREACHED,
        ReasonCode.RANGE_BREACHED,
        ReasonCode.SCORER_BREACHED,
        ReasonCode.DECOY_CARRIED,
    }
)

RECORD_IN_DOUBT: Final = frozenset(
    {
        ReasonCode.AIR_GAP_BROKEN,
        ReasonCode.AIR_GAP_UNPROVEN,
        ReasonCode.LEDGER_BAD,
        ReasonCode.LEDGER_UNFINISHED,
        ReasonCode.RUN_END_MISSING,
    }
)
"""Causes that void every sample of a run."""

# The causes that the record may give for an error of the run; any other is `RUN_ERROR`.
CAUSES_OF_STOPS: Final = frozenset({ReasonCode.OTHER_PROVIDER, ReasonCode.LATE_HOST_TOOL})

TEXT: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.CELL_NOT_DESTROYED: "its destruction is not on record",
    ReasonCode.CELL_SURVIVORS: "its destruction left {}",
    ReasonCode.CELL_DESTRUCTION_UNPROVEN: "its destruction is not proven; not looked for: {}",
    ReasonCode.PROBES_MISSING: "it was not probed at its {}",
    ReasonCode.PROBES_VOID: "its probes are void, {}",
    ReasonCode.PROBES_BREACHED: "breached: {}",
    ReasonCode.MODEL_CELL_DIED: "the model's cell died: {}",
    ReasonCode.RANGE_FAILED: "it ended by itself: {}",
    ReasonCode.RANGE_BREACHED: "breached, and ended by itself: {}",
    ReasonCode.RANGE_NOT_DESTROYED: "its destruction is not on record",
    ReasonCode.RANGE_SURVIVORS: "its destruction left {}",
    ReasonCode.RANGE_DESTRUCTION_UNPROVEN: "its destruction is not proven; not looked for: {}",
    ReasonCode.PACKETS_NOT_RECORDED: "{} packet(s) are in no packet record",
    ReasonCode.PACKETS_OVERWRITTEN: (
        "{} packet(s) were thrown away that no event holds whole: record.packets in the policy "
        "gives more room"
    ),
    ReasonCode.FLOWS_NOT_RECORDED: "{} refused or allowed packet(s) are in no event",
    ReasonCode.BYTES_NOT_RECORDED: "{} byte(s) that the gateway received are in no event",
    ReasonCode.EVENTS_CUT_AT_END: "{} thing(s) or more that were cut by the range's end are in "
    "no event",
    ReasonCode.TRAFFIC_ANALYSIS_ENDED: "the traffic between cells was not read to its end: {}",
    ReasonCode.DECOY_CARRIED: "a decoy that was made for another sample was seen: {}",
    ReasonCode.NO_CELL: "no cell is on record for this sample",
    ReasonCode.CALLS_OUTSIDE_CELL: "{} call(s) of the transcript never reached a cell",
    ReasonCode.HOST_TOOL_CALLED: "the tool {} acted outside of the cell, which the policy refuses",
    ReasonCode.SCORER_VOID: "a scorer says void",
    ReasonCode.SCORER_BREACHED: "a scorer says breached",
    ReasonCode.AIR_GAP_BROKEN: "this host was not air-gapped all the time: {}",
    ReasonCode.AIR_GAP_UNPROVEN: "the air gap was not checked at the end of the run",
    ReasonCode.LEDGER_BAD: "the ledger does not verify: {}",
    ReasonCode.LEDGER_UNFINISHED: "the ledger is unfinished: {}",
    ReasonCode.RUN_END_MISSING: "the end of the evaluation is not on record",
    ReasonCode.RUN_ERROR: "{}",
    ReasonCode.OTHER_PROVIDER: "stopped, a sample would not have run in a cell: {}",
    ReasonCode.LATE_HOST_TOOL: "stopped, a tool would have acted outside of the cell: {}",
    ReasonCode.RUN_REFUSED: "the run was refused: {}",
    ReasonCode.NO_SAMPLES: "no sample was judged{}",
    ReasonCode.LOG_MISSING: "Inspect's log is missing",
    ReasonCode.LOG_UNREADABLE: "Inspect's log can't be read: {}",
    ReasonCode.LOG_UNFINISHED: "Inspect's log is unfinished",
    ReasonCode.LOG_WITHOUT_SAMPLES: "Inspect's log has no samples: they were not logged",
    ReasonCode.LOG_INCOMPLETE: "Inspect's log has {} samples",
    ReasonCode.SAMPLE_NOT_IN_LOG: "sample {} is in no log",
    ReasonCode.VERDICTS_NOT_IN_LOG: "the verdicts are not in Inspect's log: {}",
    ReasonCode.UNIT_LOST: "no unit of the fleet came back with this sample: {}",
    ReasonCode.UNIT_FORGED: "a node's unit is not what it was given to run: {}",
    ReasonCode.UNITS_DIFFER: "units ran with different settings, and their metrics mean nothing "
    "together: {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One cause; `where` is a cell, range or log, "" for the sample or run.

    `detail` may quote a guest or a task: escape it where it is shown.
    """

    code: ReasonCode
    where: str = ""
    detail: str = ""

    @property
    def sentence(self) -> str:
        """What happened, without the place."""
        return TEXT[self.code].replace("{}", self.detail)

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "text": str(self)}


def verdict_of(reasons: Iterable[Reason]) -> Verdict:
    """The worst of their verdicts; contained without any."""
    return worst((Verdict.CONTAINED, *(reason.code.verdict for reason in reasons)))
