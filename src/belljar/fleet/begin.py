"""Begins a run on a fleet: chooses nodes, plans, hands over to the head."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Final

from belljar.errors import LedgerError, breach_stands
from belljar.events import Kind
from belljar.fleet.archive import pack_task
from belljar.fleet.engine import CLEAR_S, joined
from belljar.fleet.head import Head
from belljar.fleet.node import clear, settings_of, silence_s
from belljar.fleet.nodes import describe_nodes, pin_keys, prepare_nodes
from belljar.fleet.units import KIND, summary
from belljar.harness.evaluate import RunOutcome, load_only
from belljar.harness.evidence import check_ledger
from belljar.harness.host_processes import watched_host
from belljar.harness.options import RunRequest, select_task
from belljar.harness.source import RealCells, standard_output_to_error
from belljar.package import __version__
from belljar.report.verdict import LedgerState
from belljar.store.home import belljar_home

# What of a request is on record.
_KEPT: Final = ("inspect_args", "policy", "tier", "allow_upstreams", "require_contained")


def run_fleet(request: RunRequest, fleet: str) -> tuple[RunOutcome, list[str]]:
    """Run an evaluation on the fleet; return its outcome and lines for the report.

    Raises as `run_evaluation`, `HostError` when no node can run the task as planned.
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
        with joined(fleet) as engine, ExitStack() as unless_begun:
            nodes = describe_nodes(engine, home, task)
            asked = [node.node_id for node in nodes if not node.refusal]
            # After Ctrl-C half of an image would stay there, which may be gigabytes.
            unless_begun.callback(engine.on_each, asked, clear, workspace, within_s=CLEAR_S)
            nodes, images, sent = prepare_nodes(
                engine, nodes, workspace, archive, sha256, task, home
            )
            # A value may be a secret: its digest says whether it is another one.
            hashed = {
                name: hashlib.sha256(value.encode()).hexdigest()
                for name, value in settings_of(os.environ).items()
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
            # Only now: a refused evaluation pins no key.
            pin_keys(home, nodes)
            with RealCells().start_run(KIND, argv, home=home, what=task.name) as run:
                head = Head(task, engine, run, nodes, host, silence_s=patience_s)
                head.record(Kind.FLEET_PLANNED, **plan)
                names = {node.node_id: node.name for node in nodes}
                for node_id, about in sent:
                    head.record(Kind.FLEET_IMAGE_SENT, node=names[node_id], **about)
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
