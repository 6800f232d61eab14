"""Runs an evaluation on a fleet: places units, verifies and judges results."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import IO, Any, Final

from belljar.errors import ContainmentBreach, LedgerError, breach_stands
from belljar.events import Event, Kind
from belljar.fleet import units
from belljar.fleet.archive import MAX_ARCHIVE_BYTES, pack_task
from belljar.fleet.engine import CLEAR_S, Engine, joined
from belljar.fleet.guard import NEVER_BEGAN
from belljar.fleet.node import SILENCE_S, clear, settings_of, silence_s
from belljar.fleet.nodes import describe_nodes, last_words, pin_keys, prepare_nodes
from belljar.fleet.record import UNITS, archive_of, examine, is_whole, unpacked
from belljar.fleet.units import KIND, summary
from belljar.harness.evaluate import RunOutcome, load_only
from belljar.harness.evidence import check_ledger, put_on_record
from belljar.harness.host_processes import HostActivity, watched_host
from belljar.harness.options import RunRequest, SelectedTask, select_task
from belljar.harness.source import standard_output_to_error
from belljar.harness.verdicts import LogPart, bind_verdicts, merge_logs
from belljar.ledger.kinds import check_shape, shape_of
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import INSPECT_LOGS, RunDirectory
from belljar.ledger.verification import Status
from belljar.package import __version__
from belljar.probe.model import Verdict
from belljar.report.left import LeftGatherer
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings
from belljar.store.home import belljar_home
from belljar.units import printable
from belljar.waiting import print_status

POLL_S: Final = 0.5  # heartbeats are a second apart: looking more often would find nothing new
# A node's word of how its unit ended, which may be anything until its shape is checked.
_END: Final = shape_of("run_id:text why:text exit_code:whole")
# An interrupted unit destroys its cells, seals and sends its record; its guard gives it 90 s.
STOP_S: Final = 120.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    unit: units.Unit
    handle: object
    part: IO[bytes]
    began_s: float
    node: units.Node | None = None
    digest: Any = field(default_factory=hashlib.sha256)
    size: int = 0
    end: Mapping[str, Any] | None = None


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # under `nohup` SIGHUP stays ignored
            signal.signal(number, lambda caught, _: received.append(caught))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Head:
    def __init__(
        self,
        task: SelectedTask,
        engine: Engine,
        run: RunDirectory,
        nodes: Sequence[units.Node],
        host: HostActivity,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._silence_s = silence_s
        self._task, self._engine, self._run, self._host = task, engine, run, host
        self._nodes = nodes
        self.usable = {node.node_id: node for node in nodes if not node.refusal}
        self._cells = min([units.cells_per_unit(self.usable.values()), *task.limits])
        self._waiting, self._again = list(task.samples), list[units.Unit]()
        self._running: list[_Running] = []
        self._count = 0
        self.tries: list[units.Try] = []
        self._stopping_s: float | None = None
        self._interrupted = False
        self._problems: list[Reason] = []
        self._breached = ""
        (run.path / UNITS).mkdir(mode=0o700)

    def record(self, kind: Kind, **data: Any) -> None:  # noqa: ANN401 - an event's data
        self._run.recorder.record(Event(kind=kind, data=data))

    # --- running

    def run_all(self, workspace: str, *, require_contained: bool) -> RunOutcome:
        try:
            for node in self._nodes:
                self._record_node(node, "refused" if node.refusal else "taken", node.refusal)
            self._engine.watch(workspace, [*self.usable])
            with _interrupts() as received:
                while self._waiting or self._again or self._running:
                    self._step(workspace)
                    if received and not self._interrupted:
                        self._interrupted = True
                        self._stop("interrupted: the units are ending")
                    # A second signal waits for no unit's record.
                    for running in list(self._running) if len(received) > 1 else ():
                        self._break_off(running, "interrupted twice")
            return self._finish(require_contained=require_contained)
        except Exception as error:
            if not self._breached:
                raise
            what = f"{self._breached} is breached, and the fleet's run failed: {error}"
            raise ContainmentBreach(what, where=str(self._run.path)) from error

    def _step(self, workspace: str) -> None:
        now, task = time.monotonic(), self._task
        by_handle = {id(each.handle): each for each in self._running}
        handles = [each.handle for each in self._running]
        for handle, item in self._engine.ready(handles, timeout_s=POLL_S) if handles else ():
            self._take(by_handle[id(handle)], item)
        # A copy, as `_lose` removes entries.
        for node_id, heard_s in list(self._engine.last_heard_s.items()):
            if now - heard_s > self._silence_s:
                self._lose(node_id)
        if self._stopping_s is None:
            self._place(workspace)
        elif now - self._stopping_s > STOP_S:
            for running in list(self._running):
                self._break_off(running, "it did not end in time")
        for running in list(self._running):
            limit_s = units.deadline_s(
                running.unit, task.epochs, self._cells, task.time_limit_s, retries=task.retries
            )
            # What waits for a node takes none of its time.
            if running.node and limit_s is not None and now - running.began_s > limit_s:
                # Its node lives: a guest may have caused this, and must not get a second chance.
                self._break_off(running, f"no result within {limit_s:.0f} s", may_retry=False)

    def _place(self, workspace: str) -> None:
        room = sum(max(1, node.cells // self._cells) for node in self.usable.values())
        wide = -(-self._cells // self._task.epochs)
        while (self._again or self._waiting) and (len(self._running) < room or not room):
            if self._again:
                unit = self._again.pop(0)
            else:
                # Without any node the rest is one unit, which ends below.
                left = len(self._waiting)
                size = units.next_size(left, slots=room, side_by_side=wide) if room else left
                self._count += 1
                unit = units.Unit(number=self._count, samples=tuple(self._waiting[:size]))
                del self._waiting[:size]
            allowed = [node for node in self.usable if node not in unit.not_on]
            if not allowed:
                self._end(units.Try(unit=unit, node="-", why="no node is left for it"))
                continue
            words = self._task.unit_words(unit.samples, cells=self._cells)
            arguments = (workspace, unit.name, words, settings_of(os.environ))
            room_for = {"cells": self._cells, "memory_mib": self._cells * self._task.memory_mib}
            handle = self._engine.start(arguments, **room_for, nodes=allowed)
            # "x": no archive is ever written over.
            part, now = archive_of(self._run.path, unit).open("xb"), time.monotonic()
            self._running.append(_Running(unit=unit, handle=handle, part=part, began_s=now))

    def _take(self, running: _Running, item: object) -> None:
        unit = running.unit
        if isinstance(item, Exception):
            self._break_off(running, last_words(item))
        elif item is None:
            self._collect(running)
        elif isinstance(item, bytes):
            running.size += len(item)
            running.digest.update(item)
            if running.size > MAX_ARCHIVE_BYTES:
                # A guest may have filled it, and must not get a second chance.
                self._fail(running, "its run directory is larger than is accepted", is_bad=True)
                return
            try:
                running.part.write(item)
            except OSError as error:
                self._fail_here(running, error)
        elif not (isinstance(item, dict) and "node" in item):
            running.end = item if isinstance(item, dict) else running.end
        elif running.node is not None:  # each time its deadline would begin anew
            self._fail(running, "it named its node twice", is_bad=True)
        elif not isinstance(item["node"], str) or not (node := self.usable.get(item["node"])):
            self._fail(running, "it came from a node that is not of this fleet")
        else:
            # Until now it waited in the engine's queue.
            running.node, running.began_s = node, time.monotonic()
            self._of_unit(Kind.FLEET_UNIT_PLACED, unit, node.name)
            count = len(unit.samples)
            print_status(f"belljar: unit {unit.name} runs on {node.name}: {count} sample(s)")

    def _collect(self, running: _Running) -> None:
        unit, sent, node = running.unit, running.end, running.node
        if sent is None or node is None:
            self._fail(running, "its node sent no end")
            return
        try:
            running.part.close()
            check_shape(sent, _END)
            run_id, words, code = (sent[name] for name in _END)
            words = printable(words, max_chars=400)
            if not run_id:
                began = self._stopping_s is None or code != NEVER_BEGAN
                why = f"exit code {code}: {words}" if began else "interrupted before it began"
                self._fail(running, why, began=began)
                return
            came = {"run_id": run_id, "key": node.key, "archive": running.digest.hexdigest()}
            tried = examine(self._run.path, units.Try(unit=unit, node=node.name, **came))
        except OSError as error:
            self._fail_here(running, error)
            return
        except Exception as error:  # noqa: BLE001 - what a node sent may be anything
            detail = printable(str(error), max_chars=400)
            # Its evidence is here, whatever it is: another attempt must not stand for it.
            self._fail(running, f"what came back does not verify: {detail}", is_bad=True)
            return
        self._running.remove(running)
        findings = tried.findings or RunFindings()
        if findings.verdict is Verdict.BREACHED:
            self._breached = tried.where
        came |= {"root": tried.root, "verdict": findings.verdict.value, "bytes": running.size}
        self._of_unit(Kind.FLEET_UNIT_FINISHED, unit, node.name, **came)
        print_status(f"belljar: unit {unit.name} came back from {node.name}: {findings.verdict}")
        again = units.to_try_again(unit, self._task.epochs, findings)
        # With its process's last words: a full disk can't take down that it is full.
        why = f"{len(again)} sample(s) lost their evidence there: {words}" if again else ""
        self._end(replace(tried, why=why))
        self._try_again(unit, again, node.node_id)
        if findings.verdict is Verdict.BREACHED:
            self._stop(f"unit {unit.name} is breached: the fleet stops")
        elif units.has_task_error(findings):
            self._stop(f"unit {unit.name} failed and ends the evaluation: see --no-fail-on-error")

    def _of_unit(self, kind: Kind, unit: units.Unit, node: str, **more: object) -> None:
        about = {"unit": unit.number, "attempt": unit.attempt, "node": node}
        self.record(kind, **about, samples=unit.samples, **more)

    def _end(self, tried: units.Try) -> None:
        self.tries.append(tried)
        if tried.why:
            words: dict[str, Any] = {"reason": tried.why, "began": tried.began}
            words |= {"archive": tried.archive} if tried.archive else {}
            words |= {"is_bad": True} if tried.is_bad else {}
            self._of_unit(Kind.FLEET_UNIT_FAILED, tried.unit, tried.node, **words)
            print_status(f"belljar: {tried.where}: {tried.why}")

    def _fail(
        self, running: _Running, why: str, *, began: bool = True, is_bad: bool = False
    ) -> None:
        """A unit is tried elsewhere unless its record came: that may be a breach's."""
        self._running.remove(running)
        self._engine.cancel(running.handle)
        with suppress(OSError):  # a full disk: what was written is there
            running.part.close()
        place = archive_of(self._run.path, running.unit)
        # A node may die, or fail, between its record's last piece and its word of the end.
        has_come = running.size > 0 and (running.end is not None or is_whole(place))
        if not has_come:
            place.unlink(missing_ok=True)
        if has_come and not is_bad:
            why, is_bad = f"{why}; its record came, and can't be judged", True
        node, unit = running.node, running.unit
        archive = running.digest.hexdigest() if has_come else ""
        tried = units.Try(unit=unit, node=node.name if node else "-", why=why, archive=archive)
        self._end(replace(tried, began=began, is_bad=is_bad))
        if not is_bad:
            self._try_again(unit, unit.samples, node.node_id if node else "")

    def _break_off(self, running: _Running, why: str, *, may_retry: bool = True) -> None:
        """Stop waiting for a unit. A complete one is judged."""
        if running.end is not None:
            self._engine.cancel(running.handle)
            self._collect(running)
        else:
            self._fail(running, why, is_bad=not may_retry)

    def _fail_here(self, running: _Running, error: OSError) -> None:
        """End the run: this machine can't keep or read results."""
        why = f"the head can't keep its record: {printable(str(error))}"
        self._problems.append(Reason(code=ReasonCode.RUN_ERROR, detail=why))
        self._stop(why)  # first: once the run stops, `_fail` tries nothing again
        self._fail(running, why)

    def _try_again(self, unit: units.Unit, samples: Sequence[str], node_id: str) -> None:
        if self._stopping_s is None:
            again = units.another_try(unit, samples, node_id, self.usable)
            self._again += [again] if again is not None else []

    def _lose(self, node_id: str) -> None:
        self._engine.last_heard_s.pop(node_id, None)
        node, why = self.usable.pop(node_id, None), "the node did not answer"
        if node is None:
            return
        self._record_node(node, "lost", why)
        print_status(f"belljar: node {node.name} is lost: {why}")
        for running in list(self._running):
            if running.node is node:
                self._break_off(running, why)
            elif not (running.node or self._stopping_s or node_id in running.unit.not_on):
                # It may wait for that very node, or have begun there unheard.
                self._fail(running, f"it was not heard of when {node.name} was lost")

    def _stop(self, why: str) -> None:
        if self._stopping_s is None:  # the first reason is shown; later ones follow from it
            print_status(f"belljar: {why}")
            self._stopping_s = time.monotonic()
            self._engine.is_stopping = True
            self._waiting, self._again = [], []

    def _record_node(self, node: units.Node, state: str, why: str) -> None:
        about = {"node": node.name, "key": node.key, "cells": node.cells}
        self.record(Kind.FLEET_NODE, **about, state=state, reason=why)

    # --- the end

    def _finish(self, *, require_contained: bool) -> RunOutcome:
        task, run = self._task, self._run
        asked = units.Asked(
            run_id=run.run_id, task=task.name, samples=task.samples, epochs=task.epochs
        )
        interrupted, stopped = self._interrupted, self._stopping_s is not None
        stopped = stopped and not interrupted
        ends = {"interrupted": interrupted, "stopped": stopped}
        # Judged twice: verdicts go into the log before it is known whether that works.
        judge = partial(units.judge_fleet, asked, self.tries)
        judged = partial(judge, interrupted=interrupted, stopped=stopped)
        dropped = self._merge(judged(), require_contained=require_contained)
        self.record(
            Kind.RUN_EVALUATED,
            **ends,
            errors=[problem.detail for problem in self._problems],
            causes=[problem.code.value for problem in self._problems],
            **self._host.data(),
        )
        left = LeftGatherer()
        for line in read_events(run.path):
            left.take(line)
        findings = judged(problems=self._problems, own=left.end())
        put_on_record(run, findings, dropped)
        return RunOutcome(findings=findings, dropped=dropped, path=run.path)

    def _merge(self, findings: RunFindings, *, require_contained: bool) -> list[str]:
        if not any(each.findings for each in self.tries):
            return []
        folder = self._run.inspect_log_dir
        try:
            names, epochs = self._task.samples, self._task.epochs
            differing = merge_logs(self._parts(), names, folder, epochs=epochs)
            dropped = bind_verdicts(folder, findings, require_contained=require_contained)
        # Inspect's log format, and a task's own metrics
        except (Exception, SystemExit) as error:  # noqa: BLE001
            detail = f"{type(error).__name__}: {printable(str(error), max_chars=300)}"
            self._problems.append(Reason(code=ReasonCode.VERDICTS_NOT_IN_LOG, detail=detail))
            return []
        if differing:
            detail, code = printable(differing), ReasonCode.UNITS_DIFFER
            self._problems.append(Reason(code=code, detail=detail))
        return dropped

    def _parts(self) -> Iterator[LogPart]:
        counted: dict[str, tuple[units.Try, set[tuple[str, int]]]] = {}
        for key, (tried, row) in units.counted_rows(self.tries).items():
            if row.is_logged:
                counted.setdefault(tried.unit.name, (tried, set()))[1].add(key)
        for name, (tried, keys) in sorted(counted.items()):
            with unpacked(self._run.path, tried, only=f"{INSPECT_LOGS}/") as made:
                yield LogPart(name=f"unit {name}", directory=made / INSPECT_LOGS, counted=keys)


