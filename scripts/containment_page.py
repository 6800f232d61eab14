"""Writes docs/containment.md: every probe in every tier of this host, as a page of Markdown.

    python scripts/containment_page.py FILE

From what `belljar probe --json` says.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belljar.probe.catalogue import PROBES

TIERS: Final = ("container", "gvisor", "microvm")
BADNESS: Final = ("contained", "void", "breached")

_HEAD: Final = """\
# What the containment tests try

Every probe in every tier, on one host: what was *tried from inside* a fresh cell, and the result. A
way out that no probe knows is in no table. Make this page for your own host:

```console
$ python scripts/containment_page.py docs/containment.md
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


Json = Mapping[str, Any]


def worst(verdicts: Sequence[str]) -> str:
    """The worst of them; void without any."""
    return max(verdicts, key=BADNESS.index, default="void")


def findings_of(result: Json, name: str) -> list[Json]:
    """One probe's findings in a tier, as each user."""
    reports = result.get("reports", ())
    return [each for report in reports for each in report["findings"] if each["name"] == name]


def containment_page(results: Sequence[Json], probes: Sequence[Json], host: Json) -> str:
    """The page. `host`: facts that bear on the results."""
    facts = "; ".join(f"{name} {value}" for name, value in host.items())
    parts = [_HEAD, f"The host: {facts}.\n", _summary(results), "## Limits of these results\n"]
    parts += [*(_limits(each) for each in results), "\n## The probes\n", _LEGEND]
    parts.append(_table(probes, results))
    problems = [
        f"- {result['tier']}, as {report['user'] or 'its user'}: {_cell(text)}"
        for result in results
        for report in result.get("reports", ())
        for text in _problems(report)
    ]
    parts += ["## What is not contained\n", *problems] if problems else []
    return "\n".join(parts).rstrip() + "\n"


def _summary(results: Sequence[Json]) -> str:
    rows = [
        (
            "| tier | verdict | attempts | contained, seen by the host | contained, by the cell's "
            "word | known | void | breached |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        found = [each for report in result.get("reports", ()) for each in report["findings"]]
        contained = [
            each for each in found if each["verdict"] == "contained" and not each.get("known")
        ]
        counts = (
            len(found),
            sum(each["seen_by"] == "host" for each in contained),
            sum(each["seen_by"] != "host" for each in contained),
            sum(bool(each.get("known")) for each in found),
            sum(each["verdict"] == "void" for each in found),
            sum(each["verdict"] == "breached" for each in found),
        )
        verdict = "not on this host" if "error" in result else f"**{result['verdict']}**"
        rows.append(f"| {result['tier']} | {verdict} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows) + "\n"


def _limits(result: Json) -> str:
    tier = result["tier"]
    if "error" in result:
        return f"- **{tier}**: this host has no such cell: {_cell(result['error']['message'])}."
    emulated = f" {_EMULATED}" if result["emulated"] else ""
    return f"- **{tier}**: {' → '.join(result['layers'])}. {_LIMITS.get(tier, '')}{emulated}"


def _table(probes: Sequence[Json], results: Sequence[Json]) -> str:
    shown = [result for result in results if "error" not in result]
    head = [
        f"| probe | tries | why it matters | {' | '.join(each['tier'] for each in shown)} |",
        "|---|---|---|" + "---|" * len(shown),
    ]
    rows = [
        f"| `{probe['name']}` | {_cell(probe['tries'])} | {_cell(probe['why'])} | "
        f"{' | '.join(_judged(each, probe['name']) for each in shown)} |"
        for probe in probes
    ]
    known = [
        f"- `{probe['name']}`, {result['tier']}: {_cell(finding['known'])}"
        for probe in probes
        for result in shown
        for finding in findings_of(result, probe["name"])[:1]
        if finding.get("known")
    ]
    return "\n".join([*head, *rows, *(["", *known] if known else []), ""])


def _judged(result: Json, name: str) -> str:
    findings = findings_of(result, name)
    verdict = worst([finding["verdict"] for finding in findings])
    if verdict != "contained":
        return "**BREACHED**" if verdict == "breached" else "**void**"
    if any(finding.get("known") for finding in findings):
        return "known"
    return "host" if all(finding["seen_by"] == "host" for finding in findings) else "cell"


def _problems(report: Json) -> list[str]:
    """Each breach, and each void probe unless the whole run is void."""
    lines = [report["problem"]] if report["problem"] else []
    for each in report["findings"]:
        is_void = each["verdict"] == "void" and not report["problem"]
        if is_void or each["verdict"] == "breached":
            outcome = (
                f"{each['outcome']} {each['detail']}".strip() if each["outcome"] else "no answer"
            )
            lines.append(f"`{each['name']}` {each['verdict']}: {outcome}; {each['seen']}")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _said(*words: str) -> Any:  # noqa: ANN401 - a JSON value
    command = [sys.executable, "-m", "belljar", "probe", *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)


def main() -> None:
    """Probe every tier, and write the page."""
    results = [{"tier": tier, **_said("low", "--tier", tier, "--all")} for tier in TIERS]
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    delegated = unified.exists() and bool(unified.read_text().split())
    host = {  # what bears on the results, and doesn't name the host
        "kernel": f"Linux {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}",
        "control groups": "version 2" if delegated else "version 1",
        "as": "root" if os.geteuid() == 0 else "an ordinary user",
    }
    names = ("name", "tries", "why")
    probes = [{name: getattr(each, name) for name in names} for each in PROBES]
    Path(sys.argv[1]).write_text(containment_page(results, probes, host), encoding="utf-8")


if __name__ == "__main__":
    main()
