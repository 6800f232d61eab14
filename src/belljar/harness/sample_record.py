"""One sample's identity and containment, and their place in Inspect's log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from belljar.dataclass import dataclass, field
from belljar.differences import Difference, sentences
from belljar.events import JsonValue
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.model import ProbeReport, Verdict, worst

if TYPE_CHECKING:
    from inspect_ai.solver import TaskState

    from belljar.cell.health import HealthWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIdentity:
    """A sample's names; `uuid` may be ""."""

    sample: str
    epoch: int
    task: str
    uuid: str = ""
    eval_id: str = ""
    log: str = ""

    def started(
        self, policy: LoadedPolicy, differences: Iterable[Difference] = ()
    ) -> dict[str, JsonValue]:
        """Its start event, with log, host tools, differences."""
        return {
            **self.data(),
            "log": self.log,
            "host_tools": list(policy.policy.host_tools_rule.allow),
            "differences": [each.data() for each in differences],
        }

    def data(self) -> dict[str, JsonValue]:
        """As an event's data."""
        return {name: value for name, value in asdict(self).items() if name != "log"}


def identify(task_name: str, metadata: Mapping[str, object]) -> SampleIdentity:
    """The identity of the sample Inspect is starting."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    named = str(metadata.get("__sample_id__", ""))
    if active is None:
        return SampleIdentity(sample=named or "-", epoch=1, task=task_name)
    return SampleIdentity(
        sample=named or str(active.sample.id),
        epoch=active.epoch,
        task=active.task,
        uuid=active.sample_uuid,
        eval_id=active.eval_id,
        # Path would resolve no `..`
        log=log if "://" in (log := active.log_location) else os.path.abspath(log),  # noqa: PTH100
    )


def is_preparing() -> bool:
    """Whether Inspect prepares this sample, and logs no end."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    return active is not None and active.started is None


# What is missing is evidence that is missing: void, never contained.
_NOT_PROBED: Final = ProbeReport(
    verdict=Verdict.VOID, findings=(), which="", duration_ms=0, problem="it was not probed"
)
# Key of the sample's metadata in Inspect's log.
CONTAINMENT_KEY: Final = "containment"
# Source of Belljar's transcript events.
SOURCE: Final = "belljar probes"
# Key of each score's metadata there. Not `containment`: with that a *scorer* makes a verdict
# worse.
CELL_VERDICT_KEY: Final = "containment_cell_verdict"


@dataclass(slots=True, kw_only=True)
class Containment:
    """Containment so far.

    `machines`: the sample's cells, one after another. `starts`, `ends`: the probes of each, and at
    the end of those beside it. `clean`: None until checked.
    """

    run_id: str = ""
    machines: list[str] = field(default_factory=list)
    starts: dict[str, ProbeReport] = field(default_factory=dict)
    ends: dict[str, ProbeReport] = field(default_factory=dict)
    clean: bool | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def cell_verdict(self) -> Verdict:
        """The worst of probes and destruction; missing is void."""
        ends = (self._worst(reports).verdict for reports in (self.starts, self.ends))
        # A destruction that was not checked proves nothing.
        return worst([*ends, Verdict.CONTAINED if self.clean else Verdict.VOID])

    def _worst(self, reports: Mapping[str, ProbeReport]) -> ProbeReport:
        """The worst of one phase; a machine without one is void."""
        missing = [_NOT_PROBED for cell in self.machines if cell not in reports]
        return max((*missing, *reports.values()), key=lambda each: each.verdict.badness)

    def data(self) -> dict[str, JsonValue]:
        """For the ledger and Inspect's log."""
        return {
            "run_id": self.run_id,
            "cell_verdict": self.cell_verdict.value,
            "start": _brief(self._worst(self.starts)),
            "end": _brief(self._worst(self.ends)),
            "destroyed": self.clean is True,
        }


def _brief(report: ProbeReport) -> dict[str, JsonValue]:
    breaches: list[JsonValue] = [
        f"{each.name}: {each.seen}" for each in report.of(Verdict.BREACHED)
    ]
    return {
        "verdict": report.verdict.value,
        "probes": len(report.findings),
        "digest": report.digest,
        "duration_ms": round(report.duration_ms, 3),
        "problem": report.problem,
        "breaches": breaches,
    }


def bind_containment(containment: Containment, identity: SampleIdentity) -> None:
    """Put the cell's verdict into the ending sample's metadata and scores'.

    Inspect makes the logged sample from this state after the clean-up. Outside of that sample there
    is nothing to bind to; the ledger has it.
    """
    if (state := _state_of(identity)) is None:
        return
    data: dict[str, Any] = containment.data()
    data["differences"] = list(sentences(containment.differences))
    state.metadata[CONTAINMENT_KEY] = data
    _mark_scores(state, {CELL_VERDICT_KEY: data["cell_verdict"]})


def _state_of(identity: SampleIdentity) -> TaskState | None:
    from inspect_ai.solver._task_state import sample_state

    state = sample_state()
    return state if state is not None and identity.uuid and state.uuid == identity.uuid else None


def note_probes(phase: str, report: ProbeReport, run_id: str) -> None:
    """Note the probes' result in the sample's transcript."""
    from inspect_ai.log import transcript

    data: dict[str, Any] = {"phase": phase, "run_id": run_id, **_brief(report)}
    transcript().info(data, source=SOURCE)


# Key in the metadata of the sample and of each score.
DEGRADED_KEY: Final = "sandbox_degraded"


def bind_degraded(watches: Iterable[HealthWatch], identity: SampleIdentity) -> None:
    """Mark the ending sample's metadata, and each score's."""
    found, state = [watch.degraded for watch in watches if watch.degraded], _state_of(identity)
    if not found or state is None:
        return
    state.metadata[DEGRADED_KEY] = found
    causes = ", ".join(dict.fromkeys(str(each["cause"]) for each in found))
    _mark_scores(state, {DEGRADED_KEY: causes})


def _mark_scores(state: TaskState, more: Mapping[str, Any]) -> None:
    for score in (state.scores or {}).values():
        score.metadata = {**(score.metadata or {}), **more}
