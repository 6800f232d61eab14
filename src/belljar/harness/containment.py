"""What a sample's own cell can say of its containment when it ends, and its way into Inspect's
sample.

That is `cell_verdict`: probes at both ends, and the destruction. The verdict is `report.verdict`'s,
when the run is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from belljar.dataclass import dataclass
from belljar.differences import Difference, sentences
from belljar.events import JsonValue
from belljar.probe.model import ProbeReport, Verdict, worst

if TYPE_CHECKING:
    from belljar.harness.identity import SampleIdentity

KEY: Final = "containment"
"""Key of the sample's metadata in Inspect's log."""
SOURCE: Final = "belljar probes"
"""Source of the info events that Belljar puts into the sample's transcript."""
SCORE_KEY: Final = "containment_cell_verdict"
"""Key of each score's metadata there.

Not `containment`: with that a *scorer* makes a verdict worse.
"""


@dataclass(slots=True, kw_only=True)
class Containment:
    """What is known so far.

    `clean`: the destruction found nothing left; None as long as it was not looked for.

    `differences`: what of the cell is not as the task's author or the policy's wrote it.
    """

    run_id: str = ""
    start: ProbeReport | None = None
    end: ProbeReport | None = None
    clean: bool | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def cell_verdict(self) -> Verdict:
        """The worst of both ends and the destruction; what is missing is void."""
        ends = [
            report.verdict if report is not None else Verdict.VOID
            for report in (self.start, self.end)
        ]
        return worst([*ends, Verdict.CONTAINED if self.clean else Verdict.VOID])

    def data(self) -> dict[str, JsonValue]:
        """As JSON values, for the ledger and for Inspect's log."""
        return {
            "run_id": self.run_id,
            "cell_verdict": self.cell_verdict.value,
            "start": _brief(self.start),
            "end": _brief(self.end),
            "destroyed": self.clean is True,
        }


def _brief(report: ProbeReport | None) -> dict[str, JsonValue]:
    if report is None:
        return {"verdict": Verdict.VOID.value, "problem": "it was not probed"}
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


def bind(containment: Containment, who: SampleIdentity) -> None:
    """Put the cell's verdict into the sample that Inspect is ending in this context: its metadata,
    and each score's.

    Inspect makes the logged sample after the sandbox is cleaned up, from the very state and scores
    that are changed here. Outside of that sample (cells that were held, direct use of the provider)
    there is nothing to bind to; the ledger has it.
    """
    from inspect_ai.solver._task_state import sample_state

    state = sample_state()
    if state is None or not who.uuid or state.uuid != who.uuid:
        return
    data: dict[str, Any] = containment.data()
    data["differences"] = list(sentences(containment.differences))
    state.metadata[KEY] = data
    for score in (state.scores or {}).values():
        score.metadata = {**(score.metadata or {}), SCORE_KEY: data["cell_verdict"]}


def tell_transcript(phase: str, report: ProbeReport, run_id: str) -> None:
    """Say in the sample's transcript that its cell was probed, for which run, and what
    came of it.
    """
    from inspect_ai.log import transcript

    said: dict[str, Any] = {"phase": phase, "run_id": run_id, **_brief(report)}
    transcript().info(said, source=SOURCE)
