"""The options of `inspect eval` that Belljar sets itself, and the selected samples.

Inspect reads options from the command line, variables, a `.env` file and `--run-config`. All are
read before a task is loaded: loading a task runs its Python.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.errors import HostError, PolicyError
from belljar.harness.dotenv import DotEnv, read_dotenv
from belljar.harness.operator import OperatorOptions
from belljar.harness.source import RealCells
from belljar.model.serve import load_model
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.policy.loaded import LoadedPolicy


_PREFIX: Final = "INSPECT_EVAL"
OWN_PREFIX: Final = "BELLJAR_"
PROVIDER: Final = "belljar"
_IN_A_CELL: Final = f"{PROVIDER}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An option that Belljar sets itself.

    Attributes:
        flag: its name on Inspect's command line, or "".
        hint: what to use instead.
        same: accepted values: Belljar does that anyway.
        by_hand: accepted on the command line only.
        config: its key in a run configuration, or "".
        variables: other variables that set it.
    """

    flag: str
    hint: str
    same: tuple[object, ...] = ()
    by_hand: bool = False
    config: str = ""
    variables: tuple[str, ...] = ()


TAKEN: Final[Mapping[str, Taken]] = {
    "sandbox": Taken(
        flag="--sandbox",
        hint="the sandbox is Belljar's; --policy says what it may be",
        same=(PROVIDER,),
        config="sandbox",
    ),
    "log_dir": Taken(
        flag="--log-dir", hint="the log goes into the run directory", config="log_dir"
    ),
    # Inspect puts the pattern into a path as it is: with a `/` the log leaves the run directory.
    "log_file_pattern": Taken(
        flag="",
        hint="the log goes into the run directory",
        variables=("INSPECT_EVAL_LOG_FILE_PATTERN",),
    ),
    "no_log_samples": Taken(
        flag="--no-log-samples",
        hint="the samples' log is evidence: without it no verdict can be given",
        same=(False,),
        config="log_samples",
    ),
    "no_sandbox_cleanup": Taken(
        flag="--no-sandbox-cleanup",
        hint="type it on the command line to look at cells after their samples",
        same=(False,),
        by_hand=True,
        config="sandbox_cleanup",
    ),
    # Inspect sets these when it starts: the policy would not be the one that was checked.
    "belljar_variable": Taken(
        flag="a variable of this process", hint="set it in the environment of belljar run"
    ),
    "detach": Taken(flag="--detach", hint="the cells live in this process", same=(False,)),
    "json_output": Taken(flag="--json", hint="use belljar's --json", same=(False,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An option's value; `source`: "" for the command line."""

    option: str
    value: object
    source: str = ""


def check(settings: Iterable[Setting], context: click.Context | None = None) -> None:
    """Refuse the first setting that Belljar does not accept.

    Raises `click.UsageError` for a typed option, `PolicyError` for another source.
    """
    for setting in settings:
        taken = TAKEN[setting.option]
        if setting.value in taken.same or (taken.by_hand and not setting.source):
            continue
        name = taken.flag or taken.variables[0]
        if not setting.source:
            what = f"{name} can't be used with belljar run: {taken.hint}"
            raise click.UsageError(what, context)
        raise PolicyError(
            f"{name} is set here, and can't be used with belljar run",
            where=printable(setting.source),
            hint=f"remove it there: {taken.hint}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run.

    `inspect_args`: the task and Inspect's options. `policy`: a file or preset, "" for the task's.
    `require_contained`: metrics count contained samples only. `warm`: cells kept ready per plan.
    `quiet`: standard output stays free for the caller. `otlp`: a collector of traces.
    `traceback`: Inspect shows an error's.
    """

    inspect_args: Sequence[str]
    policy: str = ""
    override: bool = False
    allow_upstreams: bool = False
    tier: str = ""
    require_contained: bool = False
    warm: int = 0
    quiet: bool = False
    otlp: str = ""
    traceback: bool = False
    home: Path | None = None
    source: RealCells = field(default_factory=RealCells)

    @property
    def operator_options(self) -> OperatorOptions:
        """The operator's own part of it."""
        return {
            "run_policy": self.policy,
            "override": self.override,
            "tier": self.tier,
            "allow_upstreams": self.allow_upstreams,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Inspect's checked options and its `--run-config`."""

    context: click.Context
    configured: Mapping[str, Any]

    @property
    def model(self) -> object:
        """The model that the options name, if any."""
        params = self.context.params
        return params.get("model") or params.get("model_spec") or self.configured.get("model")

    @property
    def models(self) -> list[str]:
        """The names of all models that the options name, also for a role."""
        from inspect_ai._util.config import parse_cli_args

        waiting, names = [self.model, self.configured.get("model_roles")], list[str]()
        with contextlib.suppress(Exception):  # what is wrong with it, the evaluation says
            waiting.append(parse_cli_args(self.context.params.get("model_role"), force_str=False))
        while waiting:
            match waiting.pop():
                case str(listed):
                    names += listed.split(",")
                case {"model": model}:
                    waiting.append(model)
                case dict(roles):
                    waiting += roles.values()
                case list(several):
                    waiting += several
                case None:
                    pass
                case model:
                    names.append(str(model))
        return names

    def explicit(self, log_dir: Path) -> dict[str, Any]:
        """Arguments that no other setting may change."""
        return {
            "sandbox": PROVIDER,
            "log_dir": str(log_dir),
            "log_format": self.context.params.get("log_format") or "eval",
            "log_samples": True,
            "sandbox_cleanup": not self.context.params.get("no_sandbox_cleanup"),
        }


def read_options(arguments: Sequence[str]) -> InspectOptions:
    """Parse Inspect's options with its own parser, and check them. Loads no task.

    Raises `click.UsageError` for invalid options, `PolicyError` for another source that sets what
    Belljar sets or for what a `.env` file may not set, `HostError` without Inspect.
    """
    try:
        dotenv = read_dotenv(os.environ)  # before Inspect sets what is in it
        from inspect_ai._cli.eval import eval_command, parse_run_config
        from inspect_ai._util.dotenv import init_dotenv
    except ImportError as error:
        raise HostError(
            "Inspect AI is not installed", hint="pip install 'belljar-sandbox[inspect]'"
        ) from error
    init_dotenv()
    if dotenv.names:
        print_status(f"belljar: {printable(dotenv.path)} sets {', '.join(dotenv.names)}")
    context = eval_command.make_context("belljar run", list(arguments), auto_envvar_prefix=_PREFIX)
    check(_parsed(context, dotenv), context)
    file = context.params.get("run_config")
    try:
        configured: Mapping[str, Any] = parse_run_config(file) if file else {}
    except Exception as error:
        message = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
        raise PolicyError(
            f"the run configuration can't be read: {printable(str(message), max_chars=600)}",
            where=printable(str(file)),
            hint="see `inspect eval --help`: --run-config",
        ) from error
    for option, taken in TAKEN.items():
        for key in {taken.config, option} & set(configured):
            value = configured[key]
            if key == "sandbox":
                value = value.type if value.config is None else f"{value.type}:…"
            elif option.startswith("no_") and key != option:
                value = not value
            check([Setting(option=option, value=value, source=f"`{key}` in {file}")])
    return InspectOptions(context=context, configured=configured)


def was_given(context: click.Context, option: str) -> bool:
    """Whether command line or environment sets it."""
    return context.get_parameter_source(option) in {
        click.core.ParameterSource.COMMANDLINE,
        click.core.ParameterSource.ENVIRONMENT,
    }


def _parsed(context: click.Context, dotenv: DotEnv) -> Iterator[Setting]:
    # Settings of the command line, the environment, a `.env` file and `--env`.
    # `--env` writes `-` as `_`, and sets the variable only when Inspect starts
    given = {
        str(text).partition("=")[0].strip().replace("-", "_")
        for text in context.params.get("env") or ()
    }
    for name in sorted(given):
        # Variables that select this host's programs or store.
        if name.startswith((OWN_PREFIX, "LD_")) or name == "PATH":
            yield Setting(option="belljar_variable", value=name, source=f"--env {name}")
    for option, taken in TAKEN.items():
        # The variables that Inspect's command line reads for an option, and the table's
        names = [*taken.variables]
        for parameter in context.command.params:
            if parameter.name == option:
                named = parameter.envvar
                names += [named] if isinstance(named, str) else list(named or ())
                names.append(f"{_PREFIX}_{option.upper()}")
        if context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            yield Setting(option=option, value=context.params[option])
        elif context.get_parameter_source(option) is click.core.ParameterSource.ENVIRONMENT:
            name = next((name for name in names if os.environ.get(name)), names[0])
            yield Setting(option=option, value=context.params[option], source=dotenv.place(name))
        for name in taken.variables:
            if "/" in os.environ.get(name, ""):
                yield Setting(option=option, value=os.environ[name], source=dotenv.place(name))
        for name in names:
            if name in given:
                yield Setting(option=option, value=name, source=f"--env {name}")


@contextlib.contextmanager
def explicit_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Force these arguments of Inspect's `eval` function inside the block.

    Its command line can't express all (`log_samples=True`), and reads a run configuration again.
    Raises `HostError` when the installed Inspect can't be held to that.
    """
    from inspect_ai._cli import eval as command

    original = getattr(command, "eval", None)
    if not callable(original) or "eval" not in command.eval_exec.__code__.co_names:
        raise unknown_inspect("its command line does not call `eval`")

    def call(*positional: Any, **given: Any) -> Any:  # noqa: ANN401 - Inspect's own arguments
        return original(*positional, **{**given, **arguments})

    command.__dict__["eval"] = call
    try:
        yield
    finally:
        command.__dict__["eval"] = original


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Have Inspect's display show an evaluation's error in one line, without its traceback.

    Its log has the traceback. An Inspect that displays errors in another way goes on doing so.
    """
    from inspect_ai._display.core import results
    from rich.text import Text

    def in_one_line(kind: type[BaseException], error: BaseException, *_: object) -> Text:
        message = "; ".join(line.strip() for line in str(error).splitlines())
        return Text(f"{kind.__name__}: {printable(message, max_chars=600)}")

    shown = results.__dict__
    original = shown.get("rich_traceback")
    if original is None:
        yield
        return
    shown["rich_traceback"] = in_one_line
    try:
        yield
    finally:
        shown["rich_traceback"] = original


def unknown_inspect(what: str) -> HostError:
    """The installed Inspect is not a tested one."""
    from importlib.metadata import version

    return HostError(
        f"inspect-ai {version('inspect-ai')} is not known to Belljar: {what}",
        hint="install a version of inspect-ai that this Belljar was tested with: pip install "
        "'belljar-sandbox[inspect]'",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The operator's choice.

    Attributes:
        limit: how many from the first, or a slice's start and stop.
        ids: patterns, each of any task or `task:pattern`.
        shuffle: a seed; True: a random order.
    """

    limit: int | tuple[int, int] | None = None
    ids: Sequence[str | int] | None = None
    shuffle: bool | int | None = None

    @property
    def is_foreseen(self) -> bool:
        """Whether another run chooses the same samples."""
        return self.shuffle is not True

    def order(self, task: Task) -> None:
        """Order and number the samples as Inspect does."""
        if self.shuffle and not task.dataset.shuffled:
            task.dataset.shuffle(None if self.shuffle is True else self.shuffle)
        for position, sample in enumerate(task.dataset):
            if sample.id is None:
                sample.id = position + 1

    def positions(self, task: Task, names: Iterable[str]) -> list[int]:
        """A task's selected positions; `names`: all tasks'."""
        from inspect_ai._eval.task.util import resolve_task_sample_ids, sample_id_filter

        everything = range(len(task.dataset))
        if self.ids is None:
            first, last = self.limit if isinstance(self.limit, tuple) else (0, self.limit)
            return list(everything[first:last])
        ids = resolve_task_sample_ids(task.name, list(self.ids), names)
        matcher = sample_id_filter(ids if ids is not None else [])
        return [position for position in everything if matcher.matches(task.dataset[position].id)]


def read_selection(options: InspectOptions) -> Selection:
    """From the options, else the run configuration."""
    from inspect_ai._util.samples import parse_sample_id, parse_samples_limit

    params, configured = options.context.params, options.configured
    limit = parse_samples_limit(params.get("limit"))
    if limit is None:
        limit = configured.get("limit")
    given = parse_sample_id(params.get("sample_id"))
    ids: Any = given if given is not None else configured.get("sample_id")
    shuffle = params.get("sample_shuffle") or configured.get("sample_shuffle")
    return Selection(
        limit=(limit[0], limit[1]) if isinstance(limit, (list, tuple)) else limit,
        ids=[ids] if isinstance(ids, (str, int)) else ids,
        shuffle=True if shuffle == -1 else shuffle or None,
    )


def check_models(names: Iterable[str], home: Path | None) -> list[LoadedPolicy]:
    """The policies of those that run in a cell. Raises `PolicyError`, `HostError`: one is wrong."""
    files = [name.removeprefix(_IN_A_CELL) for name in names if name.startswith(_IN_A_CELL)]
    return [load_model(Path(file), home=home) for file in files]


# Inspect's own solvers that call the evaluated model, unless they are given one
_CALL_MODEL: Final = frozenset(
    {"generate", "multiple_choice", "self_critique", "basic_agent", "react"}
)


def check_model(options: InspectOptions, tasks: Iterable[Task]) -> None:
    """Refuse a task whose solver calls a model when none is named: Inspect would do so in a cell.

    What a solver of the task's own calls is not foreseen.
    """
    from inspect_ai._util.registry import is_registry_object, registry_info, registry_params
    from inspect_ai.solver import Solver

    if options.model or options.context.params.get("solver"):
        return
    for task in tasks:
        waiting: list[Solver] = [] if task.model else [task.solver]
        while waiting:
            solver = waiting.pop()
            name = registry_info(solver).name if is_registry_object(solver) else ""
            if name.removeprefix("inspect_ai/") in _CALL_MODEL:
                if not registry_params(solver).get("model"):
                    raise PolicyError(
                        f"its solver `{name.removeprefix('inspect_ai/')}` needs a model",
                        where=f"task {printable(task.name)}",
                        hint="add --model PROVIDER/NAME, such as mockllm/model",
                    )
            elif isinstance(solver, Sequence):  # a chain
                waiting += solver
