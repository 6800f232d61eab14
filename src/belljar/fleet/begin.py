"""Begins a run on a fleet, or goes on with one: chooses nodes, plans, hands over to the head."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from belljar.errors import LedgerError, PolicyError, breach_stands
from belljar.events import Kind
from belljar.fleet.archive import pack_task
from belljar.fleet.engine import CLEAR_S, joined
from belljar.fleet.head import Head
from belljar.fleet.judge import KIND, Try, summary
from belljar.fleet.node import SILENCE, clear, settings_of, silence_s
from belljar.fleet.nodes import describe_nodes, pin_keys, prepare_nodes
from belljar.fleet.record import run_to_resume
from belljar.harness.evaluate import RunOutcome, load_only
from belljar.harness.evidence import check_ledger
from belljar.harness.host_processes import watched_host
from belljar.harness.options import RunRequest, select_task
from belljar.harness.source import RealCells, standard_output_to_error
from belljar.package import __version__
from belljar.report.verdict import LedgerState
from belljar.store.home import belljar_home
from belljar.units import printable

# What of a request is on record, for `--resume`.
_KEPT: Final = (
    *("inspect_args", "policy", "override", "tier", "allow_upstreams", "require_contained"),
)
# What of a plan decides what a sample is: a resumed run has the same.
_DECIDES: Final = ("task", "samples", "epochs", "code", "policies", "images", "versions")


def resume_fleet(request: RunRequest, ref: str, fleet: str) -> tuple[RunOutcome, list[str]]:
    """Run what an unfinished or interrupted fleet run lacks, in a new run that takes over the rest.

    Raises as `run_fleet`, `PolicyError` when it can't be resumed.
    """
    old, plan, tries = run_to_resume(request.home or belljar_home(), ref)
    try:
        os.chdir(plan["directory"])  # as paths in its options are relative to it
    except OSError as error:
        what = f"the directory in which it was begun can't be entered: {error.strerror}"
        raise PolicyError(what, where=printable(plan["directory"]), hint="run it anew") from error
    request = replace(request, **{name: plan[name] for name in _KEPT})
    return run_fleet(request, fleet or plan["fleet"], resumed=(old, plan, tries))


def run_fleet(
    request: RunRequest,
    fleet: str,
    *,
    resumed: tuple[Path, Mapping[str, Any], Sequence[Try]] | None = None,
) -> tuple[RunOutcome, list[str]]:
    """Run an evaluation on the fleet; return its outcome and lines for the report.

    `resumed`: a run whose units are taken over. Raises as `run_evaluation`, `HostError` when no
    node can run the task as planned.
    """
    patience_s = silence_s(os.environ)
    with (
        watched_host(beside="ray") as host,  # it loads the task, and computes its metrics
        standard_output_to_error(),  # engines print what they notice
        ExitStack() as unless_breached,
    ):
        loaded = load_only(request.inspect_args, request.operator_options)
        task, home = select_task(request, loaded), request.home or belljar_home()
        # An empty tar archive is two blocks of zeros.
        archive = pack_task(task.root) if task.root is not None else bytes(1024)
        argv = [*sys.argv[:1], "run", "--fleet", fleet, *request.inspect_args]
        sha256 = hashlib.sha256(archive).hexdigest()
        workspace = f"{os.getpid()}-{time.time_ns()}"
        with joined(fleet, memory_mib=task.memory_mib) as engine, ExitStack() as unless_begun:
            nodes = describe_nodes(engine, home, task)
            asked = [node.node_id for node in nodes if not node.refusal]
            # After Ctrl-C half of an image would stay there, which may be gigabytes.
            unless_begun.callback(engine.on_each, asked, clear, workspace, within_s=CLEAR_S)
            nodes, images, sent = prepare_nodes(
                engine, nodes, workspace, archive, sha256, task, home
            )
            settings = settings_of(os.environ)
            # A value may be a secret: its digest says whether it is another one.
            hashed = {
                name: hashlib.sha256(settings[name].encode()).hexdigest()
                for name in settings
                if name != SILENCE  # another patience is the same evaluation
            }
            plan = {
                "task": task.name,
                "samples": [*task.samples],
                "epochs": task.epochs,
                "code": sha256,
                "policies": [*task.policies],
                "images": images,
                "versions": [__version__, version("inspect-ai")],
                "settings": hashed,
                "fleet": fleet,
                "directory": str(Path.cwd()),
                **{name: getattr(request, name) for name in _KEPT},
            }
            if resumed is not None:
                check_same(resumed[1], plan)
            # Only after both checks: a refused evaluation pins no key.
            pin_keys(home, nodes)
            with RealCells().start_run(KIND, argv, home=home, what=task.name) as run:
                head = Head(task, engine, run, nodes, host, silence_s=patience_s)
                head.record(Kind.FLEET_PLANNED, **plan)
                names = {node.node_id: node.name for node in nodes}
                for node_id, about in sent:
                    head.record(Kind.FLEET_IMAGE_SENT, node=names[node_id], **about)
                if resumed is not None:
                    head.take_over(resumed[0], resumed[2])
                # From here on units may use the files: after an error a later run on the node
                # removes them.
                unless_begun.pop_all()
                outcome = head.run_all(workspace, require_contained=request.require_contained)
                hint = f"see `belljar verdict {run.run_id}`"
                unless_breached.enter_context(breach_stands(outcome.findings.verdict, hint=hint))
                engine.on_each([*head.usable], clear, workspace, within_s=CLEAR_S)
        state, problem = check_ledger(run)  # now that it is sealed
        if state is not LedgerState.VERIFIED:
            raise LedgerError(problem or "it is not sealed", where=str(run.path))
        return outcome, summary(head.tries)


def check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise `PolicyError` with what differs between a plan and that of the run to be resumed."""
    differing = [name for name in _DECIDES if old.get(name) != new[name]]
    before, now = old.get("settings", {}), new["settings"]
    differing += sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if differing:
        raise PolicyError(
            f"it is not the evaluation of the run to be resumed: {', '.join(differing)} differ",
            where="--resume",
            hint="set them as they were (code: the task's files), or run it anew",
        )
