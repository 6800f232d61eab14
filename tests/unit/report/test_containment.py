"""The page of a host's probes: honest about what is emulated, shared, known, void or missing."""

from __future__ import annotations

from typing import Any

from scripts.containment_page import containment_page
from tests.fakes.probing import PROBES

from belljar.probe.judge import Answers, AttemptReport, Sight, judge
from belljar.probe.model import AttemptOutcome, ProbeReport, Witness, worst

SILENT = {witness: Sight(touched=False, what="silence") for witness in Witness}
CATALOGUE = [
    {name: getattr(probe, name) for name in ("name", "group", "tries", "why")} for probe in PROBES
]
HOST = {"kernel": "Linux 6.1", "control groups": "version 1"}


def result(tier: str, **said: AttemptOutcome) -> dict[str, Any]:
    told = {each.name: said.get(each.name.split(".")[1], AttemptOutcome.DENIED) for each in PROBES}
    answers = {
        name: AttemptReport(outcome=outcome, detail="a|b <i>") for name, outcome in told.items()
    }
    findings = judge(PROBES, Answers(by_name=answers), SILENT, tier=tier)
    verdict = worst(each.verdict for each in findings)
    report = ProbeReport(verdict=verdict, findings=findings, which="all", duration_ms=1)
    about = {"tier": tier, "verdict": verdict.value, "layers": ["jail", tier]}
    return {**about, "emulated": False, "reports": [report.to_json()]}


def row(page: str, name: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
    return [cell.strip() for cell in line.split("|")[4:-1]]


def test_each_verdict_stands_in_its_column() -> None:
    """Host's word, cell's word, known, void and breached are told apart, with reasons."""
    reached, error = AttemptOutcome.REACHED, AttemptOutcome.ERROR
    tiers = [result("microvm", hypervisor=reached), result("gvisor", mount=reached, socket=error)]
    page = containment_page(tiers, CATALOGUE, HOST)
    assert row(page, "files.canary") == ["host", "host"]
    assert row(page, "files.socket") == ["host", "**void**"]
    assert row(page, "calls.mount") == ["cell", "**BREACHED**"]
    assert row(page, "fingerprint.hypervisor") == ["known", "cell"]
    assert "a virtual machine has the flag" in page
    assert "| gvisor | **breached** | 4 | 1 | 1 | 0 | 1 | 1 |" in page
    assert "## What is not contained" in page
    assert "calls.mount` breached: reached a\\|b &lt;i>" in page
