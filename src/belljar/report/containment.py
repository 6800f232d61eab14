"""The probes of every tier of one host as a page of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from belljar.probe.model import Finding, Probe, ProbeReport, Side, Verdict, worst

_HEAD: Final = """\
# What the containment tests try

Every probe in every tier, on one host: what was *tried from inside* a fresh cell, and the result. A
way out that no probe knows is in no table. Make this page for your own host:

```console
$ belljar probe --table docs/containment.md
```
"""
_LIMITS: Final = {
    "container": (
        "The kernel is the host's, shared by all cells and everything else: a hole in it is a "
        "way out, and no probe can show that there is none."
    ),
    "gvisor": (
        "System calls are answered by gVisor's own kernel, a process of the host's. A hole in it "
        "leads into the jail around it, and only from there to "
        "the host's kernel."
    ),
    "microvm": "The kernel is the cell's own, in a virtual machine whose monitor is a jailed "
    "process of the host's.",
}
_EMULATED: Final = (
    "**Emulated**: this host has no hardware virtualisation that works, so the processor is a "
    "program (QEMU's TCG). QEMU's own policy does not count that "
    "as a boundary; here the jail around it is the wall."
)
_LEGEND: Final = """\
| result | means |
|---|---|
| host | contained, and the host checked it: canary file, listeners, processes |
| cell | contained, by the word of the attempt alone |
| known | reached, for the reason given below |
| void | no evidence |
| BREACHED | reached |

Each result is the worst of two runs: as the policy's user and as root of the cell.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierResult:
    """One tier's results; `refused`: why this host has none."""

    tier: str
    emulated: bool = False
    layers: tuple[str, ...] = ()
    user: str = ""
    reports: tuple[ProbeReport, ...] = ()
    refused: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of its runs; void without any."""
        return worst(report.verdict for report in self.reports)

    def findings(self, name: str) -> list[Finding]:
        """One probe's findings, as each user."""
        return [each for report in self.reports for each in report.findings if each.name == name]


def containment_page(
    results: Sequence[TierResult], probes: Sequence[Probe], host: Mapping[str, str]
) -> str:
    """The page. `host`: facts that bear on the results."""
    facts = "; ".join(f"{name} {value}" for name, value in host.items())
    parts = [_HEAD, f"The host: {facts}.\n", _summary(results), "## Limits of these results\n"]
    parts += [*(_limits(each) for each in results), "\n## The probes\n", _LEGEND]
    for group in dict.fromkeys(probe.group for probe in probes):
        parts.append(_group(group, [probe for probe in probes if probe.group == group], results))
    problems = [
        f"- {result.tier}{f', as {report.user}' if report.user else ''}: {_cell(text)}"
        for result in results
        for report in result.reports
        for text in _problems(report)
    ]
    parts += ["## What is not contained\n", *problems] if problems else []
    return "\n".join(parts).rstrip() + "\n"


def _summary(results: Sequence[TierResult]) -> str:
    rows = [
        (
            "| tier | verdict | attempts | contained, seen by the host | contained, by the cell's "
            "word | known | void | breached |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        found = [finding for report in result.reports for finding in report.findings]
        contained = [each for each in found if each.verdict is Verdict.CONTAINED and not each.known]
        counts = (
            len(found),
            sum(each.seen_by is Side.HOST for each in contained),
            sum(each.seen_by is Side.GUEST for each in contained),
            sum(bool(each.known) for each in found),
            sum(each.verdict is Verdict.VOID for each in found),
            sum(each.verdict is Verdict.BREACHED for each in found),
        )
        verdict = "not on this host" if result.refused else f"**{result.verdict.value}**"
        rows.append(f"| {result.tier} | {verdict} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows) + "\n"


def _limits(result: TierResult) -> str:
    if result.refused:
        return f"- **{result.tier}**: this host has no such cell: {_cell(result.refused)}."
    emulated = f" {_EMULATED}" if result.emulated else ""
    return (
        f"- **{result.tier}**: {' → '.join(result.layers)}. "
        f"{_LIMITS.get(result.tier, '')}{emulated}"
    )


def _group(group: str, probes: Sequence[Probe], results: Sequence[TierResult]) -> str:
    shown = [result for result in results if not result.refused]
    head = [
        f"| probe | tries | why it matters | {' | '.join(each.tier for each in shown)} |",
        "|---|---|---|" + "---|" * len(shown),
    ]
    rows = [
        f"| `{probe.name}` | {_cell(probe.tries)} | {_cell(probe.why)} | "
        f"{' | '.join(_judged(each, probe.name) for each in shown)} |"
        for probe in probes
    ]
    known = [
        f"- `{probe.name}`, {result.tier}: {_cell(finding.known)}"
        for probe in probes
        for result in shown
        for finding in result.findings(probe.name)[:1]
        if finding.known
    ]
    return "\n".join([f"### {group}\n", *head, *rows, *(["", *known] if known else []), ""])


def _judged(result: TierResult, name: str) -> str:
    findings = result.findings(name)
    verdict = worst(finding.verdict for finding in findings)
    if verdict is Verdict.BREACHED:
        return "**BREACHED**"
    if verdict is Verdict.VOID:
        return "**void**"
    if any(finding.known for finding in findings):
        return "known"
    return "host" if all(finding.seen_by is Side.HOST for finding in findings) else "cell"


def _problems(report: ProbeReport) -> list[str]:
    """Each breach, and each void probe unless the whole run is void."""
    lines = [report.problem] if report.problem else []
    for each in report.findings:
        is_void = each.verdict is Verdict.VOID and not report.problem
        if is_void or each.verdict is Verdict.BREACHED:
            outcome = "no answer"
            if each.outcome:
                outcome = f"{each.outcome.value} {each.detail}".strip()
            lines.append(f"`{each.name}` {each.verdict.value}: {outcome}; {each.seen}")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
