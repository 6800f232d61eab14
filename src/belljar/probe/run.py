"""Probes a running cell: lays out, has the program try, looks, judges, records."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from belljar.capture import body_of
from belljar.errors import CellError, ContainmentBreach
from belljar.events import Actor, Event, JsonValue, Kind, Recorder, Trust
from belljar.host.cgroups import text_of
from belljar.plan.model import OciPlan, Plan
from belljar.plan.oci import MAX_TERMINALS, OPEN_FILES
from belljar.probe.judge import (
    MAX_OUTPUT_BYTES,
    Answers,
    Router,
    Sight,
    judge,
    overall,
    parse_answers,
    routed,
)
from belljar.probe.model import Probe, ProbeReport, Verdict, Witness
from belljar.probe.witness import watch
from belljar.process import boot_id, namespaces_of
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.channel import ExecOutput

QUICK: Final = "quick"
ALL: Final = "all"
END: Final = "end"
WARM_UP: Final = "warm-up"
# Far beyond what emulated cells need, as time alone must not make a sample void.
_QUICK_TIMEOUT_S: Final = 20.0
_ALL_TIMEOUT_S: Final = 90.0
# For the answer to arrive; then there is none, and the verdict is void.
_GRACE_S: Final = 5.0
# What the program is called in the cell: other processes of its user can read that.
_PROGRAM: Final = "sh"


class Probed(Protocol):
    id: str
    plan: Plan
    has_port: bool

    @property
    def tier(self) -> str: ...

    @property
    def host_pid(self) -> int | None: ...

    async def run_probe_program(
        self,
        argv: Sequence[str],
        *,
        input: bytes,  # noqa: A002 - as a subprocess's
        timeout_s: float,
        user: str | None = None,
        alone: bool = False,
    ) -> ExecOutput:
        """`alone`: nothing of the workload lives. Raises `CellError`."""
        ...


def chosen(probes: Sequence[Probe], which: str | Sequence[str]) -> tuple[Probe, ...]:
    """Raise `ValueError` for an unknown name."""
    if which == ALL:
        return tuple(probes)
    if which == QUICK:
        return tuple(probe for probe in probes if probe.quick)
    names = [which] if isinstance(which, str) else list(which)
    known = {word for probe in probes for word in (probe.name, probe.group)}
    for name in (each for each in names if each not in known):
        raise ValueError(f"there is no probe or group {printable(name, max_chars=80)}")
    return tuple(probe for probe in probes if probe.name in names or probe.group in names)


async def probe_cell(
    cell: Probed,
    *,
    which: str | Sequence[str] = QUICK,
    recorder: Recorder,
    router: Router | None = None,
    phase: str = "",
    user: str | None = None,
    actor: Actor = Actor.HARNESS,
    probes: Sequence[Probe] | None = None,
) -> ProbeReport:
    """Probe a running cell and judge the results; recorded before and after.

    The phase `end` first ends all that runs in the cell.
    Neither a breach nor a dead cell (void) is raised.
    Raises `ValueError` for an unknown name, or a router that the cell lacks or needs.
    """
    # Without it a machine's device would be judged by the guest's word alone.
    if cell.has_port != (router is not None):
        raise ValueError(
            f"cell {cell.id} has {'a' if cell.has_port else 'no'} network device, and "
            f"{'no' if router is None else 'a'} router was given"
        )
    if probes is None:
        from belljar.probe.catalogue import PROBES

        probes = PROBES
    wanted = routed(chosen(probes, which), router, tier=cell.tier)
    words = [which] if isinstance(which, str) else which
    about: dict[str, JsonValue] = {"which": ",".join(words), "phase": phase, "user": user or ""}
    recorder.record(Event(kind=Kind.PROBE_STARTED, cell_id=cell.id, actor=actor, data=about))
    began = time.monotonic()
    output, answers = b"", Answers(by_name={}, problem="it was interrupted")
    seen: dict[Witness, Sight] = {}
    try:
        own = cell_parameters(cell.plan, fresh=phase != END, router=router)
        parameters = {**own, **host_parameters(whole=which != QUICK)}
        output, answers = await _attempt(
            cell, wanted, words, parameters, router, user, seen, alone=phase == END
        )
    # Also when it is cancelled: each probing that began has its end on record.
    finally:
        findings, problem = judge(wanted, answers, seen, tier=cell.tier), answers.problem
        report = ProbeReport(
            verdict=overall(findings, problem),
            findings=findings,
            problem=problem,
            which=",".join(words),
            user=user or "",
            duration_ms=(time.monotonic() - began) * 1000,
        )
        recorder.record(_completed(cell, report, output, phase=phase, actor=actor))
    return report


def breach_of(report: ProbeReport | None, cell_id: str) -> ContainmentBreach | None:
    if report is None or not (breaches := report.of(Verdict.BREACHED)):
        return None
    shown = "; ".join(f"{each.name} ({each.seen})" for each in breaches[:3])
    more = f" and {len(breaches) - 3} more" if len(breaches) > 3 else ""
    return ContainmentBreach(
        f"breached: {shown}{more}",
        where=f"cell {cell_id}",
        hint="the run is stopped, and nothing of it counts as contained; `belljar ledger show "
        "last` has the probes",
    )


async def _attempt(
    cell: Probed,
    wanted: Sequence[Probe],
    words: Sequence[str],
    parameters: Mapping[str, str],
    router: Router | None,
    user: str | None,
    seen: dict[Witness, Sight],
    *,
    alone: bool,
) -> tuple[bytes, Answers]:
    """Note the host's sights in `seen`, even if cancelled."""
    timeout_s = _QUICK_TIMEOUT_S if list(words) == [QUICK] else _ALL_TIMEOUT_S
    witnesses = {probe.witness for probe in wanted if probe.witness}
    with watch(witnesses, host_pid=cell.host_pid, router=router) as watched:
        text = "".join(f"{k}={v}\n" for k, v in {**parameters, **watched.parameters}.items())
        output: ExecOutput | None = None
        problem = "it did not end in time"
        try:
            with anyio.move_on_after(timeout_s + _GRACE_S):
                output = await cell.run_probe_program(
                    [_PROGRAM, *words],
                    input=text.encode(),
                    timeout_s=timeout_s,
                    user=user,
                    alone=alone,
                )
        except (CellError, OSError) as error:
            problem = f"the cell could not run it: {printable(str(error), max_chars=300)}"
        # However the program ended: what it touched before counts.
        finally:
            seen.update(watched.look())
    if output is None:
        return b"", Answers(by_name={}, problem=problem)
    asked = [probe.name for probe in wanted]
    answers = parse_answers(output.stdout, asked=asked, nonce=watched.parameters["nonce"])
    problem = printable(output.why_not_started, max_chars=300)
    if not problem and output.timed_out:
        problem = "it did not end in time"
    elif not problem and output.returncode:
        problem = f"it ended with status {output.returncode}"
    elif not problem and output.stdout_dropped_bytes:
        problem = "its output was cut off"
    problem = "; ".join(part for part in (problem, answers.problem) if part)
    return output.stdout, replace(answers, problem=problem)