def run_fleet(request: RunRequest, fleet: str) -> tuple[RunOutcome, list[str]]:
    """Return the run's outcome and report lines."""
    patience_s = silence_s(os.environ)
    with (
        watched_host(beside="ray") as host,  # it loads the task, and computes its metrics
        standard_output_to_error(),  # engines print what they notice
        ExitStack() as unless_breached,
    ):
        task, home = select_task(request, load_only(request)), request.home or belljar_home()
        # An empty tar archive is two blocks of zeros.
        archive = pack_task(task.root) if task.root is not None else bytes(1024)
        argv = [*sys.argv[:1], "run", "--fleet", fleet, *request.inspect_args]
        sha256 = hashlib.sha256(archive).hexdigest()
        workspace = f"{os.getpid()}-{time.time_ns()}"
        with joined(fleet) as engine, ExitStack() as unless_begun:
            nodes = describe_nodes(engine, home, task)
            asked = [node.node_id for node in nodes if not node.refusal]
            # After Ctrl-C half of an image would stay there, which may be gigabytes.
            cleared = partial(clear, workspace)
            unless_begun.callback(engine.on_each, asked, cleared, within_s=CLEAR_S)
            place = (workspace, archive, sha256)
            nodes, images, sent = prepare_nodes(engine, nodes, *place, task, home)
            kept = ("inspect_args", "policy", "tier", "allow_upstreams", "require_contained")
            plan = {
                "task": task.name,
                "samples": [*task.samples],
                "epochs": task.epochs,
                "code": sha256,
                "images": images,
                "versions": [__version__, version("inspect-ai")],
                "fleet": fleet,
                **{name: getattr(request, name) for name in kept},
            }
            pin_keys(home, nodes)  # only now: a refused evaluation pins no key
            with RunDirectory(home, KIND, argv, what=task.name) as run:
                head = Head(task, engine, run, nodes, host, patience_s)
                head.record(Kind.FLEET_PLANNED, **plan)
                names = {node.node_id: node.name for node in nodes}
                for node_id, about in sent:
                    head.record(Kind.FLEET_IMAGE_SENT, node=names[node_id], **about)
                # From here on units may use the files: after an error a later run removes them.
                unless_begun.pop_all()
                outcome = head.run_all(workspace, require_contained=request.require_contained)
                hint = f"see `belljar verdict {run.run_id}`"
                unless_breached.enter_context(breach_stands(outcome.findings.verdict, hint=hint))
                engine.on_each([*head.usable], cleared, within_s=CLEAR_S)
        state, problem = check_ledger(run)  # now that it is sealed
        if state is not Status.VERIFIED:
            raise LedgerError(problem or "it is not sealed", where=str(run.path))
        return outcome, summary(head.tries)
