"""`belljar run`: an Inspect evaluation in cells, its record, and its verdict."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from belljar.errors import BelljarError, HostError, LedgerError, PolicyError, first_of

try:
    import belljar.harness._registry  # noqa: F401 - also where no entry point is installed
except ImportError as error:
    hint = "pip install 'belljar-sandbox[inspect]'"
    raise HostError("Inspect AI is not installed", hint=hint) from error

from inspect_ai import Task
from inspect_ai._cli.util import parse_cli_config, parse_model_role_cli_args
from inspect_ai._eval.list import tasks_in_dir
from inspect_ai._eval.loader import load_tasks as inspect_load_tasks
from inspect_ai._eval.task.util import task_run_dir
from inspect_ai._util.error import PrerequisiteError
from inspect_ai._util.generate_config_args import config_from_locals
from inspect_ai.model import GenerateConfig
from inspect_ai.model._model import init_active_model, init_model_roles, resolve_models
from inspect_ai.model._util import resolve_model_roles
from rich.text import Text

from belljar.harness.config import Preview, adapt_task
from belljar.harness.evidence import check_ledger, own_evidence, put_on_record
from belljar.harness.host_processes import watched_host
from belljar.harness.options import (
    RunRequest,
    Selection,
    explicit_arguments,
    model_of,
    read_options,
    read_selection,
)
from belljar.harness.preview import preview, summary, with_images
from belljar.harness.session import Session, session_scope
from belljar.harness.source import hold_required_gap, standard_output_to_error
from belljar.harness.verdicts import bind_verdicts
from belljar.host.settings import resolve_here
from belljar.image.store import refuse_missing
from belljar.interrupts import termination_as_interrupt
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status
from belljar.network.stand_ins.author import check_stand_ins
from belljar.policy.limits import demanded_tier
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import LoadedPolicy, with_tier
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings
from belljar.report.verdict import Evidence, judge
from belljar.store.home import belljar_home
from belljar.units import printable
from belljar.waiting import print_status

# Names a file that gets the run directory: a fleet's node sends the record of a dead process.
NOTED_IN: Final = "BELLJAR_RUN_NOTED_IN"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    findings: RunFindings
    dropped: Sequence[str] = ()  # samples left out of the metrics
    path: Path

    @property
    def exit_code(self) -> int:
        return self.findings.exit_code


def run_evaluation(request: RunRequest) -> RunOutcome:
    """Run an evaluation from start to sealed run directory.

    Raises `PolicyError`, `HostError`, `CellError`, `LedgerError` before anything ran in a cell,
    `ContainmentBreach` for another provider used while loading, `click.UsageError` for options.
    """
    # The store's place is settled before a `.env` file or a task's code is read.
    request = replace(request, home=request.home or belljar_home())
    with contextlib.ExitStack() as stack:
        if request.quiet:
            stack.enter_context(standard_output_to_error())
        options, session = _begin(request)
        session.host = stack.enter_context(watched_host())  # hooks may connect when they start
        stack.enter_context(_controlled(session))
        with _stops(session):
            models = _set_active_model(options, is_needed=True)
            tasks, previews = load_tasks(options, session, read_selection(options), runs=True)
            if not previews:
                where, hint = ", ".join(task.name for task in tasks), "see --limit and --sample-id"
                raise PolicyError("no sample is selected", where=printable(where), hint=hint)
            policies = _show_preview(previews, session)
            for each in policies:
                session.models.need(demanded_tier(each.policy.risk, each.policy.tier))
        try:
            return _run_tasks(request, options, tasks, session, [*policies, *models])
        except LedgerError as error:  # a full disk hides no breach
            if session.stopped is None:
                raise
            raise session.stopped from error


def _begin(request: RunRequest) -> tuple[click.Context, Session]:
    if request.policy:  # whole, as by `policy check`: also what tasks would leave unused
        check_stand_ins(resolve_here(with_tier(resolve_policy(request.policy), request.tier)))
    options = read_options(request.inspect_args)
    operator = request.operator()
    return options, Session(given_operator=operator, home=request.home, source=request.source)


def load_only(request: RunRequest) -> tuple[click.Context, list[Task], list[Preview]]:
    """Load tasks without running, and preview samples. Raises as `run_evaluation`."""
    options, session = _begin(request)
    selection = read_selection(options)
    if selection.shuffle is True:
        selection = Selection(ids=selection.ids)
    with standard_output_to_error(), _controlled(session), _stops(session):
        _set_active_model(options, is_needed=False)
        return (options, *load_tasks(options, session, selection))


def _controlled(session: Session) -> contextlib.AbstractContextManager[None]:
    from inspect_ai.hooks._startup import init_hooks

    with _explained("Inspect's hooks"):
        init_hooks()  # other packages' hooks register before ours, which Inspect would announce
    from belljar.harness.boundary import controlled

    return controlled(session)


@contextlib.contextmanager
def _stops(session: Session) -> Iterator[None]:
    """Raise what stopped the session, or a `PolicyError` for `sys.exit`."""
    try:
        yield
    except BaseException as error:
        if session.stopped is None:
            if isinstance(error, SystemExit):
                hint = "take `sys.exit` out of it; to end a run's evaluation, raise an error"
                raise PolicyError("the task's code ended the process", hint=hint) from error
            raise
    if session.stopped is not None:
        raise session.stopped


def _show_preview(previews: Sequence[Preview], session: Session) -> list[LoadedPolicy]:
    for each in previews:
        if each.error is not None:
            raise each.error
    source = session.source
    policies = [*dict.fromkeys(each.policy for each in previews if each.policy is not None)]
    for policy in policies:
        check_stand_ins(policy)
    builds = dict.fromkeys(build for each in previews for build in each.asked.builds)
    images = {image for policy in policies for image in policy.policy.images}
    source.build_images(builds, images)
    refuse_missing(source.missing_images(policies))
    whole = with_images(previews, source.image_differences)
    session.show_once(summary(whole))
    session.is_previewed = True
    return policies


def _run_tasks(
    request: RunRequest,
    options: click.Context,
    tasks: list[Task],
    session: Session,
    policies: Sequence[LoadedPolicy],
) -> RunOutcome:
    what = ", ".join(task.name for task in tasks)
    argv = [*sys.argv[:1], "run", *request.inspect_args]
    with request.source.start_run("run", argv, what=what) as run, session_scope(session):
        session.run = run
        if noted := os.environ.get(NOTED_IN):
            Path(noted).write_text(str(run.path))
        hold_required_gap(run, policies)
        with termination_as_interrupt() as termination:
            # A breach ends it as Ctrl-C does: Inspect cancels what runs, and writes its log.
            session.termination_signals, session.stop = termination.received, termination.interrupt
            interrupted = invoke(request, options, tasks, session)
            session.stop = None
        # Inspect ends well when a signal interrupts it, and raises nothing.
        session.record_end(interrupted=interrupted or bool(termination.received))
        evidence, dropped = _evidence_in_log(run, require_contained=request.require_contained)
        findings = judge(evidence)
        put_on_record(run, findings, dropped)
    if session.refusal is not None and findings.exit_code == session.refusal.exit_code:
        raise session.refusal
    state, problem = check_ledger(run)  # now that it is sealed
    if state is not Status.VERIFIED:
        findings = judge(replace(evidence, ledger=state, ledger_problem=problem))
    return RunOutcome(findings=findings, dropped=dropped, path=run.path)


def _evidence_in_log(run: RunDirectory, *, require_contained: bool) -> tuple[Evidence, list[str]]:
    """Write verdicts into the log; return also the samples outside metrics."""
    evidence = own_evidence(run)
    try:
        logs = run.inspect_log_dir
        return evidence, bind_verdicts(logs, judge(evidence), require_contained=require_contained)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - Inspect's log, and a task's metrics
        # The ledger is the record: this is a problem of the run only when numbers depend on it.
        detail = f"{type(error).__name__}: {printable(str(error), max_chars=300)}"
        print_status(f"belljar: {Reason(code=ReasonCode.VERDICTS_NOT_IN_LOG, detail=detail)}")
        if require_contained:
            evidence = replace(evidence, run=replace(evidence.run, not_in_log=detail))
        return evidence, []


def load_tasks(
    options: click.Context, session: Session, selection: Selection, *, runs: bool = False
) -> tuple[list[Task], list[Preview]]:
    """Raises `PolicyError` for an invalid task when `runs` or alone."""
    params = options.params
    names = "name a file, file@task or package/task"
    if not params["tasks"]:
        raise click.UsageError(f"which task? {names}", options)
    given = parse_cli_config(params["t"], params["task_config"])
    tasks: list[Task] = []
    broken: dict[str, PolicyError] = {}
    for spec in _files_of(params["tasks"]):
        try:
            with _explained(spec):
                path = spec.partition("@")[0]
                if path.endswith(".py") and not set(path) & set("*?["):
                    # Of a file that is missing or no Python, Inspect just finds no task in it.
                    ast.parse(Path(path).read_bytes(), filename=path)
                tasks += inspect_load_tasks([spec], given)
        except PolicyError as error:  # which hides none of the others
            broken[spec] = error
    if broken and (runs or not tasks):
        raise next(iter(broken.values()))
    if not tasks:
        where = printable(", ".join(params["tasks"]))
        raise PolicyError("no task was found there", where=where, hint=names)
    previews = [Preview(spec, error=error) for spec, error in broken.items()]
    for task in tasks:
        selection.order(task)
        made = adapt_task(task, directory=Path(task_run_dir(task)))
        chosen = selection.positions(task, [each.name for each in tasks])
        previews += preview([made[each] for each in chosen], session.operator)
        if model_of(options):
            task.model = None
    return tasks, previews


def _files_of(named: Iterable[str]) -> list[str]:
    specs: list[str] = []
    for spec in named:
        path, at, name = spec.partition("@")
        here = os.path.relpath(path) if Path(path).is_absolute() and Path(path).exists() else path
        files = [*map(str, sorted(tasks_in_dir(Path(here))))] if Path(here).is_dir() else []
        specs += [each for each in files if b"@task" in Path(each).read_bytes()]
        specs += [] if files else [f"{here}{at}{name}"]
    return specs


def _set_active_model(options: click.Context, *, is_needed: bool) -> list[LoadedPolicy]:
    """Return the policies of models in cells; `is_needed`: raises what is wrong."""
    params = options.params
    name = model_of(options) or "none"
    if not isinstance(name, str):
        return []  # A model's whole description; a task that asks for it says so.
    try:
        config = GenerateConfig(**config_from_locals(dict(params)))
        args = parse_cli_config(params.get("m"), params.get("model_config"))
        models = resolve_models(name, params.get("model_base_url"), args, config)
        roles = resolve_model_roles(parse_model_role_cli_args(params.get("model_role")))
    except PrerequisiteError as error:
        if not is_needed:
            return []
        if isinstance(error.__cause__, BelljarError):
            raise error.__cause__ from error
        raise HostError(
            f"the model can't be used: {_unmarked(error)}",
            where=printable(f"--model {name}"),
            hint="install the provider's package beside belljar, and set its key in the "
            "environment; `--model mockllm/model` needs neither",
        ) from error
    except Exception:  # noqa: BLE001 - what is wrong with it, the evaluation says
        return []
    if len(models) == 1:
        init_active_model(models[0], config)
    init_model_roles(roles or {})
    for role in (roles or {}).values():
        models += role if isinstance(role, list) else [role]
    served = [getattr(each.api, "policy", None) for each in models]
    return [each for each in served if isinstance(each, LoadedPolicy)]


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (BelljarError, click.ClickException):
        raise
    except (Exception, SystemExit) as error:  # `sys.exit(0)` would read as "contained"
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, PrerequisiteError):
            message = _unmarked(error)
        problem = f"the task can't be loaded: {printable(message, max_chars=800)}"
        hint = "see that `inspect eval` runs it; `inspect list tasks` names what there is"
        raise PolicyError(problem, where=printable(what), hint=hint) from error


def _unmarked(error: PrerequisiteError) -> str:
    words = Text.from_markup(str(error.message)).plain.split()
    return printable(" ".join(words).removeprefix("ERROR: "), max_chars=2000)


def invoke(
    request: RunRequest, options: click.Context, tasks: list[Task], session: Session
) -> bool:
    log_dir = session.ensure_run().inspect_log_dir
    options.params |= {
        "tasks": tuple(tasks),
        "log_dir": str(log_dir),
        "t": (),  # they are loaded: nothing is left by which Inspect would load them again
        "task_config": None,
        "detach": False,  # the cells and the record are this process's
        "json_output": False,
    }
    if options.get_parameter_source("display") is click.core.ParameterSource.DEFAULT:
        display = "rich" if sys.stdout.isatty() else "plain"
        options.params["display"] = "none" if request.quiet else display
    try:
        with explicit_arguments(options, log_dir):
            options.command.invoke(options)
    except PrerequisiteError as error:
        session.failure = session.failure or f"the evaluation did not run: {_unmarked(error)}"
    except (KeyboardInterrupt, click.Abort):
        return True
    except BaseException as error:  # noqa: BLE001
        # Its record is closed and judged: a solver's `sys.exit(0)` would read as "contained".
        if first_of(error, KeyboardInterrupt) is not None:
            return True
        message = f"{type(error).__name__}: {printable(str(error), max_chars=2000)}"
        session.failure = session.failure or f"the evaluation ended with {message}"
    return False