def _completed(
    cell: Probed, report: ProbeReport, output: bytes, *, phase: str, actor: Actor
) -> Event:
    told = (Verdict.VOID, Verdict.BREACHED)
    shown = [each for each in report.findings if each.verdict in told or each.known]
    data: dict[str, JsonValue] = {
        **report.to_json(),
        "phase": phase,
        "tier": cell.tier,
        "probes": len(report.findings),
        "counts": {verdict.value: len(report.of(verdict)) for verdict in Verdict},
        "findings": [each.to_json() for each in shown],
    }
    findings = json.dumps([each.to_json() for each in report.findings]).encode()
    contents = {"findings": findings, "output": output}.items()
    bodies = tuple(body_of(name, content, MAX_OUTPUT_BYTES) for name, content in contents)
    return Event(
        kind=Kind.PROBE_COMPLETED,
        cell_id=cell.id,
        actor=actor,
        trust=Trust.HOST_OBSERVED,
        data=data,
        bodies=bodies,
    )


def cell_parameters(plan: Plan, *, fresh: bool, router: Router | None = None) -> Mapping[str, str]:
    """`fresh`: nothing of a sample has run in the cell yet."""
    limits, port = plan.limits, dict[str, str]()
    if router is not None:
        port = {"interface": router.interface, "interface_mac": router.mac}
    # The container's hard limit, else the guest agent's own, which is the same where the host
    # allows it
    rlimits = plan.oci.config["process"]["rlimits"] if isinstance(plan, OciPlan) else ()
    open_files = (int(limit["hard"]) for limit in rlimits if limit["type"] == "RLIMIT_NOFILE")
    return {
        **port,
        "processes": str(limits.processes),
        "disk_bytes": str(limits.disk_bytes),
        "open_files": str(next(open_files, OPEN_FILES[1])),
        "terminals": str(MAX_TERMINALS),
        "fresh": "1" if fresh else "0",
        "capabilities": f"{plan.rights.mask:x}",
        "debugger_calls": "1" if plan.rights.calls else "0",
        "setuid_programs": "1" if plan.rights.setuid_programs else "0",
        "weights": "0" if plan.policy.model is None else "1",
        "devices": " ".join(plan.oci.devices) if isinstance(plan, OciPlan) else "",
    }


def host_parameters(*, whole: bool) -> Mapping[str, str]:
    """The quick set gets nothing of the host's names."""
    stat = (line.split() for line in text_of(Path("/proc/stat")).splitlines())
    parameters = {"btime": next((words[1] for words in stat if words[:1] == ["btime"]), "")}
    if whole:
        own = " ".join(f"{name}:{number}" for name, number in namespaces_of(os.getpid()).items())
        machine_id = text_of(Path("/etc/machine-id")).strip()
        parameters |= {"namespaces": own, "hostname": socket.gethostname()}
        parameters |= {"boot_id": boot_id(), "machine_id": machine_id}
    return {name: value for name, value in parameters.items() if value}
